"""Predictions of a classifier as a CSV file."""

import csv
import heapq
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor


def header(top_k: int, name_column: str = "name") -> list[str]:
    """The columns: `name, label, probability, label_2, probability_2, ...`, the likeliest class first."""
    return [name_column, "label", "probability"] + [
        f"{column}_{rank}" for rank in range(2, top_k + 1) for column in ("label", "probability")
    ]


def prediction_rows(probabilities: Tensor, class_names: list[str], top_k: int) -> list[list[str]]:
    """The cells that follow each sample's name: (B, K) probabilities -> B lists of 2 * top_k cells."""
    values, classes = probabilities.detach().float().cpu().topk(top_k, dim=1)
    return [
        [cell for p, c in zip(ps, cs, strict=True) for cell in (class_names[c], f"{p:.6f}")]
        for ps, cs in zip(values.tolist(), classes.tolist(), strict=True)
    ]


class PredictionWriter(Callback):
    """Writes a line per sample: its name, the likeliest class and its probability, then the next likeliest.

    Reads `{"probabilities": (B, K), "indices": (B,)}` from `predict_step`, names from the datamodule's
    `predict_names` and what they are called from its `name_column`. Each rank writes its share as it goes; rank 0
    merges the shares in index order and moves the file into place.

    Args:
        top_k: How many classes a line holds; no more than there are.
        path: Where to write. None is predictions.csv in the run's folder.

    Raises:
        ValueError: If top_k is less than 1 or the path is a folder.
    """

    def __init__(self, *, top_k: int = 3, path: str | None = None) -> None:
        if top_k < 1:
            raise ValueError(f"top_k ({top_k}) must be 1 or more")
        self.top_k, self.path = top_k, path
        self._target = Path()
        self._part: TextIO | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a path that can't be written before the first batch."""
        if stage != "predict":
            return
        folder = trainer.log_dir or "."  # a collective call: on every rank
        self._target = Path(self.path or Path(folder) / "predictions.csv")
        if self._target.is_dir():
            raise ValueError(f"path ({self._target}) is a folder; give the name of a file")
        self._target.parent.mkdir(parents=True, exist_ok=True)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open this rank's share."""
        # surrogateescape: a file name that is not valid UTF-8 is written back byte for byte
        self._part = _open(self._part_path(trainer.global_rank), "w")

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write a batch."""
        if not isinstance(outputs, dict) or not {"probabilities", "indices"} <= outputs.keys():
            return
        assert self._part is not None
        probabilities, indices = outputs["probabilities"], outputs["indices"].tolist()
        num_classes = probabilities.shape[1]
        names = list(getattr(pl_module, "class_names", ())) or [str(i) for i in range(num_classes)]
        rows = prediction_rows(probabilities, names, min(self.top_k, num_classes))
        csv.writer(self._part).writerows([index, *row] for index, row in zip(indices, rows, strict=True))

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Merge the shares and say where the file lies."""
        assert self._part is not None
        self._part.close()
        sort_part(self._part_path(trainer.global_rank))
        trainer.strategy.barrier("predictions")
        if trainer.is_global_zero:
            parts = [self._part_path(rank) for rank in range(trainer.world_size)]
            datamodule = getattr(trainer, "datamodule", None)
            names: list[str] | None = getattr(datamodule, "predict_names", None)
            merge_parts(parts, self._target, names, name_column=getattr(datamodule, "name_column", "name"))
            for part in parts:
                part.unlink()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave no half-written share behind."""
        if self._part is not None and not self._part.closed:
            self._part.close()
            self._part_path(trainer.global_rank).unlink(missing_ok=True)

    def _part_path(self, rank: int) -> Path:
        return self._target.with_name(f"{self._target.name}.part{rank}")


def sort_part(path: Path) -> None:
    """Put a share into index order, where its samples did not come in it: texts come sorted by length."""
    last = -1
    with _open(path, "r") as file:
        for index, _ in _numbered(file):
            if index < last:
                break
            last = index
        else:
            return
    with _open(path, "r") as file:
        rows = sorted(_numbered(file), key=lambda row: row[0])
    with _open(path, "w") as file:
        csv.writer(file).writerows([index, *cells] for index, cells in rows)


def merge_parts(parts: list[Path], target: Path, names: list[str] | None, *, name_column: str = "name") -> None:
    """Merge shares, whose lines start with a sample's index, into one file in index order.

    A sample that several ranks predicted is written once. Holds one line of each share in memory.
    """
    written: set[int] = set()
    temporary = target.with_name(f"{target.name}.tmp")
    files = [_open(part, "r") for part in parts]
    with _open(temporary, "w") as output:
        writer = csv.writer(output)
        for index, cells in heapq.merge(*(_numbered(file) for file in files), key=lambda row: row[0]):
            if not written:
                writer.writerow(header(len(cells) // 2, name_column))
            if index not in written:
                written.add(index)
                writer.writerow([str(index) if names is None else names[index], *cells])
    for file in files:
        file.close()
    if not written:
        temporary.unlink()
        rank_zero_warn("PredictionWriter got no `probabilities` and `indices` from predict_step: nothing was written")
        return
    os.replace(temporary, target)
    print(f"\n{len(written)} predictions: {target}", flush=True)
    missing = [name for index, name in enumerate(names or []) if index not in written]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        rank_zero_warn(f"{len(missing)} samples got no prediction (unreadable or left out): {shown}")


def _numbered(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    return ((int(index), cells) for index, *cells in csv.reader(file))


def _open(path: Path, mode: str) -> TextIO:
    return open(path, mode, newline="", encoding="utf-8", errors="surrogateescape")  # type: ignore[return-value]
