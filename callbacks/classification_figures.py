"""Figures and tables of a classifier's predictions, as arrays and text.

No Lightning, and matplotlib without pyplot's global state.

Figures have a white background of their own, so they read the same on TensorBoard's light and dark themes.
"""

import html
import re
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


class Mistake(NamedTuple):
    """A wrong prediction; `sample` is the normalised image, (C, H, W), or the text."""

    confidence: float
    label: int
    prediction: int
    sample: Tensor | str


def denormalise(image: Tensor, mean: list[float], std: list[float]) -> Tensor:
    """Undo a per-channel normalisation: (C, H, W) -> (H, W, 3) in [0, 1], or (H, W) unless C is 3."""
    shape = (-1, 1, 1)
    image = image.float() * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)
    image = image.clamp(0, 1)
    return image.permute(1, 2, 0) if len(image) == 3 else image.mean(dim=0)


def draw_confusion_matrix(counts: Tensor, class_names: list[str]) -> "np.ndarray":
    """Draw (K, K) counts, coloured by their share of the row: (H, W, 3) uint8, at most 1,200 pixels a side.

    Counts stand in the cells for up to 20 classes, names on the axes for up to 60.
    """
    from matplotlib.figure import Figure

    num_classes = len(counts)
    side = min(12.0, 3.0 + 0.45 * num_classes)
    figure = Figure(figsize=(side, side), dpi=100, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if num_classes <= 60:
        labels = [shorten(name, 20) for name in class_names]
        axes.set_xticks(range(num_classes), labels, rotation=90, fontsize=8, parse_math=False)
        axes.set_yticks(range(num_classes), labels, fontsize=8, parse_math=False)
    if num_classes <= 20:
        for row, column in counts.nonzero().tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            text = str(int(counts[row, column]))
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    return _render(figure)


def draw_mistakes(mistakes: list[Mistake], class_names: list[str], mean: list[float], std: list[float]) -> "np.ndarray":
    """Draw a grid of captioned images: (H, W, 3) uint8, 1,440 pixels a side for 64 mistakes."""
    from matplotlib.figure import Figure

    columns = max(2, round(len(mistakes) ** 0.5))
    rows = -(-len(mistakes) // columns)
    figure = Figure(figsize=(1.8 * columns, 1.8 * rows), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))  # one for all: an axes per image takes most of the drawing time
    for index, mistake in enumerate(mistakes):
        x, y = index % columns, index // columns
        assert isinstance(mistake.sample, Tensor)
        image = denormalise(mistake.sample, mean, std)
        extent = (x + 0.09, x + 0.91, y + 0.98, y + 0.16)
        axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
        label, prediction = (shorten(class_names[i], 12) for i in (mistake.label, mistake.prediction))
        caption = f"{label} → {prediction} {mistake.confidence:.2f}"
        size = 8 if len(caption) <= 24 else 6
        axes.text(
            x + 0.5,
            y + 0.08,
            caption,
            ha="center",
            va="center",
            fontsize=size,
            color="black",
            parse_math=False,
        )
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="auto")
    axes.set_axis_off()
    return _render(figure)


def mistakes_table(mistakes: list[Mistake], class_names: list[str]) -> str:
    """A markdown table of misread texts: confidence, true and predicted class, the first 300 characters."""
    lines = ["| confidence | true | predicted | text |", "| ---: | --- | --- | --- |"]
    for mistake in mistakes:
        label, prediction = (escape(class_names[index]) for index in (mistake.label, mistake.prediction))
        text = escape(shorten(" ".join(str(mistake.sample).split()), 300))
        lines.append(f"| {mistake.confidence:.3f} | {label} | {prediction} | {text} |")
    return "\n".join(lines)


def escape(text: str) -> str:
    """A text that TensorBoard's Markdown shows as it is, within a cell of a table."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))


def per_class_table(counts: Tensor, class_names: list[str]) -> str:
    """A markdown table from (K, K) counts: each class's samples, recall and commonest confusion."""
    lines = ["| class | samples | accuracy | most often taken for |", "| --- | ---: | ---: | --- |"]
    for index, row in enumerate(counts):
        samples, correct = int(row.sum()), int(row[index])
        others = row.clone()
        others[index] = 0
        worst = int(others.argmax())
        confused = f"{class_names[worst]} ({int(others[worst])})" if others.any() else ""
        accuracy = f"{correct / samples:.4f}" if samples else "no samples"
        cells = (class_names[index], str(samples), accuracy, confused)
        lines.append("| " + " | ".join(escape(cell) for cell in cells) + " |")
    return "\n".join(lines)


def shorten(text: str, length: int) -> str:
    """A text of at most `length` characters, an ellipsis in place of what was cut off."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _render(figure: "Figure") -> "np.ndarray":
    import warnings

    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # class names in a script that the font lacks
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
