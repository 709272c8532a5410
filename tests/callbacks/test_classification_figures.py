import numpy as np
import pytest
import torch

from callbacks.classification_figures import (
    Mistake,
    denormalise,
    draw_confusion_matrix,
    draw_mistakes,
    mistakes_table,
    per_class_table,
    shorten,
)


@pytest.mark.parametrize("channels", [1, 3])
def test_denormalise_undoes_the_normalisation(channels: int) -> None:
    original = torch.rand(channels, 4, 5)
    mean, std = [0.4, 0.5, 0.6][:channels], [0.1, 0.2, 0.3][:channels]
    normalised = (original - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    expected = original.permute(1, 2, 0) if channels == 3 else original[0]
    torch.testing.assert_close(denormalise(normalised, mean, std), expected)
    bright = denormalise(torch.full((channels, 1, 1), 1e6), mean, std)
    assert bright.max() == 1


@pytest.mark.parametrize("num_classes", [2, 10, 60, 1000])
def test_confusion_matrix_is_bounded_and_has_a_background_of_its_own(num_classes: int) -> None:
    names = [f"class {i} " + "long " * 20 for i in range(num_classes)]
    image = draw_confusion_matrix(torch.eye(num_classes, dtype=torch.int64) * 7, names)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert 300 <= max(image.shape[:2]) <= 1200
    assert (image[0, 0] == 255).all()


def test_cells_are_coloured_by_their_share_of_the_row() -> None:
    few, many = torch.tensor([[3, 1], [1, 3]]), torch.tensor([[300, 100], [1, 3]])
    assert abs(draw_confusion_matrix(few, ["", ""]).mean() - draw_confusion_matrix(many, ["", ""]).mean()) < 1
    assert np.isfinite(draw_confusion_matrix(torch.tensor([[0, 0], [0, 1]]), ["a", "b"])).all()


def test_names_with_markup_or_missing_glyphs_are_drawn_as_text(recwarn: pytest.WarningsRecorder) -> None:
    names = ["$\\frac{", "\N{CJK UNIFIED IDEOGRAPH-732B}"]
    draw_confusion_matrix(torch.ones(2, 2, dtype=torch.int64), names)
    draw_mistakes([Mistake(0.9, 0, 1, torch.zeros(1, 8, 8))], names, [0.5], [0.5])
    assert not recwarn


def test_mistakes_show_the_image_in_its_own_colours() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1).expand(3, 8, 8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalised = (red - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    image = draw_mistakes([Mistake(0.97, 0, 1, normalised)], ["cat", "dog"], mean, std)
    assert image.shape == (180, 360, 3)
    assert (image[100, 90] == (255, 0, 0)).all()
    assert (image[100, 270] == 255).all()


@pytest.mark.parametrize("count", [1, 5, 16, 64])
def test_mistakes_of_any_number_and_size_are_bounded(count: int) -> None:
    mistakes = [Mistake(0.5, 0, 1, torch.zeros(3, 16 + i % 2, 20)) for i in range(count)]
    image = draw_mistakes(mistakes, ["a" * 50, "b" * 50], [0.5] * 3, [0.5] * 3)
    assert max(image.shape) <= 1440


def test_pyplot_is_left_alone() -> None:
    import sys

    draw_confusion_matrix(torch.ones(2, 2, dtype=torch.int64), ["a", "b"])
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        assert not pyplot.get_fignums()


def test_per_class_table() -> None:
    counts = torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    assert per_class_table(counts, ["cat", "dog|wolf", "owl"]).splitlines()[2:] == [
        "| cat | 4 | 0.7500 | dog\\|wolf (1) |",
        "| dog\\|wolf | 2 | 1.0000 |  |",
        "| owl | 0 | no samples |  |",
    ]


def test_a_table_of_texts_reads_as_the_texts_are() -> None:
    from html import unescape
    from re import sub

    from tensorboard.plugin_util import markdown_to_safe_html

    nasty = "a *b* __c__ <b>x</b> & &amp; | `code` [l](http://x.y) \\ # 1. ~~z~~ \N{PILE OF POO}"
    table = mistakes_table(
        [Mistake(0.987, 0, 1, f"{nasty}\n\tnext  line"), Mistake(0.5, 1, 0, "long " * 100)], ["a|b", "$c_d$"]
    )
    cells = [unescape(sub(r"<[^>]*>", "", line)) for line in markdown_to_safe_html(table).splitlines() if "<td" in line]
    assert cells[:4] == ["0.987", "a|b", "$c_d$", f"{nasty} next line"]
    assert len(cells[7]) == 300


def test_shorten() -> None:
    assert shorten("short", 5) == "short"
    assert shorten("longer", 5) == "long…"
