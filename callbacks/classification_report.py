"""Confusion matrix, most confident mistakes and per-class accuracy of a classifier, for TensorBoard."""

import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from callbacks.classification_figures import Mistake, draw_confusion_matrix, draw_mistakes, per_class_table

DRAWING_BUDGET = 0.01  # the share of a fit's time that figures may take


def confusion_counts(labels: Tensor, predictions: Tensor, num_classes: int) -> Tensor:
    """Count how often each class (row) was taken for each (column): (B,), (B,) -> (K, K) int64."""
    return torch.bincount(labels * num_classes + predictions, minlength=num_classes**2).view(num_classes, num_classes)


def most_confident_mistakes(probabilities: Tensor, labels: Tensor, count: int) -> Tensor:
    """Indices of a batch's `count` most confident mistakes, in that order: (B, K), (B,) -> (M,) int64."""
    confidence, predictions = probabilities.max(dim=1)
    wrong = (predictions != labels).nonzero().flatten()
    order = confidence[wrong].argsort(descending=True, stable=True)
    return wrong[order[:count]]


class ClassificationReport(Callback):
    """Draws the confusion matrix and the most confident mistakes; after a test also per-class accuracy.

    Reads `{"probabilities": (B, K), "labels": (B,)}` from the evaluation steps and images (B, C, H, W) from
    `batch[0]`; a batch without images still counts in the matrix. The matrix is exact over all ranks; the
    mistakes are those of rank 0.

    Tags: `val/confusion_matrix`, `val/mistakes`, `test/confusion_matrix`, `test/mistakes`,
    `test/per_class_accuracy`.

    Args:
        every_n_epochs: How often validation is drawn during a fit. None draws as often as keeps drawing
            under 1 % of the time. The last validation of a fit, and every `validate` and `test`, is always
            drawn.
        max_mistakes: How many mistakes the grid shows, 0 to 64.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(self, *, every_n_epochs: int | None = None, max_mistakes: int = 16) -> None:
        if every_n_epochs is not None and every_n_epochs < 1:
            raise ValueError(f"every_n_epochs ({every_n_epochs}) must be 1 or more, or null to bound the time instead")
        if not 0 <= max_mistakes <= 64:
            raise ValueError(f"max_mistakes ({max_mistakes}) must be from 0 to 64")
        self.every_n_epochs, self.max_mistakes = every_n_epochs, max_mistakes
        self._counts: Tensor | None = None  # None: not collecting
        self._mistakes: list[Mistake] = []
        self._undrawn_step: int | None = None  # the step of a validation that has not been drawn
        self._start, self._spent, self._last_cost = 0.0, 0.0, 0.5

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock that drawing is measured against."""
        self._start, self._spent, self._undrawn_step = time.perf_counter(), 0.0, None

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to collect."""
        self._begin(trainer, pl_module)

    on_test_start = on_validation_start

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect a batch."""
        self._collect(outputs, batch)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw, or keep what was collected in case this was the last validation."""
        self._sum_over_ranks(trainer)
        if self._counts is None:
            return
        if trainer.state.fn != "fit" or self._is_due(trainer.current_epoch):
            self._draw(trainer, pl_module, "val", trainer.global_step)
        else:
            self._undrawn_step = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the last validation, whatever ended the fit."""
        if self._undrawn_step is not None:
            self._draw(trainer, pl_module, "val", self._undrawn_step)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw, and write the table."""
        self._sum_over_ranks(trainer)
        self._draw(trainer, pl_module, "test", trainer.global_step)

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        num_classes = len(getattr(pl_module, "class_names", ()))
        active = num_classes > 0 and not trainer.sanity_checking and bool(_tensorboards(trainer))
        shape = (num_classes, num_classes)
        self._counts = torch.zeros(shape, dtype=torch.int64, device=pl_module.device) if active else None
        self._mistakes = []

    def _collect(self, outputs: Any, batch: Any) -> None:
        if self._counts is None or not isinstance(outputs, dict) or not {"probabilities", "labels"} <= outputs.keys():
            return
        probabilities, labels = outputs["probabilities"].detach().float(), outputs["labels"]
        self._counts += confusion_counts(labels, probabilities.argmax(dim=1), len(self._counts))
        images = batch[0] if isinstance(batch, list | tuple) else None
        if not isinstance(images, Tensor) or images.ndim != 4:
            return
        chosen = most_confident_mistakes(probabilities, labels, self.max_mistakes)
        confidences, predictions = probabilities[chosen].max(dim=1)
        rows = zip(
            confidences.tolist(),
            labels[chosen].tolist(),
            predictions.tolist(),
            images[chosen].cpu(),
            strict=True,
        )
        self._mistakes += [Mistake(*row) for row in rows]
        self._mistakes = sorted(self._mistakes, key=lambda mistake: -mistake.confidence)[: self.max_mistakes]

    def _sum_over_ranks(self, trainer: pl.Trainer) -> None:
        if self._counts is not None:
            self._counts = trainer.strategy.reduce(self._counts, reduce_op="sum")

    def _is_due(self, epoch: int) -> bool:
        if self.every_n_epochs is not None:
            return (epoch + 1) % self.every_n_epochs == 0
        return self._spent + self._last_cost <= DRAWING_BUDGET * (time.perf_counter() - self._start)

    def _draw(self, trainer: pl.Trainer, pl_module: pl.LightningModule, split: str, step: int) -> None:
        self._undrawn_step = None
        if not trainer.is_global_zero or self._counts is None or not self._counts.any():
            return
        start = time.perf_counter()
        task: Any = pl_module
        counts, names = self._counts.cpu(), list(task.class_names)
        matrix = draw_confusion_matrix(counts, names)
        grid = draw_mistakes(self._mistakes, names, task.mean, task.std) if self._mistakes else None
        for logger in _tensorboards(trainer):
            logger.experiment.add_image(f"{split}/confusion_matrix", matrix, step, dataformats="HWC")
            if grid is not None:
                logger.experiment.add_image(f"{split}/mistakes", grid, step, dataformats="HWC")
            if split == "test":
                logger.experiment.add_text("test/per_class_accuracy", per_class_table(counts, names), step)
        self._last_cost = time.perf_counter() - start
        self._spent += self._last_cost


def _tensorboards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
