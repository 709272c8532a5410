"""CIFAR-10 (Krizhevsky, 2009): 60,000 RGB 32 x 32 images of ten classes, torchvision's copy."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision.datasets import CIFAR10

from datamodules.download import download_into
from datamodules.images import ImageDataModule, check_shift
from datamodules.splits import check_fraction
from datamodules.transforms import Augment

CLASS_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class CIFAR10DataModule(ImageDataModule):
    """CIFAR-10: val is split off the 50,000 training images, test is the official 10,000.

    Args:
        root: Folder that holds or receives cifar-10-batches-py.
        val_fraction: Share of the training images that is held out as val, stratified (0.1: 5,000 images).
        image_size: Height and width; the 32 x 32 images are resized where it differs.
        in_channels: 3, or 1 for a net that expects grey images.
        augment: See ImageDataModule.
        max_shift: Largest move of the crop in pixels, each way.
        kwargs: Loader options and random_erasing.

    Raises:
        ValueError: An option is out of range; later: the data is neither there nor can be downloaded.
    """

    def __init__(
        self,
        *,
        root: str = "data",
        val_fraction: float = 0.1,
        image_size: int = 32,
        in_channels: Literal[1, 3] = 3,
        augment: Augment = "crop_flip",
        max_shift: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            class_names=CLASS_NAMES,
            image_size=image_size,
            in_channels=in_channels,
            statistics=([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
            augment=augment,
            **kwargs,
        )
        self.root = Path(root)
        self.val_fraction = check_fraction("val_fraction", val_fraction)
        self.max_shift = check_shift(max_shift, image_size)

    def prepare_data(self) -> None:
        """Downloads where files are missing or damaged; Lightning calls this in one process per machine."""
        try:
            self.read(train=False)  # torchvision compares the checksums of all batches
        except ValueError:
            download_into(
                self.root,
                lambda folder: CIFAR10(folder, download=True),
                "Without a network: unpack cifar-10-python.tar.gz (www.cs.toronto.edu/~kriz/cifar.html) "
                f"with data_batch_1 to 5 and test_batch in {(self.root / CIFAR10.base_folder).absolute()}",
            )

    def setup(self, stage: str | None = None) -> None:
        """Reads what a stage (fit, validate, test, predict; None: all) needs."""
        if stage in ("fit", "validate", None) and "train" not in self.datasets:
            self.add_train_and_val(*self.read(train=True), val_fraction=self.val_fraction, max_shift=self.max_shift)
        if stage in ("test", "predict", None) and "test" not in self.datasets:
            self.add_test(*self.read(train=False))

    def read(self, *, train: bool) -> tuple[Tensor, Tensor]:
        """Images (N, 3, 32, 32) uint8 and labels (N,) int64.

        Raises:
            ValueError: The files are missing or damaged.
        """
        try:
            part = CIFAR10(str(self.root), train=train)
        except RuntimeError as error:
            folder = (self.root / CIFAR10.base_folder).absolute()
            raise ValueError(f"the CIFAR-10 files in {folder} are missing or damaged: call prepare_data()") from error
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(part.targets)
