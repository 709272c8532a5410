"""The handwritten digits that come with scikit-learn: 1,797 real grey images of 8 x 8, no download.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part).
"""

from typing import Any, ClassVar, Literal

import torch

from datamodules.images import ImageDataModule, TensorImages, check_shift
from datamodules.splits import stratified_split
from datamodules.transforms import Fill


class DigitsDataModule(ImageDataModule):
    """scikit-learn's digits, split 70/15/15 into train, val and test, stratified.

    Args:
        image_size: Height and width; the 8 x 8 images are resized where it differs.
        in_channels: 1, or 3 for a net that expects RGB.
        augment: none, or crop (moved by up to max_shift). Digits are neither mirrored nor turned.
        max_shift: Largest move of crop in pixels, each way.
        kwargs: Loader options and random_erasing.
    """

    fill: ClassVar[Fill] = "zero"  # the background

    def __init__(
        self,
        *,
        image_size: int = 8,
        in_channels: Literal[1, 3] = 1,
        augment: Literal["none", "crop"] = "crop",
        max_shift: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            class_names=[str(digit) for digit in range(10)],
            image_size=image_size,
            in_channels=in_channels,
            statistics=([0.3053], [0.3759]),
            augment=augment,
            **kwargs,
        )
        if augment not in ("none", "crop"):
            raise ValueError(f"augment ({augment!r}) must be 'none' or 'crop': a mirrored digit is another sign")
        self.max_shift = check_shift(max_shift, image_size)

    def setup(self, stage: str | None = None) -> None:
        """Reads and splits the images, the same way for every stage.

        Raises:
            ModuleNotFoundError: scikit-learn is missing.
        """
        if self.datasets:
            return
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("DigitsDataModule needs scikit-learn: pip install scikit-learn") from error
        digits = load_digits()
        images = (torch.from_numpy(digits.images) * 255 / 16).round().to(torch.uint8)[:, None]  # (N, 1, 8, 8)
        labels = torch.from_numpy(digits.target).long()
        train, val, test = stratified_split(labels, [0.7, 0.15, 0.15], self.split_seed)
        self.datasets["train"] = TensorImages(
            images[train], labels[train], self.train_transform(max_shift=self.max_shift)
        )
        self.datasets["val"] = TensorImages(images[val], labels[val], self.eval_transform())
        self.add_test(images[test], labels[test])
