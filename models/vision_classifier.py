"""Image classification with any net: cross-entropy, mixup and cutmix, test-time augmentation, exact metrics."""

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassF1Score
from torchvision.transforms import v2

from models.base import Task
from models.test_time_augmentation import Views, make_views, mean_probabilities

Batch = tuple[Tensor, Tensor]


class VisionClassifier(Task):
    """Classifies images (B, C, H, W) with any net that returns logits (B, K).

    Args:
        net: Maps images (B, C, H, W) to logits (B, K).
        class_names: Names of the K classes, in the order of the labels.
        image_size: Height and width of the images in pixels.
        mean: What normalisation subtracted, one figure a channel; pictures are shown de-normalised.
        std: What normalisation divided by, one figure a channel.
        label_smoothing: Share of the target spread over all classes (Szegedy et al., arXiv 1512.00567).
        mixup: Alpha of mixup (Zhang et al., arXiv 1710.09412); 0 turns it off.
        cutmix: Alpha of CutMix (Yun et al., arXiv 1905.04899); 0 turns it off. With mixup too, each batch gets one.
        channels_last: Keep images and weights in channels-last memory, which convolutions like.
        test_time_augmentation: Views averaged by `validate`, `test` and `predict` (not by the validation during `fit`).
        **kwargs: Optimizer and schedule, see `Task`.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        class_names: Sequence[str],
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        channels_last: bool = True,
        test_time_augmentation: Views = "none",
        **kwargs: Any,
    ) -> None:
        super().__init__(net, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing ({label_smoothing}) must be within [0, 1)")
        if mixup < 0 or cutmix < 0:
            raise ValueError(f"mixup ({mixup}) and cutmix ({cutmix}) must not be negative")
        if test_time_augmentation not in get_args(Views):
            raise ValueError(
                f"test_time_augmentation {test_time_augmentation!r} must be one of {list(get_args(Views))}"
            )
        self.class_names = list(class_names)
        self.mean, self.std = list(mean), list(std)
        self.label_smoothing = label_smoothing
        self.test_time_augmentation = test_time_augmentation
        self.example_input_array = torch.zeros(2, len(self.mean), image_size, image_size)

        num_classes = len(self.class_names)
        mixes = [mix(alpha=a, num_classes=num_classes) for mix, a in ((v2.MixUp, mixup), (v2.CutMix, cutmix)) if a]
        self.mix = v2.RandomChoice(mixes) if mixes else None
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.net.to(memory_format=self.memory_format)
        self.train_counts = torch.zeros(2, dtype=torch.int64)
        self.val_metrics = _metrics(num_classes).clone(prefix="val/")
        self.test_metrics = _metrics(num_classes).clone(prefix="test/")

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        return self.net(images.contiguous(memory_format=self.memory_format))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        images, targets = self.mix(images, labels) if self.mix else (images, labels)
        logits = self(images).float()
        loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        dominant = targets if targets.ndim == 1 else targets.argmax(-1)
        self.train_counts += torch.stack(
            [(logits.detach().argmax(-1) == dominant).sum(), labels.new_tensor(len(labels))]
        )
        if self.is_logging_step:
            self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch, self.val_metrics, "val/loss")

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch, self.test_metrics, "test/loss")

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        images, indices = batch
        return {"probabilities": self.probabilities(images), "indices": indices}

    def on_train_epoch_start(self) -> None:
        self.train_counts = torch.zeros(2, dtype=torch.int64, device=self.device)  # right ones, all

    def on_train_epoch_end(self) -> None:
        right, total = self.trainer.strategy.reduce(self.train_counts, reduce_op="sum")
        self.log("train/accuracy", right / total, sync_dist=True)  # the same on every rank already

    # The metrics are emptied before an epoch, not after it: one that was interrupted left its batches behind.
    def on_validation_epoch_start(self) -> None:
        self.val_metrics.reset()

    def on_test_epoch_start(self) -> None:
        self.test_metrics.reset()

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.val_metrics.compute(), prog_bar=True, sync_dist=True)

    def on_test_epoch_end(self) -> None:
        self.log_dict(self.test_metrics.compute(), prog_bar=True, sync_dist=True)

    def probabilities(self, images: Tensor) -> Tensor:
        """Probabilities (B, K), averaged over the test-time views outside of `fit`."""
        fitting = self._trainer is not None and self.trainer.state.fn == "fit"
        views = [images] if fitting else make_views(images, self.test_time_augmentation)
        return mean_probabilities([self(view) for view in views])

    def _evaluate(self, batch: Batch, metrics: MetricCollection, loss_name: str) -> dict[str, Tensor]:
        images, labels = batch
        probabilities = self.probabilities(images)
        if probabilities.shape[1] != len(self.class_names):
            raise ValueError(
                f"the net makes {probabilities.shape[1]} classes and class_names has {len(self.class_names)}"
            )
        loss = F.nll_loss(probabilities.clamp_min(torch.finfo(torch.float32).tiny).log(), labels)
        metrics.update(probabilities, labels)
        self.log(loss_name, loss, on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return {"probabilities": probabilities, "labels": labels}


def _metrics(num_classes: int) -> MetricCollection:
    checked = {"num_classes": num_classes, "validate_args": False}
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(average="micro", **checked),
            "f1": MulticlassF1Score(average="macro", **checked),
            "calibration_error": MulticlassCalibrationError(n_bins=15, **checked),
        }
    )
