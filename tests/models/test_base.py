import collections
import functools
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateFinder
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.tuner import Tuner
from torch import nn
from torch.optim import SGD, AdamW

from models.base import is_plain
from models.optim import Schedule


def options() -> dict[str, Any]:
    return {"optimizer": functools.partial(SGD, lr=0.1), "schedule": Schedule("linear"), "lr_multipliers": {"head": 2}}


# --- Hyperparameters and checkpoints


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.5, "text", [1, "a"], (1, 2), {"a": {"b": [None]}}, {"class_path": "x", "init_args": {}}]
)
def test_plain(value: Any) -> None:
    assert is_plain(value)


@pytest.mark.parametrize(
    "value",
    [
        nn.Identity(),
        torch.zeros(1),
        Path("x"),
        np.float64(0.5),  # a float, and yet weights_only=True refuses it
        np.str_("x"),
        [np.float32(1)],
        {"a": {"b": AdamW}},
        {1: 2},
        {3},
        collections.Counter("ab"),
        collections.namedtuple("Pair", "a b")(1, 2),
        Schedule(),
    ],
)
def test_not_plain(value: Any) -> None:
    assert not is_plain(value)


def test_only_plain_hyperparameters_are_kept(tiny: Any) -> None:
    class Child(tiny.Task):
        def __init__(self, net: nn.Module, *, names: Any, count: Any, **kwargs: Any) -> None:
            super().__init__(net, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Lightning advises to ignore `net`; the user has nothing to do
        task = Child(tiny.Net(), names=["a", "b"], count=np.int64(3), layer_decay=0.5, **options())
    expected = {"names": ["a", "b"], "layer_decay": 0.5, "lr_multipliers": {"head": 2}}
    assert dict(task.hparams) == dict(task.hparams_initial) == expected


def test_a_checkpoint_loads_with_weights_only(tiny: Any, trainer: Callable[..., pl.Trainer], tmp_path: Path) -> None:
    task = tiny.Task(tiny.Net(), **options())
    fitter = trainer(max_epochs=1, logger=CSVLogger(tmp_path))  # the logger writes the hyperparameters too
    fitter.fit(task, tiny.loader())
    fitter.save_checkpoint(tmp_path / "task.ckpt")
    content = torch.load(tmp_path / "task.ckpt", weights_only=True)
    assert content["hyper_parameters"] == {"lr_multipliers": {"head": 2}, "layer_decay": 1.0}
    again = tiny.Task.load_from_checkpoint(tmp_path / "task.ckpt", net=tiny.Net(), weights_only=True)
    assert again.lr_multipliers == {"head": 2}
    for expected, value in zip(task.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(value, expected)


def test_resuming_works_with_weights_only(tiny: Any, trainer: Callable[..., pl.Trainer], tmp_path: Path) -> None:
    fitter = trainer(max_epochs=1)
    fitter.fit(tiny.Task(tiny.Net(), **options()), tiny.loader())
    fitter.save_checkpoint(tmp_path / "task.ckpt")
    more = trainer(max_epochs=2)
    more.fit(tiny.Task(tiny.Net(), **options()), tiny.loader(), ckpt_path=tmp_path / "task.ckpt", weights_only=True)
    assert more.global_step == 6


# --- Clipping


class Norms(pl.Callback):
    """The norm of the gradients at each optimizer step, after the clipping."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(trainer.precision_plugin, MixedPrecision):
            return
        wrapped = pl_module.configure_gradient_clipping

        def clip(*args: Any, **kwargs: Any) -> None:
            wrapped(*args, **kwargs)
            gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
            self.norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))

        pl_module.configure_gradient_clipping = clip


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_optimizers_gradients_are_clipped_under_bf16(
    tiny: Any, trainer: Callable[..., pl.Trainer], fused: bool
) -> None:
    norms = Norms()
    task = tiny.Task(tiny.Net(), optimizer=lambda groups: AdamW(groups, lr=0.1, fused=fused))
    trainer(max_epochs=1, precision="bf16-mixed", gradient_clip_val=0.01, callbacks=[norms]).fit(task, tiny.loader())
    assert norms.norms[-1] == pytest.approx(0.01, rel=1e-3)


def test_clipping_what_a_scaler_has_scaled_is_refused_in_words(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    task = tiny.Task(tiny.Net(), optimizer=lambda groups: AdamW(groups, lr=0.1, fused=True))
    plugin = MixedPrecision("16-mixed", "cpu")
    runner = trainer(max_epochs=1, plugins=plugin, gradient_clip_val=0.01)
    with pytest.raises(ValueError, match=r"gradient_clip_val \(0.01\) under 16-mixed needs .* not fused"):
        runner.fit(task, tiny.loader())
    assert runner.global_step == 0


# --- Fitting


def test_default_optimizer_is_adamw_with_a_cosine(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    rates, task = tiny.Rates(), tiny.Task(tiny.Net())
    trainer(max_epochs=1, callbacks=[rates]).fit(task, tiny.loader())
    assert type(task.optimizers().optimizer) is AdamW
    assert rates.first == pytest.approx([1e-3, 5e-4, 0])


def test_a_net_in_eval_mode_is_trained_in_train_mode(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    class Modes(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
            assert all(module.training for module in pl_module.modules())

    net = tiny.Net().eval()
    before = net.body[0][1].running_mean.clone()
    trainer(max_epochs=1, callbacks=[Modes()]).fit(tiny.Task(net), tiny.loader())
    assert not torch.equal(net.body[0][1].running_mean, before)


def test_the_length_of_the_run_is_asked_for_once_training_starts(
    tiny: Any, trainer: Callable[..., pl.Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    wanted = pl.Trainer.estimated_stepping_batches.fget
    configure = tiny.Task.configure_optimizers

    def asked(self: pl.Trainer) -> Any:
        events.append("length")
        return wanted(self)

    def configured(self: Any) -> Any:
        events.append("before")
        result = configure(self)
        events.append("after")
        return result

    monkeypatch.setattr(pl.Trainer, "estimated_stepping_batches", property(asked))
    monkeypatch.setattr(tiny.Task, "configure_optimizers", configured)
    trainer(max_epochs=2).fit(tiny.Task(tiny.Net()), tiny.loader())
    assert events == ["before", "after", "length"]


def test_fitting_twice_starts_the_schedule_again(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    task = tiny.Task(tiny.Net(), **options())
    for _ in range(2):
        rates = tiny.Rates()
        trainer(max_epochs=1, callbacks=[rates]).fit(task, tiny.loader())
        assert rates.first == pytest.approx([0.1, 0.05, 0.0])


def test_a_task_may_bring_its_own_optimizer(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    class Own(tiny.Task):
        def configure_optimizers(self) -> Any:
            optimizer = SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)]

    rates = tiny.Rates()
    trainer(max_epochs=2, callbacks=[rates]).fit(Own(tiny.Net()), tiny.loader())
    assert rates.first == pytest.approx([0.1] * 3 + [0.05] * 3)  # untouched: no schedule of ours to start


# --- Learning-rate finder


def test_learning_rate_finder(tiny: Any, trainer: Callable[..., pl.Trainer], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    task, rates = tiny.Task(tiny.Net(), **options()), tiny.Rates()
    before = {name: value.clone() for name, value in task.state_dict().items()}
    fitter = trainer(max_epochs=5)
    finder = Tuner(fitter).lr_find(task, tiny.loader(), min_lr=1e-4, max_lr=1.0, num_training=10, update_attr=False)
    assert finder is not None
    found = finder.results["lr"]
    assert found == sorted(found)
    assert found[0] == pytest.approx(1e-4)
    assert found[-1] > 0.1
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())
    # the run after it follows the schedule, and no notice of a resumed run is given
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "resumed with other")
        trainer(max_epochs=1, callbacks=[rates]).fit(task, tiny.loader())
    assert rates.first == pytest.approx([0.1, 0.05, 0.0])


def test_finder_that_would_set_a_rate_is_refused(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    finder = LearningRateFinder(num_training_steps=5)
    with pytest.raises(AttributeError, match="should have one of these fields"):  # ours has a rate per group
        trainer(max_epochs=1, callbacks=[finder]).fit(tiny.Task(tiny.Net()), tiny.loader())
