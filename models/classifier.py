"""What the classifiers share: cross-entropy, distillation, exact metrics."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MulticlassF1Score,
    MulticlassMatthewsCorrCoef,
)

from models.base import Task
from models.distillation import Distillation, Distiller, initialise_from
from models.nets.pretrained import pretrained_weights_wanted


class Classifier(Task):
    """Trains and evaluates a net that makes logits (B, K); subclasses turn a batch into the net's inputs.

    Args:
        net: Maps inputs to logits (B, K).
        class_names: Names of the K classes, in the order of the labels.
        label_smoothing: Share of the target spread over all classes (Szegedy et al., arXiv 1512.00567).
        distillation: Learn from a trained task besides the labels.
        **kwargs: Optimizer and schedule, see `Task`.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        class_names: Sequence[str],
        label_smoothing: float = 0.0,
        distillation: Distillation | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(net, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing ({label_smoothing}) must be within [0, 1)")
        self.class_names = list(class_names)
        self.label_smoothing = label_smoothing
        self.distillation = distillation
        self.distiller: Distiller | None = None
        if distillation is not None and pretrained_weights_wanted():  # and not about to be filled from a checkpoint
            self.distiller = Distiller(distillation, net, self.class_names)
            if distillation.initialise:
                initialise_from(net, self.distiller.teacher)
        num_classes = len(self.class_names)
        self.train_counts = torch.zeros(2, dtype=torch.int64)
        self.val_metrics = _metrics(num_classes).clone(prefix="val/")
        self.test_metrics = _metrics(num_classes).clone(prefix="test/")

    def setup(self, stage: str) -> None:
        """A run that is resumed needs the teacher as well; one that only evaluates does without."""
        if stage == "fit" and self.distillation is not None and self.distiller is None:
            self.distiller = Distiller(self.distillation, self.net, self.class_names)

    def train_on(self, inputs: Any, targets: Tensor) -> Tensor:
        """Loss of a training batch.

        Args:
            inputs: What the net takes: a tensor, or a dict of tensors that go by keyword.
            targets: Labels (B,), or probabilities (B, K) of mixed samples.
        """
        if self.distiller is None:
            logits = call(self, inputs).float()
            loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        else:
            logits, extra = self.distiller(lambda: call(self, inputs), inputs)
            loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
            loss = (1 - self.distiller.options.weight) * loss + extra
        dominant = targets if targets.ndim == 1 else targets.argmax(-1)
        self.train_counts += torch.stack(
            [(logits.detach().argmax(-1) == dominant).sum(), dominant.new_tensor(len(dominant))]
        )
        if self.is_logging_step:
            self.log("train/loss", loss, prog_bar=True)
        return loss

    def evaluate(self, probabilities: Tensor, labels: Tensor, split: str) -> dict[str, Tensor]:
        """Count a batch of probabilities (B, K) in the metrics of `split`; the output of an evaluation step."""
        if probabilities.shape[1] != len(self.class_names):
            raise ValueError(
                f"the net makes {probabilities.shape[1]} classes and class_names has {len(self.class_names)}"
            )
        loss = F.nll_loss(probabilities.clamp_min(torch.finfo(torch.float32).tiny).log(), labels)
        (self.val_metrics if split == "val" else self.test_metrics).update(probabilities, labels)
        self.log(f"{split}/loss", loss, on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return {"probabilities": probabilities, "labels": labels}

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


def call(module: nn.Module, inputs: Any) -> Tensor:
    """The module's output for a tensor, or for a dict of tensors that go by keyword."""
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)


def _metrics(num_classes: int) -> MetricCollection:
    checked = {"num_classes": num_classes, "validate_args": False}
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(average="micro", **checked),
            "f1": MulticlassF1Score(average="macro", **checked),
            "matthews": MulticlassMatthewsCorrCoef(**checked),
            "calibration_error": MulticlassCalibrationError(n_bins=15, **checked),
        }
    )
