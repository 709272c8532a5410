"""The gate: an artifact is loaded in a fresh process, compared with its net on real data, and timed."""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from callbacks.export.deliverable import Deliverable, Inputs, Outputs
from callbacks.export.formats import FORMATS, MOBILE_BATCH

ROOT = Path(__file__).resolve().parents[2]
SIZES = (8, 8, 8, 8, 3, 3, 3, 3, 3, 3, 3, 3, *[1] * 8)  # batches of 64 samples
TIMED = (1, 8)


@dataclass
class Verdict:
    """What came out for an artifact.

    Args:
        format: The format.
        file: The artifact's name.
        metric: The score's name.
        tolerance: Allowed difference of float32 outputs.
        megabytes: Its size.
        difference: Largest difference from the net, as a share of the largest output (1 where that is less).
        score: The checkpoint's on validation data.
        artifact_score: The artifact's.
        milliseconds: Medians of net and artifact, and of a quantized one's file in float32, by batch size.
        samples: Real samples compared.
        problem: Why it failed; None: it passed.
        kind: float32, or how it was quantized.
        cost: What is worse or slower than in float32 by more than is allowed; None: nothing.
    """

    format: str
    file: str
    metric: str
    tolerance: float
    megabytes: float = math.nan
    difference: float = math.nan
    score: float = math.nan
    artifact_score: float = math.nan
    milliseconds: dict[int, tuple[float, ...] | None] = field(default_factory=dict)
    samples: int = 0
    problem: str | None = None
    kind: str = "float32"
    cost: str | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast as the net, at the batch size where it is most."""
        return max((times[0] / times[1] for times in filter(None, self.milliseconds.values())), default=math.nan)

    @property
    def told(self) -> str:
        """In words."""
        if self.problem is not None:
            return f"FAILED: {self.problem}"
        return "passed" if self.cost is None else f"NOT WORTH IT: {self.cost}"

    def as_dict(self) -> dict[str, Any]:
        """For the report; what is not known is None."""
        entries = asdict(self) | {"speedup": self.speedup, "passed": self.problem is None}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in entries.items()
        }


@dataclass(frozen=True)
class Rounded:
    """What a quantized artifact is held against.

    Args:
        reference: The quantized net: the artifact must compute the same.
        tolerance: Allowed difference from it.
        kind: How it was quantized.
        max_drop: Score that it may lose, see `drop_of`.
        rival: The file in float32, which it must beat at some batch size.
    """

    reference: Deliverable
    tolerance: float
    kind: str
    max_drop: float
    rival: Path


def drop_of(given: Deliverable, before: float, after: float) -> float:
    """What a score has lost: of one that is better when higher as it is, of another as a share."""
    return before - after if given.higher_is_better else after / before - 1


def collect(given: Deliverable, batches: Iterable[Any]) -> tuple[list[Inputs], list[Any]]:
    """Inputs of real batches, and the batches, until there are enough samples.

    Raises:
        ValueError: There are fewer than the gate compares.
    """
    inputs, used, count = [], [], 0
    for batch in batches:
        inputs.append(given.to_inputs(batch))
        used.append(batch)
        count += len(next(iter(inputs[-1].values())))
        if count >= given.scored:
            break
    if count < sum(SIZES):
        raise ValueError(f"the data has {count} samples for the gate; an export is checked on {sum(SIZES)}")
    return inputs, used


def regroup(given: Deliverable, inputs: list[Inputs]) -> list[Inputs]:
    """The same samples in batches of 8, 3 and 1, and of several lengths, the last row of one all padding."""
    # the dimension of a sample, which has no batch, that is cut to several lengths
    free = {spec.name: place - 1 for spec in given.inputs for place, size in spec.free.items() if size != "batch"}
    samples = [{name: tensor[row] for name, tensor in part.items()} for part in inputs for row in range(rows(part))]
    cases, start = [], 0
    for index, size in enumerate(SIZES):
        chosen = samples[start : start + size]
        start += size
        if free:  # rows of one batch were padded to one length; those of several are cut to the shortest
            shortest = min(sample[name].shape[place] for sample in chosen for name, place in free.items())
            length = max(2, shortest // (1 + index % 3))
            chosen = [
                {name: v.narrow(free[name], 0, length) if name in free else v for name, v in sample.items()}
                for sample in chosen
            ]
        cases.append({name: torch.stack([sample[name] for sample in chosen]) for name in chosen[0]})
    if "attention_mask" in cases[0]:
        cases[0] = {name: tensor.clone() for name, tensor in cases[0].items()}
        cases[0]["attention_mask"][-1] = 0
    return cases


def rows(inputs: Inputs) -> int:
    """The batch's size."""
    return len(next(iter(inputs.values())))


def check(
    given: Deliverable,
    format_name: str,
    path: Path,
    samples: tuple[list[Inputs], list[Any]],
    *,
    seconds: float = 2.0,
    rounded: Rounded | None = None,
) -> Verdict:
    """Load, compare, score and time an artifact.

    Args:
        given: What was exported.
        format_name: The format.
        path: The artifact.
        samples: What `collect` returned.
        seconds: Time for timing, at each batch size; 0: it is not timed.
        rounded: Of a quantized artifact, what it is compared with; its score may then differ from the net's.
    """
    inputs, used = samples
    cases = regroup(given, inputs)
    if format_name == "executorch":  # its batches are small
        inputs = [
            {n: t[i : i + MOBILE_BATCH] for n, t in x.items()} for x in inputs for i in range(0, rows(x), MOBILE_BATCH)
        ]
    rival = rounded.rival if rounded else None
    made = run_in_fresh_process(given, format_name, path, cases + inputs, seconds, rival)
    with torch.inference_mode():
        expected = [(rounded.reference if rounded else given).run(case) for case in cases + inputs]
        of_net = [given.run(case) for case in inputs] if rounded else expected[len(cases) :]
    tolerance = rounded.tolerance if rounded else FORMATS[format_name].tolerance
    difference, problem = compare(expected, made["outputs"], cases + inputs, tolerance)
    score = artifact_score = math.nan
    cost = None
    if not any(isinstance(output, str) for output in made["outputs"]):
        score = given.score(like(of_net, used), used)
        artifact_score = given.score(like(made["outputs"][len(cases) :], used), used)
        told = f"{given.metric} is {artifact_score:.4f}, the checkpoint's {score:.4f}"
        if rounded is not None:
            if not drop_of(given, score, artifact_score) <= rounded.max_drop:
                cost = f"{told}: {drop_of(given, score, artifact_score):.2%} lost, {rounded.max_drop:.2%} is allowed"
            cost = cost or slower(made["milliseconds"])
        elif problem is None and not abs(artifact_score - score) <= 0.002 * max(1.0, abs(score)):
            problem = told
    return Verdict(
        format=format_name,
        file=path.name,
        metric=given.metric,
        tolerance=tolerance,
        megabytes=path.stat().st_size / 1e6,
        difference=difference,
        score=score,
        artifact_score=artifact_score,
        milliseconds=made["milliseconds"],
        samples=sum(map(rows, cases)),
        problem=problem,
        kind=rounded.kind if rounded else "float32",
        cost=cost,
    )


def slower(milliseconds: dict[int, tuple[float, ...] | None]) -> str | None:
    """What an artifact in int8 costs in speed; None where it is faster than in float32 at some batch size."""
    times = {size: given[1:] for size, given in milliseconds.items() if given}
    if not times or any(int8 < float32 for int8, float32 in times.values()):
        return None
    told = ", ".join(f"{int8:.2f} ms against {other:.2f} at batch {size}" for size, (int8, other) in times.items())
    return f"no faster than the same format in float32: {told}"


def like(outputs: list[Outputs], batches: list[Any]) -> list[Tensor]:
    """First outputs, split as the batches are."""
    first = [parts[0] for parts in outputs]
    labels = [batch["labels"] if isinstance(batch, dict) else batch[1] for batch in batches]
    if [len(output) for output in first] == [len(part) for part in labels]:
        return first
    return list(torch.cat(first).split([len(part) for part in labels]))


def compare(
    expected: list[Outputs], made: list[Any], cases: list[Inputs], tolerance: float
) -> tuple[float, str | None]:
    """The largest difference, and what is wrong in the first case that has something."""
    worst, problem = 0.0, None
    for wanted, got, case in zip(expected, made, cases, strict=True):
        sizes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in case.items())
        if isinstance(got, str):
            problem = problem or f"fails for {sizes}: {got}"
        elif [part.shape for part in got] != [part.shape for part in wanted]:
            shapes = [tuple(part.shape) for part in got], [tuple(part.shape) for part in wanted]
            problem = problem or f"returns {shapes[0]} in the place of {shapes[1]} for {sizes}"
        else:
            apart = max(map(difference_of, got, wanted))
            worst = max(worst, apart)
            if apart > tolerance:
                problem = (
                    problem or f"differs by {apart:.2g} of the largest output for {sizes}; {tolerance:.0e} is allowed"
                )
    return worst, problem


def difference_of(got: Tensor, wanted: Tensor) -> float:
    """The largest difference as a share of the largest wanted value, 1 where that is less; NaN is infinitely far."""
    if not wanted.numel():
        return 0.0
    apart = float((got.float() - wanted).abs().max() / wanted.abs().max().clamp(min=1))
    return math.inf if math.isnan(apart) else apart


def run_in_fresh_process(
    given: Deliverable, format_name: str, path: Path, cases: list[Inputs], seconds: float, rival: Path | None
) -> dict[str, Any]:
    """What the artifact makes of the cases, and how long it and the net take.

    Raises:
        ValueError: The artifact can't be loaded.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        timed = {size: repeat(cases[-1], size) for size in TIMED if seconds}
        for name, content in (("cases", cases), ("timed", timed), ("net", given.net)):
            torch.save(content, folder / f"{name}.pt")
        argv = [sys.executable, "-m", "callbacks.export.worker", format_name, str(path.resolve()), temporary]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*argv, str(torch.get_num_threads()), str(seconds), *([str(rival.resolve())] if rival else [])],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise ValueError(f"{path} can't be loaded by its runtime: {last}")
        return torch.load(folder / "made.pt", weights_only=True)


def repeat(inputs: Inputs, size: int) -> Inputs:
    """A batch of the first row."""
    return {name: tensor[:1].expand(size, *tensor.shape[1:]).contiguous() for name, tensor in inputs.items()}
