"""The schedule by itself, through a Trainer, and on two ranks."""

import functools
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, IterableDataset

from models.optim import (
    Schedule,
    make_scheduler,
    start_scheduler,
)

ROOT = Path(__file__).resolve().parents[2]
SHAPES: list[Any] = ["constant", "linear", "cosine", "one_cycle"]


def factors(schedule: Schedule, total: int) -> list[float]:
    return [schedule.factor(step, total) for step in range(total)]


def rates_of(scheduler: Any, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def sgd(lr: float = 1.0) -> SGD:
    return SGD([nn.Parameter(torch.zeros(1))], lr=lr)


# --- Schedule


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_is_torch_cosine(floor: float) -> None:
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(sgd(), T_max=19, eta_min=floor)
    assert factors(Schedule("cosine", floor=floor), 20) == pytest.approx(rates_of(oracle, 20), abs=1e-9)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_linear_is_torch_linear(floor: float) -> None:
    oracle = torch.optim.lr_scheduler.LinearLR(sgd(), start_factor=1.0, end_factor=floor, total_iters=19)
    assert factors(Schedule("linear", floor=floor), 20) == pytest.approx(rates_of(oracle, 20), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "schedule", "extra"),
    [
        ("get_linear_schedule_with_warmup", Schedule("linear", warmup=5), {"num_training_steps": 30}),
        ("get_cosine_schedule_with_warmup", Schedule("cosine", warmup=5), {"num_training_steps": 30}),
        (
            "get_cosine_with_min_lr_schedule_with_warmup",
            Schedule("cosine", warmup=5, floor=0.1),
            {"num_training_steps": 30, "min_lr_rate": 0.1},
        ),
        ("get_constant_schedule_with_warmup", Schedule("constant", warmup=5), {}),
    ],
)
def test_warmup_is_that_of_transformers_without_its_wasted_first_step(
    name: str, schedule: Schedule, extra: dict[str, Any]
) -> None:
    from transformers import optimization

    # transformers runs its first step at a rate of 0 and never reaches the last rate of its curve: ours is its curve
    # moved by one step
    oracle = getattr(optimization, name)(sgd(), num_warmup_steps=6, **extra)
    assert factors(schedule, 30) == pytest.approx(rates_of(oracle, 31)[1:], abs=1e-9)


@pytest.mark.parametrize("warmup", [0.0, 0.4, 7])
def test_one_cycle_is_torch_one_cycle(warmup: float) -> None:
    schedule = Schedule("one_cycle", warmup=warmup, floor=1 / 25e4)
    peak = {0.0: 6, 0.4: 8, 7: 7}[warmup]  # of 20 steps; the default is 0.3
    oracle = torch.optim.lr_scheduler.OneCycleLR(
        sgd(), max_lr=1.0, total_steps=20, pct_start=(peak + 1) / 20, div_factor=25, final_div_factor=1e4
    )
    assert factors(schedule, 20) == pytest.approx(rates_of(oracle, 20), abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("warmup", "steps"), [(0.25, 10), (10, 10), (1, 1)])
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_warmup_ends_at_the_peak_and_the_last_step_runs_at_the_floor(
    shape: Any, warmup: float, steps: int, floor: float
) -> None:
    curve = factors(Schedule(shape, warmup=warmup, floor=floor), 40)
    assert curve[steps] == 1.0
    assert max(curve[:steps]) < 1.0
    assert curve[:steps] == sorted(curve[:steps])
    assert min(curve[:steps]) > 0  # no step is wasted at a rate of 0
    assert curve[steps:] == sorted(curve[steps:], reverse=True)
    assert curve[-1] == pytest.approx(1.0 if shape == "constant" else floor)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 2, 100])
def test_factors_of_very_short_runs_are_finite_and_bounded(shape: Any, total: int, warmup: float) -> None:
    curve = factors(Schedule(shape, warmup=warmup), total)
    assert all(0 <= factor <= 1 for factor in curve)
    assert curve[0] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "cosin"}, r"schedule.shape 'cosin' must be one of .*'cosine'"),
        ({"warmup": -0.1}, r"schedule.warmup \(-0.1\) must be a fraction"),
        ({"floor": 1.5}, r"schedule.floor \(1.5\) must be within \[0, 1\]"),
        ({"floor": -1}, r"schedule.floor \(-1\) must be within"),
    ],
)
def test_wrong_schedules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**options)


def test_scheduler_holds_the_rates_until_it_is_started() -> None:
    optimizer = SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)])
    scheduler = make_scheduler(optimizer, Schedule("linear"))
    assert scheduler.get_last_lr() == [1.0, 0.1]
    start_scheduler(scheduler, Schedule("linear"), total_steps=5)
    for step in range(5):
        expected = 1 - step / 4
        assert scheduler.get_last_lr() == pytest.approx([expected, 0.1 * expected])
        assert [group["lr"] for group in optimizer.param_groups] == scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()


# --- Schedule through a Trainer


@pytest.mark.parametrize(
    ("size", "options", "total"),
    [
        (20, {"max_epochs": 2}, 10),
        (20, {"max_epochs": 3, "accumulate_grad_batches": 2}, 9),  # the short last window is a step of its own
        (20, {"max_epochs": 10, "max_steps": 7}, 7),
        (20, {"max_epochs": -1, "max_steps": 7, "accumulate_grad_batches": 3}, 7),
        (20, {"max_epochs": 2, "limit_train_batches": 3}, 6),
    ],
)
@pytest.mark.parametrize("shape", ["linear", "one_cycle"])
def test_trainer_steps_the_schedule_from_end_to_end(
    tiny: Any, trainer: Callable[..., pl.Trainer], size: int, options: dict[str, Any], total: int, shape: Any
) -> None:
    schedule, rates = Schedule(shape, warmup=0.3, floor=0.05), tiny.Rates()
    task = tiny.Task(tiny.Net(), optimizer=functools.partial(SGD, lr=0.2), schedule=schedule)
    trainer(callbacks=[rates], **options).fit(task, tiny.loader(size))
    assert rates.first == pytest.approx([0.2 * factor for factor in factors(schedule, total)])


def test_all_groups_follow_the_schedule_at_their_own_rate(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    schedule, rates = Schedule("cosine", warmup=2), tiny.Rates()
    task = tiny.Task(tiny.Net(), optimizer=AdamW, schedule=schedule, lr_multipliers={"head": 10.0, "body.0": 0.5})
    trainer(max_epochs=2, callbacks=[rates]).fit(task, tiny.loader())
    bases = [1e-3 * group["lr_multiplier"] for group in task.optimizers().param_groups]
    assert sorted(set(bases)) == pytest.approx([5e-4, 1e-3, 1e-2])
    for step, measured in enumerate(rates.rates):
        assert measured == pytest.approx([base * schedule.factor(step, 6) for base in bases])


RANKS = """
    import functools, json, sys
    sys.path[:0] = {paths!r}
    import pytorch_lightning as pl, torch
    from conftest import Rates, TinyNet, TinyTask, make_loader
    from models.optim import Schedule
    class Written(Rates):
        def on_train_end(self, trainer, pl_module):
            with open(f"rates{{trainer.global_rank}}.json", "w") as file:
                json.dump(self.first, file)

    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_fork", max_epochs=2, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Written()],
    )
    schedule = Schedule("linear", warmup=2, floor=0.1)
    trainer.fit(TinyTask(TinyNet(), optimizer=functools.partial(torch.optim.SGD, lr=1.0), schedule=schedule),
                make_loader(25, batch_size=2))
"""


def test_two_ranks_share_one_schedule_of_half_the_steps(tmp_path: Path) -> None:
    paths = [str(ROOT), str(Path(__file__).parent)]
    (tmp_path / "train.py").write_text(textwrap.dedent(RANKS).format(paths=paths))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # 25 samples: 13 a rank, 7 batches, 4 steps an epoch
    expected = factors(Schedule("linear", warmup=2, floor=0.1), 8)
    for rank in range(2):
        assert json.loads((tmp_path / f"rates{rank}.json").read_text()) == pytest.approx(expected)


class StopAfter(pl.Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        trainer.should_stop = trainer.global_step >= self.steps


class Stream(IterableDataset):
    """A loader without a length."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule("cosine"), r"schedule.shape 'cosine' on a run without an end needs max_steps, or max_epochs"),
        (Schedule("one_cycle", warmup=5), "'one_cycle' on a run without an end"),
        (Schedule("constant", warmup=0.1), "'constant' on a run without an end needs a warm-up in steps"),
    ],
)
def test_an_open_ended_run_needs_an_end(
    tiny: Any, trainer: Callable[..., pl.Trainer], schedule: Schedule, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(max_epochs=-1, max_steps=-1).fit(tiny.Task(tiny.Net(), schedule=schedule), tiny.loader())


@pytest.mark.parametrize("warmup", [0, 3])
def test_an_open_ended_run_may_be_constant(tiny: Any, trainer: Callable[..., pl.Trainer], warmup: int) -> None:
    rates = tiny.Rates()
    task = tiny.Task(tiny.Net(), optimizer=functools.partial(SGD, lr=1.0), schedule=Schedule("constant", warmup=warmup))
    trainer(max_epochs=-1, callbacks=[rates, StopAfter(6)]).fit(task, tiny.loader())
    assert rates.first == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1] if warmup else [1.0] * 6)


def test_a_loader_without_length_needs_max_steps(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    loader, rates = DataLoader(Stream(tiny.data(12)), batch_size=4), tiny.Rates()
    with pytest.raises(ValueError, match="max_epochs and a loader with a length"):
        trainer(max_epochs=2).fit(tiny.Task(tiny.Net()), loader)
    task = tiny.Task(tiny.Net(), optimizer=functools.partial(SGD, lr=1.0), schedule=Schedule("linear"))
    trainer(max_steps=5, callbacks=[rates]).fit(task, loader)
    assert rates.first == pytest.approx([1, 0.75, 0.5, 0.25, 0])
