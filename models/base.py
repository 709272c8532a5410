"""What every task shares: the optimizer and its schedule, checkpoints that describe themselves, train mode."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from pytorch_lightning import LightningModule
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.utilities.enums import GradClipAlgorithmType
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from models.optim import (
    OptimizerFactory,
    Schedule,
    build_optimizer,
    make_scheduler,
    parameter_groups,
    start_scheduler,
)

PLAIN = (bool, int, float, str, type(None))  # and no subclass: NumPy's float64 is a float that fails to load


class Task(LightningModule):
    """A net with an optimizer and a schedule; subclasses add the loss and the metrics.

    Args:
        net: The net to train; any module that maps the batch's inputs to what the task's loss takes.
        optimizer: Builds the optimizer from parameter groups, e.g. `torch.optim.AdamW`, `torch.optim.SGD` or
            `models.optim.MuonAdamW` by class path. None: AdamW as torch sets it.
        schedule: How the learning rate moves over the run.
        lr_multipliers: Learning-rate multiplier by prefix of parameter name, e.g. `{"backbone": 0.1}`.
        layer_decay: Learning-rate multiplier per stage below the head; 1 gives all layers the same rate.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule = Schedule(),  # noqa: B008 (frozen)
        lr_multipliers: Mapping[str, float] | None = None,
        layer_decay: float = 1.0,
    ) -> None:
        super().__init__()
        self.net = net
        self.optimizer_factory = optimizer or AdamW
        self.schedule = schedule
        self.lr_multipliers = dict(lr_multipliers or {})
        self.layer_decay = layer_decay
        # From the command line the hyperparameters are the plain configuration of every part. From Python they may hold
        # objects, which `weights_only=True` would refuse to load: those are left out. (Ignoring `net` from the start
        # would break reloading what the command line wrote.)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is an instance of `nn.Module`")
            self.save_hyperparameters()
        for key in [key for key, value in self.hparams.items() if not is_plain(value)]:
            del self.hparams[key]
        self._hparams_initial = copy.deepcopy(self.hparams)  # the copy that loggers write
        self._group_options: list[dict[str, Any]] = []
        self._restored_groups: list[dict[str, Any]] = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Name the class: a task that was built in Python records no more than its plain arguments."""
        checkpoint["task_class"] = f"{type(self).__module__}.{type(self).__qualname__}"

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the settings of the optimizer that is about to be resumed, for `configure_optimizers` to check."""
        if self._trainer is not None and self.trainer.state.fn == "fit" and checkpoint.get("optimizer_states"):
            self._restored_groups = checkpoint["optimizer_states"][0]["param_groups"]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer over grouped parameters, and its scheduler stepped once per optimizer step.

        Raises:
            ValueError: Where the checkpoint that is being resumed is of another optimizer or of other groups.
        """
        groups = parameter_groups(self.net, lr_multipliers=self.lr_multipliers, layer_decay=self.layer_decay)
        optimizer = build_optimizer(self.optimizer_factory, groups)
        scheduler = make_scheduler(optimizer, self.schedule)
        self._group_options = [_without_params(group) for group in optimizer.param_groups]
        restored, self._restored_groups = self._restored_groups, []
        if restored:
            check_resumable(restored, self._group_options)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip a fused optimizer's gradients under bf16 too.

        Lightning refuses it under mixed precision altogether, for the sake of a scaler that bf16 has not.

        Raises:
            ValueError: There is a scaler, which a fused optimizer undoes only after the clipping.
        """
        plugin = self.trainer.precision_plugin
        if not gradient_clip_val or not isinstance(plugin, MixedPrecision) or not _unscales(optimizer):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        if plugin.scaler is not None:
            raise ValueError(
                f"gradient_clip_val ({gradient_clip_val}) under 16-mixed needs an optimizer that is not fused: "
                "set --model.optimizer.fused false, or --trainer.precision bf16-mixed"
            )
        algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
        Precision.clip_gradients(plugin, optimizer, gradient_clip_val, algorithm)

    def on_train_start(self) -> None:
        """Tell the schedule how long the run is, and let the configured rates win over those in a checkpoint.

        The length is asked for here and not in `configure_optimizers`, where asking makes Lightning build the loaders
        before it restores their position (pytorch-lightning issue 20550).

        Raises:
            ValueError: Where the schedule needs the run to have an end and it has none.
        """
        scheduler = self.lr_schedulers()
        if not isinstance(scheduler, LambdaLR) or not self._group_options:
            return
        optimizer: Optimizer = scheduler.optimizer
        changed: dict[str, str] = {}
        for group, options in zip(optimizer.param_groups, self._group_options, strict=True):
            for key in options.keys() - {"lr"}:  # which moves; `initial_lr` is the configured one
                if group.get(key) != options[key]:
                    changed.setdefault(key.removeprefix("initial_"), f"{group.get(key)} -> {options[key]}")
            group.update(options)
        if changed:
            shown = ", ".join(f"{key} {change}" for key, change in sorted(changed.items()))
            warnings.warn(f"resumed with other optimizer settings than the checkpoint's: {shown}", stacklevel=2)
        scheduler.base_lrs = [group["initial_lr"] for group in self._group_options]
        start_scheduler(scheduler, self.schedule, _total_steps(self.trainer.estimated_stepping_batches))

    @property
    def is_logging_step(self) -> bool:
        """Whether the logger takes what this training batch logs; an epoch's last batch counts too.

        `self.log` costs 0.3 ms on a CPU whether it is written or not, which shows on a small net: ask first.
        """
        if self._trainer is None:
            return False
        interval: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return interval == 0 or (self.global_step + 1) % interval == 0 or self.trainer.is_last_batch

    def on_fit_start(self) -> None:
        """Train mode for every module: what `from_pretrained` loads comes in eval mode, its dropout off."""
        self.train()


def check_resumable(restored: list[dict[str, Any]], current: list[dict[str, Any]]) -> None:
    """Compare the optimizer settings of a checkpoint with those of now, one dict a parameter group.

    Raises:
        ValueError: Where they are of another optimizer or another number of groups. (Torch would end in a KeyError.)
    """
    advice = "resume with what it was trained with, or start a new run from its weights"
    if len(restored) != len(current):
        raise ValueError(
            f"the checkpoint has {len(restored)} parameter groups and this run has {len(current)} (lr_multipliers, "
            f"layer_decay, the optimizer or the net differ): {advice}"
        )
    for old, new in zip(restored, current, strict=True):
        gone, added = old.keys() - new.keys() - {"params"}, new.keys() - old.keys()
        if gone and added:  # a newer torch only adds settings
            raise ValueError(
                f"the checkpoint is of another optimizer, which has {', '.join(sorted(gone))} and no "
                f"{', '.join(sorted(added))}: {advice}"
            )


def is_plain(value: Any) -> bool:
    """Whether `value` consists of numbers, strings, None, and lists and dicts of them."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return all(map(is_plain, value)) if type(value) in (list, tuple) else type(value) in PLAIN


def _unscales(optimizer: Optimizer) -> bool:
    """Whether the optimizer takes the gradient scaler's factor off by itself, as fused ones do."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _total_steps(estimated: int | float) -> int:
    return 0 if estimated == float("inf") else int(estimated)
