"""Image files of any kind: how one is read, and a dataset with a policy for those that can't be."""

import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.images import Batch, collate_images

OnError = Literal["error", "skip"]


def read_image(path: str, *, channels: int, min_side: int = 0) -> Tensor:
    """Decodes one image, upright and in one form whatever is in the file.

    EXIF orientation is applied, transparency lies over white, 16-bit grey is scaled to 8 bits, an animation
    gives its first frame.

    Args:
        path: Any format that Pillow reads.
        channels: 1 (grey) or 3 (RGB).
        min_side: A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size (several times faster) while its
            shorter side keeps at least this many pixels. 0: full size.

    Returns:
        (channels, H, W) uint8.

    Raises:
        ValueError: The file can't be read: missing, empty, truncated, not an image.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            if min_side:
                file.draft(None, (min_side, min_side))
            image: Image.Image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I"):  # 16-bit grey; older files of mode I hold 16 bits too
                wide = np.asarray(image).astype(np.float64)
                image = Image.fromarray((wide / 257).round().clip(0, 255).astype(np.uint8))
            elif image.mode == "F":
                raise ValueError("floating-point pixels have no known range")
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise ValueError(f"can't read the image {path!r}: {error or type(error).__name__}") from error
    return torch.from_numpy(pixels).view(*pixels.shape[:2], channels).permute(2, 0, 1)


class Unreadable(NamedTuple):
    """Stands for a sample that was left out."""

    path: str


class ImageFiles(Dataset[Batch]):
    """Labelled image files; a batch is read one by one and then transformed at once.

    Args:
        paths: N image files.
        labels: N labels.
        channels: 1 or 3.
        min_side: See read_image.
        resize: Maps one uint8 image (C, any H, any W) to (C, S, S), with its own random crop if any.
        transform: Maps a uint8 batch to a float batch.
        on_error: A file that can't be read: ValueError, or leave it out and warn, once per file.
    """

    def __init__(
        self,
        paths: list[str],
        labels: list[int],
        *,
        channels: int,
        min_side: int,
        resize: Callable[[Tensor], Tensor],
        transform: Callable[[Tensor], Tensor],
        on_error: OnError,
    ) -> None:
        self.paths, self.labels = paths, torch.tensor(labels, dtype=torch.int64)
        self.channels, self.min_side = channels, min_side
        self.resize, self.transform = resize, transform
        self.on_error = on_error
        # in shared memory: what a worker marks is seen by the other workers and by the main process
        self.unreadable = torch.zeros(len(paths), dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return len(self.paths)

    def skipped(self) -> list[str]:
        """Paths of the files left out so far, by any worker of this rank."""
        return [self.paths[index] for index in self.unreadable.nonzero().flatten().tolist()]

    def _read(self, index: int) -> Tensor | None:
        path = self.paths[index]
        try:
            return self.resize(read_image(path, channels=self.channels, min_side=self.min_side))
        except ValueError as error:
            if self.on_error == "error":
                raise ValueError(f"{error}. To leave such files out: --data.on_error skip") from error
            if not self.unreadable[index]:
                self.unreadable[index] = True
                warnings.warn(f"left out: {error}", stacklevel=2)
            return None

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """One batch: images (B, C, S, S) float, labels (B,); B is smaller where files were left out."""
        images, kept = [], []
        for index in indices:
            image = self._read(index)
            if image is not None:
                images.append(image)
                kept.append(index)
        if not images:
            raise ValueError(f"no image of a batch can be read: {[self.paths[index] for index in indices]}")
        return self.transform(torch.stack(images)), self.labels[kept]

    def __getitem__(self, index: int) -> Batch | Unreadable:  # type: ignore[override]
        image = self._read(index)
        if image is None:
            return Unreadable(self.paths[index])
        return self.transform(image[None])[0], self.labels[index]


def collate_files(samples: Any) -> Batch:
    """As collate_images, without the samples that were left out."""
    if isinstance(samples, list):
        readable = [sample for sample in samples if not isinstance(sample, Unreadable)]
        if not readable:
            raise ValueError(f"no image of a batch can be read: {[sample.path for sample in samples]}")
        samples = readable
    return collate_images(samples)
