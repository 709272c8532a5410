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
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def batch_size(batch: Any) -> int:
    """The number of samples in a batch: the length of the first tensor of a tuple, list or dict, or 0."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 0
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((size for size in map(batch_size, parts) if size), 0)


def count_tokens(batch: Any) -> int:
    """The tokens of a batch of texts, padding left out; 0 of anything else."""
    if not isinstance(batch, dict) or "input_ids" not in batch:
        return 0
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()


def flops_per_token(net: nn.Module, batch: Any) -> float:
    """Floating-point operations of a training step for each token of a batch: three times those of a forward pass."""
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "indices")}
    with torch.random.fork_rng(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(**inputs)
    return 3 * counter.get_total_flops() / count_tokens(batch)


def peak_flops(device: torch.device, dtype: torch.dtype, size: int = 1024) -> float:
    """Operations a second of a large matrix product, the most that a net can hope for: measured, since CPUs differ."""
    x = torch.randn(size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        x @ x
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


class Throughput(Callback):
    """Logs `train/samples_per_second`, all ranks together, over the steps since the last logging step.

    For texts also `train/tokens_per_second` and `train/model_flops_utilization`, the share of the operations that the
    device could have done in that time, by the speed of a large matrix product (PaLM, arXiv 2204.02311, appendix B).

    Waiting for data is part of the time; validation, and what comes with it (checkpoints, figures), is not.
    """

    def __init__(self) -> None:
        self._samples = self._tokens = 0
        self._flops_share: float | None = None  # of a second of the device, for a token
        self._start = 0.0
        self._paused_at: float | None = None
        self._last_step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._samples, self._tokens, self._start, self._paused_at = 0, 0, time.perf_counter(), None
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
        self._tokens += (tokens := count_tokens(batch))
        if tokens and self._flops_share is None:
            low = str(trainer.precision).startswith("bf16")
            peak = peak_flops(pl_module.device, torch.bfloat16 if low else torch.float32)
            self._flops_share = flops_per_token(pl_module.net, batch) / peak  # type: ignore[arg-type]
            self._samples, self._tokens, self._start = 0, 0, time.perf_counter()  # that took a moment
        step: int = trainer.global_step
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if step == self._last_step or not interval or step % interval:  # the same step: gradients are being accumulated
            return
        self._last_step = step
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds = max(now - self._start, 1e-9)
        pl_module.log("train/samples_per_second", self._samples * trainer.world_size / seconds)
        if self._flops_share is not None:
            pl_module.log("train/tokens_per_second", self._tokens * trainer.world_size / seconds)
            pl_module.log("train/model_flops_utilization", self._tokens * self._flops_share / seconds)
        self._samples, self._tokens, self._start = 0, 0, now

    def _resume(self) -> None:
        if self._paused_at is not None:
            self._start += time.perf_counter() - self._paused_at
            self._paused_at = None
