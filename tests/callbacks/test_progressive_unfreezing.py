from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy
from torch import nn

from callbacks.progressive_unfreezing import ProgressiveUnfreezing, freeze_below, open_stages


def test_schedule_against_a_table() -> None:
    counts = [open_stages(e, head_epochs=2, epochs_per_stage=3, stages=3) for e in range(13)]
    assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3]
    assert [open_stages(e, head_epochs=0, epochs_per_stage=1, stages=2) for e in range(4)] == [1, 2, 2, 2]
    assert open_stages(100, head_epochs=1, epochs_per_stage=1, stages=0) == 0


@pytest.mark.parametrize(("num_open", "expected"), [(0, {"head"}), (1, {"head", "blocks.2"})])
def test_only_the_open_parts_train(tiny: Any, num_open: int, expected: set[str]) -> None:
    net = tiny.Net()
    freeze_below(net, num_open, set(net.parameters()))
    assert {n.rsplit(".", 1)[0] for n, m in net.named_modules() if m.training and n} - {"blocks"} >= expected
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    assert trained == {n for n, _ in net.named_parameters() if any(n.startswith(e + ".") for e in expected)}
    assert not net.between.training
    assert net.training


def test_all_open_trains_what_is_in_no_stage_and_keeps_what_was_frozen_before(tiny: Any) -> None:
    net = tiny.Net()
    net.blocks[1][0].bias.requires_grad_(False)
    trainable = {p for p in net.parameters() if p.requires_grad}
    freeze_below(net, 0, trainable)
    freeze_below(net, 3, trainable)
    assert [n for n, p in net.named_parameters() if not p.requires_grad] == ["blocks.1.0.bias"]
    assert all(module.training for module in net.modules())


def test_a_tied_parameter_trains_with_its_open_part() -> None:
    embed, head = nn.Linear(3, 3), nn.Linear(3, 3)
    head.weight = embed.weight
    net: Any = nn.ModuleDict({"embed": embed, "head": head})
    net.stages = [[embed]]
    freeze_below(net, 0, set(net.parameters()))
    assert head.weight.requires_grad
    assert not embed.bias.requires_grad


class Snapshots(pl.Callback):
    """The state of the net after each epoch, validation in mid-epoch and at its end included."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.states.setdefault(-1, self._state(pl_module))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.states[trainer.current_epoch] = self._state(pl_module)

    @staticmethod
    def _state(pl_module: Any) -> dict[str, Any]:
        return {name: value.clone() for name, value in pl_module.net.state_dict().items()}


def test_frozen_parameters_and_buffers_are_bit_identical_until_their_stage_opens(tiny: Any) -> None:
    snapshots, task = Snapshots(), tiny.Task()
    callbacks = [ProgressiveUnfreezing(), snapshots]
    trainer = tiny.trainer(max_epochs=5, val_check_interval=0.5, callbacks=callbacks, logger=False)
    trainer.fit(task, tiny.loader(), tiny.loader())
    opens = {"head": 0, "blocks.2": 1, "blocks.1": 2, "blocks.0": 3, "between": 3, "scale": 3}
    for name, start in snapshots.states[-1].items():
        opened = next(epoch for prefix, epoch in opens.items() if name.startswith(prefix))
        for epoch in range(5):
            same = torch.equal(snapshots.states[epoch][name], start)
            assert same == (epoch < opened), (name, epoch)
    assert all(p.requires_grad for p in task.parameters())
    assert len(trainer.optimizers[0].param_groups) == 1


@pytest.mark.parametrize("stop", ["epoch", "step"])
def test_a_resumed_run_reproduces_the_uninterrupted_one(tiny: Any, tmp_path: Any, stop: str) -> None:
    def fit(ckpt_path: str | None = None, **options: Any) -> tuple[Any, str]:
        pl.seed_everything(1)
        task = tiny.Task()
        saver = ModelCheckpoint(tmp_path, save_last=True, enable_version_counter=False)
        callbacks = [ProgressiveUnfreezing(head_epochs=1), saver]
        trainer = tiny.trainer(callbacks=callbacks, enable_checkpointing=True, logger=False, **options)
        trainer.fit(task, tiny.loader(), ckpt_path=ckpt_path)
        return task.state_dict(), str(tmp_path / "last.ckpt")

    whole, _ = fit(max_epochs=4)
    _, checkpoint = fit(max_epochs=2) if stop == "epoch" else fit(max_steps=6, max_epochs=4)
    resumed, _ = fit(checkpoint, max_epochs=4)
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (DDPStrategy(), "ddp_find_unused_parameters_true"),
        (DDPStrategy(find_unused_parameters=True, static_graph=True), "static_graph"),
        (FSDPStrategy(), "FSDPStrategy"),
    ],
)
def test_strategies_that_would_go_wrong_are_refused(tiny: Any, strategy: Any, message: str) -> None:
    trainer: Any = SimpleNamespace(strategy=strategy, max_epochs=9)
    with pytest.raises(ValueError, match=message):
        ProgressiveUnfreezing().setup(trainer, tiny.Task(), "fit")


def test_ddp_that_finds_unused_parameters_is_accepted(tiny: Any) -> None:
    trainer: Any = SimpleNamespace(strategy=DDPStrategy(find_unused_parameters=True), max_epochs=9)
    ProgressiveUnfreezing().setup(trainer, tiny.Task(), "fit")


def test_a_schedule_that_the_run_is_too_short_for_is_told(tiny: Any) -> None:
    with pytest.warns(UserWarning, match=r"max_epochs \(2\) ends with 1 of 3 stages"):
        tiny.trainer(max_epochs=2, callbacks=[ProgressiveUnfreezing()], logger=False).fit(tiny.Task(), tiny.loader())


def test_wrong_options_are_named(tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"epochs_per_stage \(0\)"):
        ProgressiveUnfreezing(epochs_per_stage=0)
    with pytest.raises(ValueError, match=r"head_epochs \(-1\)"):
        ProgressiveUnfreezing(head_epochs=-1)
    with pytest.raises(ValueError, match=r"stages \(-1\)"):
        ProgressiveUnfreezing(stages=-1)
    with pytest.raises(ValueError, match=r"stages \(4\) must be at most 3"):
        tiny.trainer(callbacks=[ProgressiveUnfreezing(stages=4)], logger=False).fit(tiny.Task(), tiny.loader())
    task = tiny.Task()
    task.net = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="Linear lacks them"):
        tiny.trainer(callbacks=[ProgressiveUnfreezing()], logger=False).fit(task, tiny.loader())
