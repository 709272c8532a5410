"""Time a step of Lightning with this project's callbacks, logger and progress bar against a plain PyTorch loop.

The two alternate in one process over the same loader, net and optimizer, so that a machine that slows down slows both;
the figures are medians over the rounds. Validation and checkpoints are outside of a step and not counted.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_app.cli import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument(
        "--config", default="configs/vision.yaml", help="the recipe whose net, data and Trainer are used"
    )
    parser.add_argument("--epochs", type=int, default=10, help="epochs a round; the fastest counts")


class TinyNet(nn.Module):
    """Shows the cost of a step that has next to no work in it."""

    def __init__(self, pixels: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(pixels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


class Stopwatch(Callback):
    """Seconds from the start of each training epoch to the end of its last step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.start = self.end = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.end = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds.append(self.end - self.start)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for a real net, and one for a net with next to no work in it."""
    return [measure(label, tiny, args) for label, tiny in (("the recipe's net", False), ("a linear layer", True))]


def measure(label: str, tiny: bool, args: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two loops, each round from fresh objects; medians over the rounds."""
    plain, lightning = [], []
    for _ in range(args.rounds):
        argv = [
            "fit",
            "--config",
            args.config,
            f"--trainer.max_epochs={args.epochs}",
            "--trainer.limit_val_batches=0",
        ]
        cli = build([*argv, "--trainer.default_root_dir=logs/benchmarks"])
        if tiny:
            task = cli.model
            task.net = TinyNet(task.example_input_array[0].numel(), len(task.class_names))
        watch = Stopwatch()
        cli.trainer.callbacks.append(watch)
        cli.datamodule.setup("fit")
        loader = cli.datamodule.train_dataloader()
        plain.append(plain_loop(cli.model, loader, args.epochs) / len(loader))
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        lightning.append(min(watch.seconds) / len(loader))
    extra = [ours - theirs for ours, theirs in zip(lightning, plain, strict=True)]
    ratio = [ours / theirs for ours, theirs in zip(lightning, plain, strict=True)]
    return {
        "net": label,
        "plain loop (ms/step)": 1e3 * statistics.median(plain),
        "Lightning (ms/step)": 1e3 * statistics.median(lightning),
        "added (ms/step)": 1e3 * statistics.median(extra),
        "added (%)": 100 * (statistics.median(ratio) - 1),
    }


def plain_loop(task: LightningModule, loader: Any, epochs: int) -> float:
    """Seconds of the fastest epoch of the loop that one would write without a framework."""
    net, seconds = task.net, []
    configured = task.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    net.train()
    for _ in range(epochs):
        start = time.perf_counter()
        for images, labels in loader:
            logits = net(images.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits, labels, label_smoothing=task.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
