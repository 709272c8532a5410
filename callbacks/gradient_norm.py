"""The total 2-norm of the gradients, before clipping, at the logger's interval."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer


def gradient_norm(optimizer: Optimizer) -> Tensor:
    """The 2-norm of all gradients of an optimizer's parameters taken as one vector, a scalar tensor."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded parameters: the sum of all ranks


class GradientNorm(Callback):
    """Logs `train/gradient_norm`, the norm that clipping compares with its limit, at logging steps only."""

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Log the norm. Lightning calls this after unscaling and before clipping."""
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not trainer.loggers or interval == 0 or (trainer.global_step + 1) % interval:
            return
        norm = gradient_norm(optimizer)
        scaler: torch.amp.GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            norm = norm / scaler.get_scale()  # a fused optimizer unscales within its own step, after this hook
        pl_module.log("train/gradient_norm", norm)
