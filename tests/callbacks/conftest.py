"""A tiny classifier with stages, BatchNorm and random images, and a Trainer that is quiet and quick."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class TinyNet(nn.Module):
    """Three stages of convolution and BatchNorm; the normalisation between them is in no stage."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for c in (1, 4, 4)
        )
        self.between = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    @property
    def stages(self) -> list[list[nn.Module]]:
        return [[block] for block in self.blocks]

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.blocks[0](x * self.scale))
        return self.head(self.blocks[2](self.blocks[1](x)).mean(dim=(2, 3)))


class TinyTask(pl.LightningModule):
    """A classifier that keeps to the contracts of a task."""

    def __init__(self, learning_rate: float = 0.1, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = TinyNet()
        self.class_names, self.mean, self.std = ["cat", "dog|wolf", "$x_2$ \N{SNOWMAN}"], [0.5], [0.25]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"probabilities": self.net(batch[0]).softmax(1), "indices": batch[1]}

    def _evaluate(self, batch: Any, split: str) -> dict[str, Tensor]:
        logits = self.net(batch[0])
        self.log(f"{split}/loss", nn.functional.cross_entropy(logits, batch[1]))
        self.log(f"{split}/accuracy", (logits.argmax(1) == batch[1]).float().mean())
        return {"probabilities": logits.softmax(1), "labels": batch[1]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["learning_rate"], weight_decay=0.1)


def make_data(count: int = 12, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 4, 4, generator=generator)
    return TensorDataset(images, torch.randint(3, (count,), generator=generator))


def make_loader(count: int = 12, batch_size: int = 4, seed: int = 0) -> DataLoader[Any]:
    return DataLoader(make_data(count, seed), batch_size=batch_size)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The tiny classes and functions, and `trainer(**options)`, which logs to TensorBoard in tmp_path."""

    def trainer(**options: Any) -> pl.Trainer:
        logger = TensorBoardLogger(tmp_path, name="run", default_hp_metric=False)
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "logger": logger,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
        }
        return pl.Trainer(**(defaults | options))

    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: on a busy machine threads wait for each other
    yield SimpleNamespace(Task=TinyTask, Net=TinyNet, loader=make_loader, data=make_data, trainer=trainer)
    torch.set_num_threads(threads)


@pytest.fixture
def read_events() -> Any:
    """Reads the event files of a folder back: tags of a kind, and their events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder: Any) -> EventAccumulator:
        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()

    return read
