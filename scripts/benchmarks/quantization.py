"""int8 against float32 in every format that has it: speed, size and score, each file loaded in a fresh process.

Speed is against PyTorch in eager mode at batch 1 and 8, then against the same format in float32; all take turns in one
process, with the same threads.
"""

import argparse
from pathlib import Path
from typing import Any

from callbacks.export.gate import TIMED, Verdict
from callbacks.quantization.backends import BACKENDS
from callbacks.quantization.settings import Quantization
from lightning_app.export import deliver

METHODS = ("static", "dynamic", "weight_only")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    for method in METHODS:
        parser.add_argument(f"--{method}", nargs="+", default=[], metavar="CKPT", help=f"checkpoints for {method} int8")
    parser.add_argument("--formats", nargs="+", help="all that have it by itself")
    parser.add_argument("--out", type=Path, default=Path("exported"), help="folder of a folder each (exported)")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each file in int8."""
    rows = []
    for method in METHODS:
        formats = [name for name, by in BACKENDS if by == method and name in (args.formats or [name])]
        for index, checkpoint in enumerate(getattr(args, method)):
            plain: dict[str, Verdict] = {}
            for verdict in deliver(
                checkpoint, formats, args.out / f"{method}{index}", quantization=Quantization(method)
            ):
                name = f"{Path(checkpoint).parents[2].name}, {verdict.file.split('.')[0]}"
                print(f"{name}, {verdict.format}, {verdict.kind}: {verdict.told}", flush=True)
                if verdict.kind == "float32":
                    plain[verdict.format] = verdict
                else:
                    rows.append(row(name, verdict, plain[verdict.format]))
    return rows


def row(name: str, int8: Verdict, float32: Verdict) -> dict[str, Any]:
    """What int8 gains and costs."""
    times = [int8.milliseconds.get(size) for size in TIMED]
    return {
        "run, artifact": name,
        "format": int8.format,
        "int8": int8.kind,
        "times eager": ", ".join(f"{part[0] / part[1]:.1f}x" if part else "not timed" for part in times),
        "times float32": ", ".join(f"{part[2] / part[1]:.1f}x" if part else "not timed" for part in times),
        "smaller": f"{float32.megabytes / int8.megabytes:.1f}x",
        "score": f"{int8.metric} {int8.score:.4f} -> {int8.artifact_score:.4f}",
        "verdict": int8.told,
    }
