import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.transforms import v2

from datamodules.image_files import ImageFiles, OnError, collate_files, read_image
from datamodules.transforms import ImageTransform

RED = (200, 30, 40)


def make_files(folder: Path, on_error: OnError, *, bad: tuple[int, ...] = (1, 4), count: int = 6) -> ImageFiles:
    """Photos of which some are cut off, empty, or text."""
    paths = []
    for index in range(count):
        path = folder / f"photo {index}'s é.jpg"
        pixels = np.random.default_rng(index).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        if index in bad:
            content = path.read_bytes()
            path.write_bytes([content[: len(content) // 2], b"", b"not an image"][index % 3])
        paths.append(str(path))
    transform = ImageTransform(size=8, channels=3, mean=[0.0] * 3, std=[1.0] * 3)
    resize = v2.Compose([v2.Resize(8, antialias=True), v2.CenterCrop(8)])
    labels = [10 * index for index in range(count)]
    return ImageFiles(paths, labels, channels=3, min_side=0, resize=resize, transform=transform, on_error=on_error)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "I", "YCbCr"])
def test_every_mode_has_the_asked_channels_and_the_right_brightness(tmp_path: Path, mode: str, channels: int) -> None:
    if mode in ("I;16", "I"):
        image = Image.fromarray(np.full((5, 4), 200 * 257, np.uint16 if mode == "I;16" else np.int32))
    else:
        grey = Image.new("L", (4, 5), 255 if mode == "1" else 200)
        image = (grey.convert("RGB") if mode in ("CMYK", "P", "YCbCr") else grey).convert(mode)
    assert image.mode == mode
    path = str(tmp_path / ("x.png" if mode not in ("CMYK", "I", "YCbCr") else "x.tif"))
    image.save(path)
    pixels = read_image(path, channels=channels)
    assert (pixels.shape, pixels.dtype) == ((channels, 5, 4), torch.uint8)
    expected = {"1": 255, "P": 204}.get(mode, 200)  # P: the nearest colour of the web palette
    assert (pixels.int() - expected).abs().max() <= 1


def test_16_bit_is_scaled_not_clipped(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(2, 0)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels = read_image(str(tmp_path / "ramp.png"), channels=1)
    assert (pixels[0, 0].int() - torch.arange(256)).abs().max() <= 1


@pytest.mark.parametrize("kind", ["RGBA", "LA", "palette", "palette bytes", "RGB colour key"])
def test_transparency_lies_over_white(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.png"
    if kind.startswith("palette"):
        image = Image.new("P", (2, 1), 0)
        image.putpalette([*RED, 0, 0, 0])
        image.putpixel((1, 0), 1)
        image.save(path, transparency=1 if kind == "palette" else bytes([255, 0]))
    elif kind == "RGB colour key":
        image = Image.new("RGB", (2, 1), RED)
        image.putpixel((1, 0), (0, 0, 0))
        image.save(path, transparency=(0, 0, 0))
    else:
        image = Image.new("RGBA", (2, 1), (*RED, 255))
        image.putpixel((1, 0), (0, 0, 0, 0))
        image.convert(kind).save(path)
    opaque, transparent = read_image(str(path), channels=3)[:, 0].T.tolist()
    assert transparent == [255, 255, 255]
    assert opaque == list(RED) or kind == "LA"


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), "black")
    image.paste("white", (0, 0, 20, 20))  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    image.save(tmp_path / "x.jpg", exif=exif)
    pixels = read_image(str(tmp_path / "x.jpg"), channels=1)
    assert pixels.shape == (1, 40, 20)
    assert pixels[0, :18].min() > 200  # now the upper half
    assert pixels[0, 22:].max() < 50


def test_large_jpegs_are_decoded_smaller_but_not_too_small(tmp_path: Path) -> None:
    Image.new("RGB", (800, 600), RED).save(tmp_path / "x.jpg")
    small = read_image(str(tmp_path / "x.jpg"), channels=3, min_side=140)
    assert small.shape == (3, 150, 200)
    full = read_image(str(tmp_path / "x.jpg"), channels=3)
    assert full.shape == (3, 600, 800)
    assert (full.float().mean((1, 2)) - small.float().mean((1, 2))).abs().max() < 1


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"text", "half", "png half"])
def test_unreadable_files_are_named(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "broken one.jpg"
    if isinstance(content, str):
        pixels = np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, format="PNG" if "png" in content else "JPEG")
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"can't read the image .*broken one\.jpg"):
        read_image(str(path), channels=3)


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(ValueError, match=r"x\.tif.*floating-point"):
        read_image(str(tmp_path / "x.tif"), channels=3)


def test_policy_error_names_file_and_option(tmp_path: Path) -> None:
    loader = DataLoader(make_files(tmp_path, "error"), batch_size=3, collate_fn=collate_files)
    with pytest.raises(ValueError, match=r"photo 1's é\.jpg.*--data\.on_error skip"):
        list(loader)


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_policy_skip_leaves_out_counts_and_warns_once(tmp_path: Path, one_at_a_time: bool) -> None:
    files = make_files(tmp_path, "skip")
    dataset = ConcatDataset([files]) if one_at_a_time else files
    loader = DataLoader(dataset, batch_size=3, collate_fn=collate_files)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epochs = [list(loader), list(loader)]
    assert sorted("photo 1" in str(w.message) for w in caught) == [False, True]
    assert "left out: can't read the image" in str(caught[0].message)
    for batches in epochs:
        assert [labels.tolist() for _, labels in batches] == [[0, 20], [30, 50]]
        assert [images.shape for images, _ in batches] == [(2, 3, 8, 8)] * 2
    assert files.skipped() == [files.paths[1], files.paths[4]]


def test_policy_skip_is_counted_across_workers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = make_files(tmp_path, "skip")
    loader = DataLoader(files, batch_size=3, collate_fn=collate_files, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # pytest collects warnings in lists, which a worker can't share
        warnings.showwarning = lambda message, *_: os.write(2, f"{message}\n".encode())  # type: ignore[assignment]
        for _ in range(2):  # new workers in each epoch
            assert [labels.tolist() for _, labels in loader] == [[0, 20], [30, 50]]
    assert files.skipped() == [files.paths[1], files.paths[4]]
    told = capfd.readouterr().err
    assert told.count("left out: can't read") == 2


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.filterwarnings("ignore:left out")
def test_a_batch_without_any_readable_image_names_them(tmp_path: Path, one_at_a_time: bool) -> None:
    files = make_files(tmp_path, "skip", bad=(0, 1))
    dataset = ConcatDataset([files]) if one_at_a_time else files
    loader = DataLoader(dataset, batch_size=2, collate_fn=collate_files)
    with pytest.raises(ValueError, match=r"no image of a batch can be read: .*photo 0.*photo 1"):
        next(iter(loader))


def test_pickles(tmp_path: Path) -> None:
    files = pickle.loads(pickle.dumps(make_files(tmp_path, "skip", bad=())))
    assert files[2][0].shape == (3, 8, 8)
