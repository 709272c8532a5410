"""A resumed run goes on as the uninterrupted one, and takes what the command line changed."""

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.optim import SGD, AdamW

from models.base import check_resumable
from models.optim import (
    MuonAdamW,
    Schedule,
)


class Killed(Exception):
    pass


class KillAt(pl.Callback):
    """Saves a checkpoint once `step` optimizer steps are done, and ends the run as a crash would."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise Killed


def optimizers(lr: float = 0.1) -> dict[str, Any]:
    return {
        "sgd": functools.partial(SGD, lr=lr, momentum=0.9, weight_decay=0.01),
        "adamw": functools.partial(AdamW, lr=lr),
        "muon": functools.partial(MuonAdamW, lr=lr, adamw_lr=lr / 10, weight_decay=0.01),
    }


@pytest.fixture
def killed(tiny: Any, trainer: Callable[..., pl.Trainer], tmp_path: Path) -> Callable[..., Path]:
    """A run of 4 epochs of 3 steps that was killed, and its checkpoint."""

    def run(task: Any, step: int = 5) -> Path:
        path = tmp_path / "killed.ckpt"
        with pytest.raises(Killed):
            trainer(max_epochs=4, callbacks=[KillAt(step, path)]).fit(task, tiny.loader())
        return path

    return run


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_resumed_rates_continue_exactly(
    tiny: Any, trainer: Callable[..., pl.Trainer], killed: Callable[..., Path], name: str
) -> None:
    schedule = Schedule("one_cycle", floor=0.01)
    whole, rest = tiny.Rates(), tiny.Rates()
    options = {"optimizer": optimizers()[name], "schedule": schedule, "lr_multipliers": {"head": 3.0}}
    trainer(max_epochs=4, callbacks=[whole]).fit(tiny.Task(tiny.Net(), **options), tiny.loader())
    path = killed(tiny.Task(tiny.Net(), **options))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "resumed with other")
        trainer(max_epochs=4, callbacks=[rest]).fit(tiny.Task(tiny.Net(), **options), tiny.loader(), ckpt_path=path)
    assert len(rest.rates) == 7
    assert rest.rates == whole.rates[5:]


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_resumed_weights_are_those_of_the_uninterrupted_run(
    tiny: Any, trainer: Callable[..., pl.Trainer], tmp_path: Path, name: str
) -> None:
    class StopAtEpoch(pl.Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                raise Killed

    start = tiny.Net()
    options = {"optimizer": optimizers()[name], "schedule": Schedule("cosine", warmup=0.2)}
    whole = tiny.Task(copy.deepcopy(start), **options)
    trainer(max_epochs=4, gradient_clip_val=0.5).fit(whole, tiny.loader())
    saver = ModelCheckpoint(dirpath=tmp_path, filename="epoch", save_last=True, save_on_train_epoch_end=True)
    with pytest.raises(Killed):
        trainer(max_epochs=4, gradient_clip_val=0.5, enable_checkpointing=True, callbacks=[saver, StopAtEpoch()]).fit(
            tiny.Task(copy.deepcopy(start), **options), tiny.loader()
        )
    resumed = tiny.Task(tiny.Net(), **options)
    trainer(max_epochs=4, gradient_clip_val=0.5).fit(resumed, tiny.loader(), ckpt_path=tmp_path / "last.ckpt")
    for (name, expected), value in zip(whole.net.state_dict().items(), resumed.net.state_dict().values(), strict=True):
        assert torch.equal(value, expected), name


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_what_is_configured_now_beats_the_checkpoint(
    tiny: Any, trainer: Callable[..., pl.Trainer], killed: Callable[..., Path], name: str
) -> None:
    path = killed(tiny.Task(tiny.Net(), optimizer=optimizers()[name], schedule=Schedule("linear")))
    new, rates = Schedule("cosine", floor=0.1), tiny.Rates()
    task = tiny.Task(tiny.Net(), optimizer=optimizers(lr=0.03)[name], schedule=new)
    with pytest.warns(UserWarning, match=r"resumed with other optimizer settings .*: lr 0\.1 -> 0\.03"):
        trainer(max_epochs=6, callbacks=[rates]).fit(task, tiny.loader(), ckpt_path=path)
    assert rates.first == pytest.approx([0.03 * new.factor(step, 18) for step in range(5, 18)])


def test_new_weight_decay_and_momentum_count_after_resuming(
    tiny: Any, trainer: Callable[..., pl.Trainer], killed: Callable[..., Path]
) -> None:
    path = killed(tiny.Task(tiny.Net(), optimizer=optimizers()["sgd"]))
    task = tiny.Task(tiny.Net(), optimizer=functools.partial(SGD, lr=0.1, momentum=0.5, weight_decay=0.2))
    with pytest.warns(UserWarning, match=r": momentum 0\.9 -> 0\.5, weight_decay 0\.01 -> 0\.2$"):
        trainer(max_epochs=4).fit(task, tiny.loader(), ckpt_path=path)
    groups = task.optimizers().param_groups
    assert {(g["decay"], g["weight_decay"], g["momentum"]) for g in groups} == {(True, 0.2, 0.5), (False, 0.0, 0.5)}


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("sgd", "adamw", "another optimizer, which has dampening, .* and no .*betas.*start a new run"),
        ("adamw", "sgd", "another optimizer, which has .*betas.* and no dampening"),
        ("sgd", "muon", "another optimizer, which has dampening, .* and no .*ns_steps"),
    ],
)
def test_resuming_with_another_optimizer_is_refused(
    tiny: Any, trainer: Callable[..., pl.Trainer], killed: Callable[..., Path], before: str, now: str, message: str
) -> None:
    path = killed(tiny.Task(tiny.Net(), optimizer=optimizers()[before]))
    task = tiny.Task(tiny.Net(), optimizer=optimizers()[now])
    with pytest.raises(ValueError, match=message):
        trainer(max_epochs=4).fit(task, tiny.loader(), ckpt_path=path)
    trainer(max_epochs=1).fit(task, tiny.loader())  # a new run is free to


def test_a_checkpoint_of_an_older_torch_resumes() -> None:
    check_resumable([{"lr": 0.1, "params": [0]}], [{"lr": 0.2, "new_in_torch": None}])
    with pytest.raises(ValueError, match="has 1 parameter groups and this run has 2"):
        check_resumable([{"lr": 0.1}], [{"lr": 0.1}, {"lr": 0.1}])


def test_weights_of_a_checkpoint_may_be_trained_with_another_optimizer(
    tiny: Any, trainer: Callable[..., pl.Trainer], killed: Callable[..., Path]
) -> None:
    path = killed(tiny.Task(tiny.Net(), optimizer=optimizers()["sgd"]))
    task = tiny.Task.load_from_checkpoint(path, net=tiny.Net(), optimizer=AdamW, weights_only=True)
    trainer(max_epochs=1).fit(task, tiny.loader())
