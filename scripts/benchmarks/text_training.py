"""Training samples per second of the text recipe: ways of padding in float32, and ways of computing with the best.

All take turns in one process over the same random share of the training texts, a whole pass each, so that a machine
that slows down slows all; the figures are medians over the rounds.
"""

import argparse
import random
import statistics
import time
from typing import Any

import torch

from lightning_app.cli import build

VARIANTS = {  # name: padding, autocast to bf16, matmul precision
    "padded to max_length": ("fixed", False, "highest"),
    "padded to the longest of a batch": ("longest", False, "highest"),
    "bucketed by length": ("bucketed", False, "highest"),
    "bucketed, matmul precision medium": ("bucketed", False, "medium"),
    "bucketed, bf16 autocast": ("bucketed", True, "highest"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--config", default="configs/text.yaml", help="a recipe of a text classifier")
    parser.add_argument("--samples", type=int, default=1024, help="training texts of a pass")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each variant")
    parser.add_argument(
        "--override", nargs="*", default=[], help="further arguments of train.py, e.g. --override=--X=Y"
    )


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a variant."""
    built = {padding: make(args, padding) for padding in ("fixed", "longest", "bucketed")}
    speeds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for round_number in range(args.rounds + 1):  # the first warms up and does not count
        for name, (padding, autocast, precision) in VARIANTS.items():
            task, datamodule, optimizer = built[padding]
            loader = datamodule.train_dataloader()
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(round_number)
            torch.set_float32_matmul_precision(precision)
            steps = 4 if round_number == 0 else None
            speed = samples_per_second(task, loader, optimizer, autocast=autocast, steps=steps)
            if round_number:
                speeds[name].append(speed)
    torch.set_float32_matmul_precision("highest")
    base = speeds["padded to the longest of a batch"]
    return [
        {
            "variant": name,
            "samples per second": statistics.median(values),
            "times the longest-of-a-batch": statistics.median(v / b for v, b in zip(values, base, strict=True)),
        }
        for name, values in speeds.items()
    ]


def make(args: argparse.Namespace, padding: str) -> tuple[Any, Any, torch.optim.Optimizer]:
    """Task, data and optimizer of the recipe, the training texts cut down to a random share."""
    argv = ["fit", "--config", args.config, f"--data.padding={padding}", "--trainer.logger=false", *args.override]
    cli = build(argv)
    datamodule = cli.datamodule
    datamodule.prepare_data()
    tables = datamodule.read_splits()
    size = len(tables["train"])
    chosen = random.Random(0).sample(range(size), min(args.samples, size))
    datamodule.tables = tables | {"train": tables["train"].part(chosen)}
    datamodule.setup("fit")
    return cli.model.train(), datamodule, cli.model.configure_optimizers()["optimizer"]


def samples_per_second(task: Any, loader: Any, optimizer: Any, *, autocast: bool, steps: int | None) -> float:
    """Speed of a pass of training steps, or of its first steps."""
    count, start = 0, time.perf_counter()
    for index, batch in enumerate(loader):
        if index == steps:
            break
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = task.training_step(batch, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += len(batch["labels"])
    return count / (time.perf_counter() - start)
