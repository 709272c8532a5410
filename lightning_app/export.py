"""A checkpoint to a folder of artifacts that were checked, with what a user of them must know."""

import csv
import hashlib
import importlib.metadata
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from callbacks.export import torchscript
from callbacks.export.deliverable import Deliverable, Inputs
from callbacks.export.formats import FORMATS, check_formats
from callbacks.export.gate import SIZES, TIMED, Rounded, Verdict, check, collect
from callbacks.quantization.backends import BACKENDS, check_quantization, check_task
from callbacks.quantization.settings import Quantization
from lightning_app.checkpoints import as_one_file, load_task
from lightning_app.deliverables import describe
from lightning_app.run_folder import datamodule_of

ROOT = Path(__file__).resolve().parents[1]


def deliver(
    checkpoint: str | Path,
    formats: Iterable[str],
    out: Path,
    *,
    from_pixels: bool = False,
    opset: int | None = None,
    quantization: Quantization | None = None,
) -> Iterator[Verdict]:
    """Export, check and describe; a verdict after each format, and the reports at the end.

    The training run is not touched: the net comes from the checkpoint, with the averaged weights where there are any.

    Args:
        checkpoint: The checkpoint of a run, whose configuration tells the data that the artifacts are checked on.
        formats: Names in `FORMATS`.
        out: Folder to write to.
        from_pixels: Of a vision classifier, preprocessing and softmax inside.
        opset: Of ONNX. None: that of the installed torch.
        quantization: Each format in int8 too, beside the one in float32.

    Raises:
        ValueError: A format can't be made of this net or on this machine, or an artifact can't be loaded.
    """
    formats = list(formats)
    check_formats(formats)
    if quantization is not None:
        check_quantization(formats, quantization)
    task: Any = load_task(checkpoint)
    checkpoint = as_one_file(checkpoint)
    if "torchscript_script" in formats:
        torchscript.scripted(task.net)
    data = datamodule_of(checkpoint)
    out.mkdir(parents=True, exist_ok=True)
    verdicts: list[Verdict] = []
    for given in describe(task, data):
        if from_pixels:
            if given.with_preprocessing is None:
                raise ValueError(f"--from_pixels is for image classifiers, this is a {type(task).__name__}")
            given = given.with_preprocessing()
        given.net.eval().requires_grad_(False)
        calibration: list[Inputs] = []
        if quantization is not None:
            check_task(given, quantization)
            given.scored *= 4  # a drop of a point is to be seen
            batches = itertools.islice(batches_of(data, "train"), quantization.calibration_batches)
            calibration = [given.to_inputs(batch) for batch in batches]
        samples = collect(given, batches_of(data))
        made: dict[str, Path] = {}
        for name in formats:
            plain = out / (given.name + FORMATS[name].suffix)
            for asked in (None, quantization) if quantization else (None,):
                path = plain.with_name(f"{given.name}.int8{FORMATS[name].suffix}") if asked else plain
                path.unlink(missing_ok=True)  # of an earlier export
                try:
                    rounded = None
                    if asked is None:
                        FORMATS[name].export(given, path, **({"opset": opset} if name == "onnx" else {}))
                    else:
                        rounded = export_int8(given, name, asked, calibration, path, plain)
                    made[name if asked is None else f"{name} int8"] = path
                    write_sidecar(given, data, checkpoint, out, made)
                    verdict = check(given, name, path, samples, rounded=rounded)
                    verdict.problem = verdict.problem or check_folder(given, task, path, agree=0.9 if asked else 0.97)
                except ValueError as error:
                    verdict = Verdict(name, path.name, given.metric, FORMATS[name].tolerance, problem=str(error))
                    verdict.kind = "float32" if asked is None else asked.method
                verdicts.append(verdict)
                yield verdict
    write_report(verdicts, out)


def export_int8(
    given: Deliverable, format_name: str, settings: Quantization, calibration: list[Inputs], path: Path, plain: Path
) -> Rounded:
    """Write an artifact in int8; returns what it is held against, the one in float32, `plain`, among it."""
    backend = BACKENDS[format_name, settings.method]
    reference = backend.export(given, settings, calibration, path)
    kind = f"{settings.method} int8 by {backend.name}"
    return Rounded(reference, backend.tolerance, kind, settings.max_drop, plain)


def check_folder(given: Deliverable, task: Any, artifact: Path, most: int = 64, *, agree: float = 0.97) -> str | None:
    """What is wrong with the labels that the folder's `predict.py` gives real files or texts; None: nothing.

    It sees what the datamodule saw, so that wrong preprocessing shows. A share `agree` of the labels must be the
    same, not all: photos are resized by another library.
    """
    if given.raw_samples is None:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        samples, batch = given.raw_samples(Path(temporary), most)
        with torch.inference_mode():
            wanted = task.probabilities(batch).argmax(-1)
        argv = [sys.executable, str(artifact.with_name("predict.py")), "--artifact", str(artifact), "--", *samples]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            return f"predict.py fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
        rows = list(csv.reader(done.stdout.splitlines(), delimiter="\t"))
        agreed = sum(row[1] == task.class_names[label] for row, label in zip(rows, wanted.tolist(), strict=True))
    if agreed < agree * len(wanted):
        return f"predict.py gives {agreed} of {len(wanted)} the checkpoint's label: see preprocessing in model.json"
    return None


def batches_of(data: Any, split: str = "val") -> Iterator[Any]:
    """Batches, in this process; training ones follow where those of validation are fewer than the gate compares."""
    datasets = [data.datasets["val"]] if split == "val" else []
    if not datasets or len(datasets[0]) < sum(SIZES):
        datasets.append(data.plain("train") if hasattr(data, "plain") else data.datasets["train"])
    for dataset in datasets:
        yield from DataLoader(dataset, batch_size=data.batch_size, collate_fn=data.collate_fn)


def write_sidecar(given: Deliverable, data: Any, checkpoint: Path, out: Path, made: dict[str, Path]) -> None:
    """`model.json`, and beside it the tokenizer and the script that predicts from the folder alone."""
    packages = ("torch", "torchvision", "transformers", "onnx", "onnxruntime", "torchao", "executorch")
    sidecar = {
        "task": given.task,
        "inputs": [vars(spec) for spec in given.inputs],
        "outputs": [vars(spec) for spec in given.outputs],
        **given.facts,
        "artifacts": {name: {"file": path.name, "sha256": sha256(path)} for name, path in made.items()},
        "checkpoint": {"file": str(checkpoint), "sha256": sha256(checkpoint)},
        "versions": {name: version for name in packages if (version := version_of(name))},
    }
    tokenizer = tokenizer_of(data)
    if tokenizer is not None:
        (out / "tokenizer.json").write_text(tokenizer)
    (out / f"{given.name}.json").write_text(json.dumps(sidecar, indent=2) + "\n")
    shutil.copy(ROOT / "scripts" / "predict.py", out / "predict.py")


def tokenizer_of(data: Any) -> str | None:
    """The tokenizer as the tokenizers package reads it; None for images.

    Raises:
        ValueError: It is one of Python's own making, which can't leave.
    """
    if getattr(data, "tokenizer_json", None):
        return data.tokenizer_json
    tokenizer = getattr(data, "tokenizer", None)
    if tokenizer is None:
        return None
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(f"{type(tokenizer).__name__} is written in Python and can't leave with the net")
    return tokenizer.backend_tokenizer.to_str()


def version_of(package: str) -> str | None:
    """An installed package's version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def sha256(path: Path) -> str:
    """A file's hash."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_report(verdicts: list[Verdict], out: Path) -> None:
    """`report.json` and `report.md`."""
    (out / "report.json").write_text(json.dumps([verdict.as_dict() for verdict in verdicts], indent=2) + "\n")
    (out / "report.md").write_text("\n".join(table(verdicts)) + "\n")


def table(verdicts: list[Verdict]) -> list[str]:
    """Lines of a Markdown table."""
    metric = verdicts[0].metric
    head = ["format", "file", "kind", "MB", "difference (allowed)", f"{metric}, checkpoint", f"{metric}, artifact"]
    head += [f"ms, batch {size}: net, artifact" for size in TIMED] + ["verdict"]
    lines = [head, ["---"] * len(head)]
    for verdict in verdicts:
        pairs = [verdict.milliseconds.get(size) for size in TIMED]
        times = [f"{t[0]:.2f}, {t[1]:.2f} ({t[0] / t[1]:.1f}x)" if t else "" for t in pairs]
        scores = [f"{verdict.score:.4f}", f"{verdict.artifact_score:.4f}"]
        difference = f"{verdict.difference:.1e} ({verdict.tolerance:.0e})"
        line = [verdict.format, verdict.file, verdict.kind, f"{verdict.megabytes:.2f}", difference]
        lines.append([*line, *scores, *times, verdict.told])
    return ["| " + " | ".join(line) + " |" for line in lines]
