"""Fashion-MNIST (arXiv 1708.07747): 70,000 grey 28 x 28 images of clothing, from idx files or a download."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision.datasets import FashionMNIST

from datamodules.download import download_into
from datamodules.images import ImageDataModule, check_shift
from datamodules.splits import check_fraction
from datamodules.transforms import Augment

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
NAMES = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]


class FashionMNISTDataModule(ImageDataModule):
    """Fashion-MNIST: val is split off the 60,000 training images, test is the official 10,000.

    The four idx files (plain or .gz) are looked for in root, root/FashionMNIST/raw (torchvision's place) and
    Debian's package dataset-fashion-mnist; where one is in none of them, all are downloaded into root.

    Args:
        root: Folder of the files, and of the download.
        val_fraction: Share of the training images that is held out as val, stratified (1/12: 5,000 images).
        image_size: Height and width; the 28 x 28 images are resized where it differs.
        in_channels: 1, or 3 for a net that expects RGB.
        augment: See ImageDataModule.
        max_shift: Largest move of the crop in pixels, each way.
        kwargs: Loader options and random_erasing.

    Raises:
        ValueError: An option is out of range; later, when the data is read: a file is missing or damaged.
    """

    def __init__(
        self,
        *,
        root: str = "data",
        val_fraction: float = 1 / 12,
        image_size: int = 28,
        in_channels: Literal[1, 3] = 1,
        augment: Augment = "crop_flip",
        max_shift: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            class_names=FashionMNIST.classes,
            image_size=image_size,
            in_channels=in_channels,
            statistics=([0.2860], [0.3530]),
            augment=augment,
            **kwargs,
        )
        self.root = Path(root)
        self.val_fraction = check_fraction("val_fraction", val_fraction)
        self.max_shift = check_shift(max_shift, image_size)

    def find(self, name: str) -> Path | None:
        """The first place where an idx file lies, plain or compressed."""
        for folder in (self.root, self.root / "FashionMNIST" / "raw", DEBIAN_FOLDER):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
        return None

    def prepare_data(self) -> None:
        """Downloads where the files are missing; Lightning calls this in one process per machine."""
        if all(self.find(name) for name in NAMES):
            return
        download_into(
            self.root,
            lambda folder: FashionMNIST(folder, download=True),
            "Without a network: `apt install dataset-fashion-mnist` (Debian, Ubuntu), or copy "
            f"{', '.join(f'{name}.gz' for name in NAMES)} into {self.root.absolute()}",
        )

    def setup(self, stage: str | None = None) -> None:
        """Reads what a stage (fit, validate, test, predict; None: all) needs."""
        if stage in ("fit", "validate", None) and "train" not in self.datasets:
            self.add_train_and_val(*self.read("train"), val_fraction=self.val_fraction, max_shift=self.max_shift)
        if stage in ("test", "predict", None) and "test" not in self.datasets:
            self.add_test(*self.read("t10k"))

    def read(self, part: Literal["train", "t10k"]) -> tuple[Tensor, Tensor]:
        """Images (N, 1, H, W) uint8 and labels (N,) int64 of one part."""
        tensors = []
        for name in NAMES:
            if name.startswith(part):
                path = self.find(name)
                if path is None:
                    raise ValueError(f"{name} is missing under {self.root.absolute()}: call prepare_data() first")
                tensors.append(read_idx(path, num_dims=3 if "images" in name else 1))
        images, labels = tensors
        if len(images) != len(labels) or labels.max() >= self.num_classes:
            raise ValueError(
                f"{part} files don't fit together: {len(images)} images, {len(labels)} labels "
                f"up to {labels.max()}, in {self.find(f'{part}-images-idx3-ubyte')} "
                f"and {self.find(f'{part}-labels-idx1-ubyte')}"
            )
        return images[:, None], labels.long()


def read_idx(path: Path, *, num_dims: int) -> Tensor:
    """Reads an idx file of bytes, plain or .gz, as uint8.

    The format: two zero bytes, 8 for uint8, the number of dimensions, each size as big-endian uint32, data.

    Raises:
        ValueError: The file is damaged or another kind of file; it is named.
    """
    damaged = f"{path} is not a complete idx file; delete it or copy it again"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{damaged} ({error})") from error
    start = 4 + 4 * num_dims
    if data[:4] != bytes([0, 0, 8, num_dims]) or len(data) < start:
        raise ValueError(f"{damaged} (its header is {data[:4]!r})")
    shape = struct.unpack(f">{num_dims}I", data[4:start])
    if len(data) != start + math.prod(shape) or 0 in shape:
        raise ValueError(f"{damaged} ({len(data) - start} bytes for shape {shape})")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(shape)
