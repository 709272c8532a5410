"""Confusion matrix, most confident mistakes and per-class accuracy of a classifier, for TensorBoard."""

import time
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from callbacks.classification_figures import (
    Mistake,
    draw_confusion_matrix,
    draw_mistakes,
    mistakes_table,
    per_class_table,
)

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
    """Draws the confusion matrix and shows the most confident mistakes; after a test also per-class accuracy.

    Reads `{"probabilities": (B, K), "labels": (B,)}` from the evaluation steps. Mistakes are a grid of images
    (B, C, H, W) from `batch[0]`, or a table of texts, which the datamodule's `sample_texts(split, indices)` gives
    for `batch["indices"]`; a batch with neither still counts in the matrix. The matrix is exact over all ranks;
    the mistakes are those of rank 0.

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
        self._collect(trainer, outputs, batch)

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

    def _collect(self, trainer: pl.Trainer, outputs: Any, batch: Any) -> None:
        if self._counts is None or not isinstance(outputs, dict) or not {"probabilities", "labels"} <= outputs.keys():
            return
        probabilities, labels = outputs["probabilities"].detach().float(), outputs["labels"]
        self._counts += confusion_counts(labels, probabilities.argmax(dim=1), len(self._counts))
        chosen = most_confident_mistakes(probabilities, labels, self.max_mistakes)
        samples = _samples(trainer, batch, chosen)
        if samples is None:
            return
        confidences, predictions = probabilities[chosen].max(dim=1)
        rows = zip(confidences.tolist(), labels[chosen].tolist(), predictions.tolist(), samples, strict=True)
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
        are_texts = bool(self._mistakes) and isinstance(self._mistakes[0].sample, str)
        are_images = bool(self._mistakes) and not are_texts
        grid = draw_mistakes(self._mistakes, names, task.mean, task.std) if are_images else None
        for logger in _tensorboards(trainer):
            logger.experiment.add_image(f"{split}/confusion_matrix", matrix, step, dataformats="HWC")
            if are_texts:
                logger.experiment.add_text(f"{split}/mistakes", mistakes_table(self._mistakes, names), step)
            if grid is not None:
                logger.experiment.add_image(f"{split}/mistakes", grid, step, dataformats="HWC")
            if split == "test":
                logger.experiment.add_text("test/per_class_accuracy", per_class_table(counts, names), step)
        self._last_cost = time.perf_counter() - start
        self._spent += self._last_cost


def _samples(trainer: pl.Trainer, batch: Any, chosen: Tensor) -> Iterable[Tensor | str] | None:
    """The images or texts of a batch at the chosen places, or None where it has neither."""
    if isinstance(batch, dict):
        datamodule: Any = getattr(trainer, "datamodule", None)
        if "indices" not in batch or not hasattr(datamodule, "sample_texts"):
            return None
        return datamodule.sample_texts("test" if trainer.testing else "val", batch["indices"][chosen].tolist())
    images = batch[0] if isinstance(batch, list | tuple) else None
    return images[chosen].cpu() if isinstance(images, Tensor) and images.ndim == 4 else None


def _tensorboards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
