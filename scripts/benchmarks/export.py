"""Every task in every format, through the gate: whether it passed, and how many times as fast as eager it is.

A cell has the ratios at batch 1 and 8; artifact and eager net take turns in one process, with the same threads.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callbacks.export import torchscript
from callbacks.export.formats import FORMATS
from callbacks.export.gate import TIMED, Verdict
from lightning_app.checkpoints import load_task
from lightning_app.export import deliver


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--ckpt", nargs="+", required=True, help="a checkpoint of each task")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), help="all by itself")
    parser.add_argument("--out", type=Path, default=Path("exported"), help="folder of a folder each (exported)")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each deliverable."""
    rows: dict[str, dict[str, Any]] = {}
    for index, checkpoint in enumerate(args.ckpt):
        for verdict in verdicts_of(checkpoint, args.formats, args.out / str(index)):
            name = f"{Path(checkpoint).parents[2].name}, {verdict.file.split('.')[0]}"
            row = rows.setdefault(name, {"run, artifact": name} | dict.fromkeys(args.formats, "does not apply"))
            row[verdict.format] = cell(verdict)
            print(f"{name}, {verdict.format}: {verdict.told}", flush=True)
    return list(rows.values())


def verdicts_of(checkpoint: str, formats: list[str], out: Path) -> Iterator[Verdict]:
    """Of all formats that apply."""
    try:
        torchscript.scripted(load_task(checkpoint).net)  # type: ignore[arg-type]
    except ValueError:
        formats = [name for name in formats if name != "torchscript_script"]
    return deliver(checkpoint, formats, out)


def cell(verdict: Verdict) -> str:
    """Ratios, or that it failed."""
    if verdict.problem is not None:
        return f"FAILED: {verdict.problem}"
    pairs = [verdict.milliseconds.get(size) for size in TIMED]
    return ", ".join(f"{pair[0] / pair[1]:.1f}x" if pair else "not timed" for pair in pairs)
