"""When to show what a generative model makes: after validations, within a budget of time."""

import time
from abc import ABC, abstractmethod
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger


class Samples(Callback, ABC):
    """Calls `show` with the last batch of a validation, while averaged weights are in place, and when a fit ends.

    Takes at most 5 % of a fit's time, but for the end, which is always shown. Subclasses say what to show.
    """

    BUDGET = 0.05
    NEEDS = ""  # the method of a task that makes samples; other tasks are left alone

    def __init__(self) -> None:
        self._start = self._spent = self._cost = 0.0
        self._shown_at = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._start, self._spent, self._shown_at = time.perf_counter(), 0.0, -1

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show samples with the last batch, if there is time for them."""
        batches = trainer.num_val_batches
        last = dataloader_idx == len(batches) - 1 and batch_idx + 1 == batches[dataloader_idx]
        elapsed = time.perf_counter() - self._start
        due = trainer.state.fn != "fit" or self._spent + self._cost <= self.BUDGET * elapsed
        if last and due and not trainer.sanity_checking:
            self._show(trainer, pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show what the finished model makes: after every `on_train_end`, where averaged weights become the model's."""
        if self._shown_at != trainer.global_step:
            self._show(trainer, pl_module)

    @abstractmethod
    def show(self, task: Any, boards: list[Any], step: int) -> None:
        """Write samples to TensorBoard's writers."""

    def _show(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        boards = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not trainer.is_global_zero or not boards or not hasattr(pl_module, self.NEEDS):
            return
        start = time.perf_counter()
        self.show(pl_module, boards, trainer.global_step)
        self._shown_at = trainer.global_step
        self._cost = time.perf_counter() - start
        self._spent += self._cost
