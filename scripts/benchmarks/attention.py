"""Attention kernels by sequence length and mask: time and peak memory, against the naive one.

Time is the fastest of several runs, the kernels taking turns. Memory is the most that a run adds to the process, read
in a fresh process for each figure. `flex` runs forward only on a CPU and compiles first, which does not count.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from models.nets.attention import Mask, make_kernel

ROOT = Path(__file__).resolve().parents[2]
HEADS, WIDTH = 4, 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--kernels", nargs="+", default=["naive", "sdpa"], help="naive, sdpa, flash, flex, varlen")
    parser.add_argument("--lengths", nargs="+", type=int, default=[256, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--masks", nargs="+", default=["causal", "window", "documents"], help="none as well")
    parser.add_argument("--forward_only", action="store_true", help="inference; otherwise forward and backward")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--naive_up_to", type=int, default=4096, help="longest sequence for naive, which needs T x T")


def make_mask(name: str, length: int) -> Mask:
    """Masks by name: a window of 256, documents of 512 tokens; both are causal."""
    match name:
        case "none":
            return Mask()
        case "causal":
            return Mask(causal=True)
        case "window":
            return Mask(causal=True, window=256)
        case "documents":
            return Mask(causal=True, documents=(torch.arange(length) // 512)[None])
    raise ValueError(f"mask {name!r} must be none, causal, window or documents")


def run_once(kernel: Any, mask: Mask, length: int, forward_only: bool) -> float:
    """Seconds of one run on a batch of one."""
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=not forward_only) for _ in range(3))
    start = time.perf_counter()
    with torch.set_grad_enabled(not forward_only):
        output = kernel(q, k, v, mask)
        if not forward_only:
            output.sum().backward()
    return time.perf_counter() - start


MEASURE = """
import json, sys
sys.path.insert(0, {root!r})
import torch
from scripts.benchmarks.attention import forget_peak, make_mask, peak, run_once
from models.nets.attention import Mask, make_kernel
kernel = make_kernel({kernel!r})
run_once(kernel, make_mask({mask!r}, 32), 32, {forward_only})
before = forget_peak()
run_once(kernel, make_mask({mask!r}, {length}), {length}, {forward_only})
print(json.dumps((peak() - before) / 1024))
"""


def peak() -> int:
    """The most memory that this process held, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak() -> int:
    """Let `peak` start from now: importing torch took more than a short sequence does. Returns it."""
    Path("/proc/self/clear_refs").write_text("5")  # see proc(5)
    return peak()


def peak_megabytes(kernel: str, mask: str, length: int, forward_only: bool) -> float:
    """What one run adds to the most memory that a fresh process held."""
    code = MEASURE.format(root=str(ROOT), kernel=kernel, mask=mask, length=length, forward_only=forward_only)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each mask, length and kernel."""
    rows = []
    for mask_name in args.masks:
        for length in args.lengths:
            mask = make_mask(mask_name, length)
            names = [name for name in args.kernels if name != "naive" or length <= args.naive_up_to]
            kernels = {name: make_kernel(name) for name in names}
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for round_number in range(args.rounds + 1):  # the first warms up
                for name, kernel in kernels.items():
                    taken = run_once(kernel, mask, length, args.forward_only)
                    if round_number:
                        seconds[name].append(taken)
            memory = {name: peak_megabytes(name, mask_name, length, args.forward_only) for name in names}
            for name in names:
                naive = "naive" in names
                rows.append(
                    {
                        "mask": mask_name,
                        "T": length,
                        "kernel": name,
                        "ms": 1e3 * min(seconds[name]),
                        "MiB": memory[name],
                        "naive's time / its": min(seconds["naive"]) / min(seconds[name]) if naive else "",
                        "naive's memory / its": memory["naive"] / max(memory[name], 1e-3) if naive else "",
                    }
                )
    return rows
