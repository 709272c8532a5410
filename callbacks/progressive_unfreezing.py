"""Progressive unfreezing (ULMFiT, arXiv 1801.06146, section 3.3).

The head trains first, then the backbone joins from its output side.
Works on one device and under DDP with `find_unused_parameters=True`; other strategies are refused.
"""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from pytorch_lightning.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn


def open_stages(epoch: int, *, head_epochs: int, epochs_per_stage: int, stages: int) -> int:
    """How many backbone stages train in an epoch (0-based), counted from the output side.

    A function of the epoch alone, so a resumed run is right without any saved state.
    """
    if epoch < head_epochs:
        return 0
    return min(stages, 1 + (epoch - head_epochs) // epochs_per_stage)


def freeze_below(net: Any, num_open: int, trainable: set[nn.Parameter]) -> None:
    """Let the head and the last `num_open` stages of a net train, and freeze the rest.

    Frozen parts are put into eval mode: their BatchNorm statistics stay bit-identical, their dropout is
    off.

    Args:
        net: A net with `head` and `stages` (lists of modules, input to output). What is in neither counts
            as stage 0.
        num_open: How many stages train, counted from the output side.
        trainable: The parameters that may train at all; others stay frozen whatever the stage.
    """
    stages: list[list[nn.Module]] = [list(stage) for stage in net.stages]
    parts: list[tuple[nn.Module, bool]] = [(net.head, True)]
    parts += [(part, index >= len(stages) - num_open) for index, stage in enumerate(stages) for part in stage]
    placed = {module for part, _ in parts for module in part.modules()}
    all_open = num_open == len(stages)
    # Neither inside a part nor around one: for instance a normalisation that stands between two stages.
    parts += [(module, all_open) for module in net.modules() if placed.isdisjoint(module.modules())]

    open_parameters = {p for part, is_open in parts if is_open for p in part.parameters()}
    for parameter in net.parameters():
        parameter.requires_grad_(parameter in trainable and (all_open or parameter in open_parameters))
    for is_open in (False, True):  # what an open part shares with a frozen one ends in train mode
        for part, part_is_open in parts:
            if part_is_open == is_open:
                part.train(is_open)


class ProgressiveUnfreezing(Callback):
    """Trains the head first and then opens the backbone stage by stage, from the output side to the input.

    All parameters are in the optimizer from the start and only `requires_grad` changes. Adding parameter
    groups on the way (Lightning's BaseFinetuning) breaks schedules, which hold one base rate per group, and
    resuming, which needs the saved number of groups. A frozen parameter has no gradient, and optimizers
    skip those: neither weight decay nor momentum moves it.

    Args:
        head_epochs: Epochs in which the head trains alone. 0 opens the last stage at once.
        epochs_per_stage: Epochs from the opening of one stage to the next.
        stages: How many stages get opened in all, counted from the output side. None opens all, 0 none
            (linear probe).

    Raises:
        ValueError: If an option is out of range, the net declares no stages, or the strategy can't freeze
        on the way.
    """

    def __init__(self, *, head_epochs: int = 1, epochs_per_stage: int = 1, stages: int | None = None) -> None:
        if head_epochs < 0:
            raise ValueError(f"head_epochs ({head_epochs}) must be 0 or more")
        if epochs_per_stage < 1:
            raise ValueError(f"epochs_per_stage ({epochs_per_stage}) must be 1 or more")
        if stages is not None and stages < 0:
            raise ValueError(f"stages ({stages}) must be 0 or more, or null for all stages")
        self.head_epochs, self.epochs_per_stage, self.stages = head_epochs, epochs_per_stage, stages
        self._trainable: set[nn.Parameter] = set()
        self._announced = -1

    def num_open(self, net: Any, epoch: int) -> int:
        """How many stages of a net train in an epoch."""
        wanted = len(net.stages) if self.stages is None else self.stages
        return open_stages(epoch, head_epochs=self.head_epochs, epochs_per_stage=self.epochs_per_stage, stages=wanted)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what would fail, or silently go wrong, later."""
        if stage != "fit":
            return
        net: Any = pl_module.net
        if not getattr(net, "stages", None) or not hasattr(net, "head"):
            raise ValueError(
                f"ProgressiveUnfreezing needs a net with `stages` and `head`; {type(net).__name__} lacks them"
            )
        num_stages = len(net.stages)
        if self.stages is not None and self.stages > num_stages:
            raise ValueError(f"stages ({self.stages}) must be at most {num_stages}, the stages of {type(net).__name__}")
        _check_strategy(trainer.strategy)
        wanted = num_stages if self.stages is None else self.stages
        if trainer.max_epochs and trainer.max_epochs > 0:
            reached = self.num_open(net, trainer.max_epochs - 1)
            if reached < wanted:
                rank_zero_warn(f"max_epochs ({trainer.max_epochs}) ends with {reached} of {wanted} stages opened")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Freeze for the first time.

        Not before: DDP never synchronises a parameter that was frozen when the model was wrapped, and
        optimizers are often built from what requires a gradient. Both are done by now. A run resumed in
        mid-epoch gets only this hook.
        """
        net: Any = pl_module.net
        self._trainable = {p for p in net.parameters() if p.requires_grad}
        self._announced = -1
        self._apply(trainer, net)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open what the schedule opens in this epoch (validation restores the modes it found)."""
        self._apply(trainer, pl_module.net)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the net as it came: trainable."""
        self._restore(pl_module.net)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the net as it came: trainable."""
        self._restore(pl_module.net)

    def _restore(self, net: Any) -> None:
        if self._trainable:  # empty before the training has begun
            freeze_below(net, len(net.stages), self._trainable)
            self._trainable = set()

    def _apply(self, trainer: pl.Trainer, net: Any) -> None:
        num_open = self.num_open(net, trainer.current_epoch)
        freeze_below(net, num_open, self._trainable)
        if num_open != self._announced:
            training = sum(p.numel() for p in net.parameters() if p.requires_grad)
            total = sum(p.numel() for p in net.parameters())
            rank_zero_info(
                f"Epoch {trainer.current_epoch}: the head and {num_open} of {len(net.stages)} stages train,"
                f" {training:,} of {total:,} parameters"
            )
            self._announced = num_open


def _check_strategy(strategy: Strategy) -> None:
    if isinstance(strategy, SingleDeviceStrategy):
        return
    options = getattr(strategy, "_ddp_kwargs", {})
    if not isinstance(strategy, DDPStrategy):
        raise ValueError(
            f"ProgressiveUnfreezing can't freeze parameters under {type(strategy).__name__};"
            " train on one device or with `--trainer.strategy ddp_find_unused_parameters_true`"
        )
    if not options.get("find_unused_parameters") or options.get("static_graph"):
        raise ValueError(
            "ProgressiveUnfreezing leaves parameters without gradients, which DDP must be told, never with"
            " static_graph: use `--trainer.strategy ddp_find_unused_parameters_true`"
        )
