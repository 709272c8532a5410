"""Training samples per second, for the dashboard.

Lightning's ThroughputMonitor takes its batch size from a callable, shows no rate before its window of 100
batches is full and synchronises the GPU at every step; this one works from plain YAML, from the first
logging step on.
"""

import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor


def batch_size(batch: Any) -> int:
    """The number of samples in a batch: the length of the first tensor of a tuple, list or dict, or 0."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 0
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((size for size in map(batch_size, parts) if size), 0)


class Throughput(Callback):
    """Logs `train/samples_per_second`, all ranks together, over the steps since the last logging step.

    Waiting for data is part of the time; validation, and what comes with it (checkpoints, figures), is not.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._start = 0.0
        self._paused_at: float | None = None
        self._last_step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._samples, self._start, self._paused_at = 0, time.perf_counter(), None
        self._last_step = trainer.global_step

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._paused_at = time.perf_counter()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the clock go on after a validation at the end of an epoch."""
        self._resume()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the clock go on after a validation within an epoch."""
        self._resume()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and log at logging steps."""
        self._samples += batch_size(batch)
        step: int = trainer.global_step
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if step == self._last_step or not interval or step % interval:  # the same step: gradients are being accumulated
            return
        self._last_step = step
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        pl_module.log("train/samples_per_second", self._samples * trainer.world_size / max(now - self._start, 1e-9))
        self._samples, self._start = 0, now

    def _resume(self) -> None:
        if self._paused_at is not None:
            self._start += time.perf_counter() - self._paused_at
            self._paused_at = None
