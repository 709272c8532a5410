"""Image classification with any net: mixup and cutmix, test-time augmentation."""

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from models.classifier import Classifier
from models.test_time_augmentation import Views, make_views, mean_probabilities

Batch = tuple[Tensor, Tensor]


class VisionClassifier(Classifier):
    """Classifies images (B, C, H, W) with any net that returns logits (B, K).

    Args:
        net: Maps images (B, C, H, W) to logits (B, K).
        class_names: Names of the K classes, in the order of the labels.
        image_size: Height and width of the images in pixels.
        mean: What normalisation subtracted, one figure a channel; pictures are shown de-normalised.
        std: What normalisation divided by, one figure a channel.
        mixup: Alpha of mixup (Zhang et al., arXiv 1710.09412); 0 turns it off.
        cutmix: Alpha of CutMix (Yun et al., arXiv 1905.04899); 0 turns it off. With mixup too, each batch gets one.
        channels_last: Keep images and weights in channels-last memory, which convolutions like.
        test_time_augmentation: Views averaged by `validate`, `test` and `predict` (not by the validation during `fit`).
        **kwargs: Loss, distillation, optimizer and schedule, see `Classifier` and `Task`.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        class_names: Sequence[str],
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        mixup: float = 0.0,
        cutmix: float = 0.0,
        channels_last: bool = True,
        test_time_augmentation: Views = "none",
        **kwargs: Any,
    ) -> None:
        super().__init__(net, class_names=class_names, **kwargs)
        if mixup < 0 or cutmix < 0:
            raise ValueError(f"mixup ({mixup}) and cutmix ({cutmix}) must not be negative")
        if test_time_augmentation not in get_args(Views):
            raise ValueError(
                f"test_time_augmentation {test_time_augmentation!r} must be one of {list(get_args(Views))}"
            )
        self.mean, self.std = list(mean), list(std)
        self.test_time_augmentation = test_time_augmentation
        self.example_input_array = torch.zeros(2, len(self.mean), image_size, image_size)

        num_classes = len(self.class_names)
        mixes = [mix(alpha=a, num_classes=num_classes) for mix, a in ((v2.MixUp, mixup), (v2.CutMix, cutmix)) if a]
        self.mix = v2.RandomChoice(mixes) if mixes else None
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.net.to(memory_format=self.memory_format)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        return self.net(images.contiguous(memory_format=self.memory_format))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        images, targets = self.mix(images, labels) if self.mix else (images, labels)
        return self.train_on(images, targets)

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        images, labels = batch
        return self.evaluate(self.probabilities(images), labels, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        images, labels = batch
        return self.evaluate(self.probabilities(images), labels, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        images, indices = batch
        return {"probabilities": self.probabilities(images), "indices": indices}

    def probabilities(self, images: Tensor) -> Tensor:
        """Probabilities (B, K), averaged over the test-time views outside of `fit`."""
        fitting = self._trainer is not None and self.trainer.state.fn == "fit"
        views = [images] if fitting else make_views(images, self.test_time_augmentation)
        return mean_probabilities([self(view) for view in views])
