"""Runs an artifact in a process of its own, and times it and the net in turns; `callbacks.export.gate` starts it."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from callbacks.export.deliverable import Inputs
from callbacks.export.runtimes import load


def main() -> None:
    """Read the cases, write what the artifact makes of them."""
    format_name, artifact, folder, threads = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    seconds, rival = float(sys.argv[5]), sys.argv[6:]
    run = load(format_name, artifact)
    outputs: list[Any] = []
    with torch.inference_mode():
        for case in torch.load(folder / "cases.pt", weights_only=True):
            try:
                outputs.append([part.clone() for part in run(case)])
            except Exception as error:  # the parent tells which case
                outputs.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
        timed = torch.load(folder / "timed.pt", weights_only=True)
        if timed:
            net = torch.load(folder / "net.pt", weights_only=False)  # the parent has just written it
            turns = [lambda inputs: net(*inputs.values()), run, *(load(format_name, Path(path)) for path in rival)]
            for size, inputs in timed.items():
                timed[size] = compare(turns, inputs, seconds)
    torch.save({"outputs": outputs, "milliseconds": timed}, folder / "made.pt")


def compare(turns: list[Callable[[Inputs], Any]], inputs: Inputs, seconds: float) -> tuple[float, ...] | None:
    """Median milliseconds of each, taking turns; None where one can't."""
    times: list[list[float]] = [[] for _ in turns]
    try:
        for _ in range(3):
            for function in turns:
                function(inputs)
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or time.perf_counter() < end:
            for function, taken in zip(turns, times, strict=True):
                start = time.perf_counter()
                function(inputs)
                taken.append(1000 * (time.perf_counter() - start))
    except Exception:  # the same that a case has told
        return None
    return tuple(map(statistics.median, times))


if __name__ == "__main__":
    main()
