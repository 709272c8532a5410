"""A tiny net with stages, a task whose loss is simple, and a Trainer that is quiet and quick."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from models import Task


class TinyNet(nn.Module):
    """Images (B, 1, 8, 8) to logits (B, 3): a scale in no stage, a convolution stage, a matrix stage, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 1, 1, 1))
        self.body = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()),
                nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.LayerNorm(6)),
            ]
        )
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = images * self.scale
        for stage in self.body:
            x = stage(x)
        return self.head(x)

    @property
    def stages(self) -> list[list[nn.Module]]:
        return [[stage] for stage in self.body]


class TinyTask(Task):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


class Rates(pl.Callback):
    """The rates of every group at each optimizer step."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append([float(group["lr"]) for group in optimizer.param_groups])

    @property
    def first(self) -> list[float]:
        return [rates[0] for rates in self.rates]


def make_data(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(size, 1, 8, 8, generator=generator), torch.arange(size) % 3)


def make_loader(size: int = 12, batch_size: int = 4) -> DataLoader:
    return DataLoader(make_data(size), batch_size=batch_size)


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., pl.Trainer]:
    def build(**options: Any) -> pl.Trainer:
        quiet = {
            "accelerator": "cpu",
            "devices": 1,
            "default_root_dir": tmp_path,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        return pl.Trainer(**(quiet | options))

    return build


@pytest.fixture
def tiny() -> SimpleNamespace:
    torch.manual_seed(0)
    return SimpleNamespace(Net=TinyNet, Task=TinyTask, Rates=Rates, data=make_data, loader=make_loader)
