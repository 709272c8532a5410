from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from callbacks import throughput


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ((torch.zeros(5, 3), torch.zeros(5)), 5),
        ({"input_ids": torch.zeros(7, 2), "labels": torch.zeros(7)}, 7),
        ([{"x": torch.zeros(2)}], 2),
        (torch.tensor(1.0), 0),
        ("text", 0),
    ],
)
def test_batch_size(batch: Any, size: int) -> None:
    assert throughput.batch_size(batch) == size


class Clock(pl.Callback):
    """A clock by which a training batch takes 1 s, and all of a validation 100 s."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.now += 1

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.now += 60

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.now += 40


@pytest.mark.parametrize("val_check_interval", [1.0, 0.5])
def test_rate_leaves_validation_out(
    tiny: Any, read_events: Any, monkeypatch: pytest.MonkeyPatch, val_check_interval: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(throughput, "time", clock)
    trainer = tiny.trainer(
        max_epochs=3,
        log_every_n_steps=4,
        num_sanity_val_steps=0,
        val_check_interval=val_check_interval,
        callbacks=[throughput.Throughput(), clock],
    )
    trainer.fit(tiny.Task(), tiny.loader(count=16), tiny.loader())
    events = read_events(trainer.log_dir).Scalars("train/samples_per_second")
    assert [(e.step, e.value) for e in events] == [(3, 4.0), (7, 4.0), (11, 4.0)]


def test_accumulation_logs_once_per_logging_step(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(log_every_n_steps=2, accumulate_grad_batches=2, callbacks=[throughput.Throughput()])
    trainer.fit(tiny.Task(), tiny.loader(count=32))
    assert [e.step for e in read_events(trainer.log_dir).Scalars("train/samples_per_second")] == [1, 3]
