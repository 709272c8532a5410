"""Samples per second of trained classifiers on the test split, and their metrics: is the smaller one worth it?

The checkpoints take turns in one process; the figures are medians over the rounds.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from lightning_app.checkpoints import load_task
from lightning_app.cli import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("checkpoints", nargs="+", help="the first is what the others are compared with")
    parser.add_argument("--config", default="configs/text.yaml", help="the recipe whose test data they see")
    parser.add_argument("--rounds", type=int, default=5, help="passes of each")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a checkpoint."""
    from sklearn.metrics import accuracy_score, f1_score

    datamodule = build(["test", "--config", args.config]).datamodule
    datamodule.prepare_data()
    datamodule.setup("test")
    batches = list(datamodule.test_dataloader())
    tasks = {path: load_task(path) for path in args.checkpoints}
    speeds: dict[str, list[float]] = {path: [] for path in tasks}
    rows: dict[str, dict[str, Any]] = {}
    for round_number in range(args.rounds + 1):  # the first warms up and does not count
        for path, task in tasks.items():
            start = time.perf_counter()
            with torch.inference_mode():
                outputs = [evaluate(task, batch) for batch in batches]
            seconds = time.perf_counter() - start
            if round_number:
                speeds[path].append(sum(len(labels) for _, labels in outputs) / seconds)
            predictions = torch.cat([probabilities.argmax(1) for probabilities, _ in outputs]).tolist()
            labels = torch.cat([labels for _, labels in outputs]).tolist()
            rows[path] = {
                "checkpoint": str(Path(path)),
                "parameters (M)": sum(p.numel() for p in task.net.parameters()) / 1e6,
                "accuracy": float(accuracy_score(labels, predictions)),
                "macro F1": float(f1_score(labels, predictions, average="macro")),
            }
    base = speeds[args.checkpoints[0]]
    for path, row in rows.items():
        row["samples per second"] = statistics.median(speeds[path])
        row["times the first"] = statistics.median(v / b for v, b in zip(speeds[path], base, strict=True))
    return list(rows.values())


def evaluate(task: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (B, K) and labels (B,) of a batch of images or texts."""
    if isinstance(batch, dict):
        return task.probabilities(batch), batch["labels"]
    images, labels = batch
    return task.probabilities(images), labels
