"""What image datamodules share: the facts, the transforms, and a dataset of images held in memory."""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from datamodules.base import BaseDataModule, Split
from datamodules.splits import stratified_split
from datamodules.transforms import Augment, Fill, ImageTransform, make_policy

Batch = tuple[Tensor, Tensor]


class TensorImages(Dataset[Batch]):
    """Labelled images in memory; a whole batch is gathered, augmented and normalised at once.

    Args:
        images: (N, C, H, W) uint8.
        labels: (N,) int64.
        transform: Maps a uint8 batch to a float batch.
    """

    def __init__(self, images: Tensor, labels: Tensor, transform: ImageTransform) -> None:
        assert images.dtype == torch.uint8
        assert len(images) == len(labels)
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """One batch: images (B, C, H, W) float, labels (B,). DataLoader prefers this to single items."""
        chosen = torch.as_tensor(indices)
        return self.transform(self.images[chosen]), self.labels[chosen]

    def __getitem__(self, index: int) -> Batch:
        images, labels = self.__getitems__([index])
        return images[0], labels[0]


def collate_images(samples: Any) -> Batch:
    """A batch of single samples; a batch that the dataset has already put together passes through."""
    if isinstance(samples, tuple):
        return samples
    images, labels = default_collate(samples)
    return images, labels


class ImageDataModule(BaseDataModule):
    """Facts, transforms and collation of an image data source; subclasses pass the facts and fill the splits.

    A batch is (images (B, C, H, W) float, labels (B,) int64); in the predict loader the second is the index
    into ``predict_names``.

    Args:
        class_names: In label order.
        image_size: Height and width of the images that the net sees.
        in_channels: 1 (grey) or 3 (RGB); other images are converted.
        statistics: Mean and standard deviation of images in 0 to 1, 1 or 3 values each; they are fitted to
            in_channels.
        augment: Training images: none; crop (random position, never mirrored: digits, text, signs); crop_flip
            (crop, mirrored at random); trivial and rand (crop_flip, then TrivialAugment or RandAugment).
        random_erasing: Probability that a training image loses a random box.
        kwargs: Loader options, see BaseDataModule.

    Raises:
        ValueError: An option is out of range.
    """

    fill: ClassVar[Fill] = "reflect"

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        image_size: int,
        in_channels: int,
        statistics: tuple[Sequence[float], Sequence[float]],
        augment: Augment = "none",
        random_erasing: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.remove_ignored_hparams(["class_names", "statistics"])  # the source's, not options of the user
        mean, std = statistics
        if image_size < 1:
            raise ValueError(f"image_size ({image_size}) must be at least 1")
        if in_channels not in (1, 3):
            raise ValueError(f"in_channels ({in_channels}) must be 1 (grey) or 3 (RGB)")
        if not 0 <= random_erasing <= 1:
            raise ValueError(f"random_erasing ({random_erasing}) must be a probability, 0 to 1")
        if augment not in get_args(Augment):
            raise ValueError(f"augment ({augment!r}) must be one of {list(get_args(Augment))}")
        if len(mean) not in (1, 3) or len(std) != len(mean):
            raise ValueError(f"mean ({list(mean)}) and std ({list(std)}) must both have 1 or both have 3 values")
        if min(std) <= 0:
            raise ValueError(f"std ({list(std)}) must be above 0")
        self.class_names = list(class_names)
        self.num_classes = len(self.class_names)
        self.image_size = image_size
        self.in_channels = in_channels
        self.mean = fit_channels(mean, in_channels)
        self.std = fit_channels(std, in_channels)
        self.augment = augment
        self.random_erasing = random_erasing
        self.predict_names: list[str] = []
        self.collate_fn = collate_images

    def eval_transform(self) -> ImageTransform:
        """The transform of validation, test and predict: nothing random."""
        return ImageTransform(size=self.image_size, channels=self.in_channels, mean=self.mean, std=self.std)

    def train_transform(self, *, max_shift: int) -> ImageTransform:
        """The training transform; max_shift is 0 for images whose crop was drawn when they were read."""
        return ImageTransform(
            size=self.image_size,
            channels=self.in_channels,
            mean=self.mean,
            std=self.std,
            shift=0 if self.augment == "none" else max_shift,
            fill=self.fill,
            flip=self.augment in ("crop_flip", "trivial", "rand"),
            policy=make_policy(self.augment),
            erasing=self.random_erasing,
        )

    def plain(self, split: Split) -> Dataset[Batch]:
        """A split that has been set up, with nothing random about it."""
        dataset = copy.copy(self.datasets[split])
        dataset.transform = self.eval_transform()  # type: ignore[attr-defined]
        return dataset

    def add_train_and_val(self, images: Tensor, labels: Tensor, *, val_fraction: float, max_shift: int) -> None:
        """Uses one labelled set in memory for training, with a stratified part held out for validation.

        Raises:
            ValueError: The part would be empty: nothing would be validated and no best checkpoint kept.
        """
        train, val = stratified_split(labels, [1 - val_fraction, val_fraction], self.split_seed)
        if not val:
            raise ValueError(f"val_fraction ({val_fraction}) leaves no val image of {len(images)}: raise it")
        self.datasets["train"] = TensorImages(images[train], labels[train], self.train_transform(max_shift=max_shift))
        self.datasets["val"] = TensorImages(images[val], labels[val], self.eval_transform())

    def add_test(self, images: Tensor, labels: Tensor) -> None:
        """Uses one labelled set in memory for test, and, with indices as labels, for predict."""
        self.datasets["test"] = TensorImages(images, labels, self.eval_transform())
        self.datasets["predict"] = TensorImages(images, torch.arange(len(images)), self.eval_transform())
        self.predict_names = [str(index) for index in range(len(images))]


def fit_channels(values: Sequence[float], channels: int) -> list[float]:
    """Per-channel statistics for another number of channels: one value repeated, three values averaged."""
    if len(values) == channels:
        return [float(value) for value in values]
    return [sum(values) / len(values)] * channels


def check_shift(max_shift: int, image_size: int) -> int:
    """The value, or ValueError where an image can't move that far."""
    if not 0 <= max_shift < image_size:
        raise ValueError(f"max_shift ({max_shift}) must be at least 0 and below image_size ({image_size})")
    return max_shift
