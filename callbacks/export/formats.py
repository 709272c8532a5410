"""One function a format: a net with plain tensors in and out, to a file; `FORMATS` names them."""

import importlib.util
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from callbacks.export import torchscript
from callbacks.export.deliverable import Deliverable

MOBILE_BATCH = 8  # ExecuTorch plans its memory for the largest batch


def first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def export_torchscript(given: Deliverable, path: Path) -> None:
    """TorchScript by tracing, frozen; runs in Python and in C++ (LibTorch)."""
    torchscript.trace(given.net, tuple(given.example().values()), path)


def export_torchscript_script(given: Deliverable, path: Path) -> None:
    """TorchScript by scripting, frozen: loops and branches stay.

    Raises:
        ValueError: The net uses what TorchScript does not know, as those of transformers do.
    """
    torchscript.script(given.net.net, path)  # type: ignore[arg-type]


def export_program(given: Deliverable, *, largest_batch: int | None = None) -> Any:
    """What `torch.export` captures, for the formats that start from it.

    Raises:
        ValueError: A free size can't be kept free.
    """
    dims: dict[str, Any] = {"batch": torch.export.Dim("batch", min=1, max=largest_batch)}
    for name in ("length", "past"):
        dims[name] = torch.export.Dim.DYNAMIC(max=given.limits.get(name))
    free = tuple({place: dims[size] for place, size in spec.free.items()} for spec in given.inputs)
    try:
        with torch.no_grad():
            return torch.export.export(given.net, tuple(given.example().values()), dynamic_shapes=(free,))
    except Exception as error:
        reason = f"torch.export does not capture this net with its sizes left free: {first_line(error)}"
        raise ValueError(reason) from error


def export_torch_export(given: Deliverable, path: Path) -> None:
    """A `.pt2` of `torch.export`, which any later torch loads."""
    torch.export.save(export_program(given), path)


def export_aotinductor(given: Deliverable, path: Path) -> None:
    """A compiled package of AOTInductor, for this kind of CPU; runs in Python and in C++."""
    torch._inductor.aoti_compile_and_package(export_program(given), package_path=str(path))


def export_onnx(given: Deliverable, path: Path, *, opset: int | None = None) -> None:
    """ONNX in one file, inputs and output by name."""
    axes = {spec.name: spec.free for spec in [*given.inputs, *given.outputs]}
    program = export_program(given)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of onnxscript's own making
        warnings.filterwarnings("ignore", ".*dynamic_axes.*")
        exported: Any = torch.onnx.export(
            program,
            (),
            input_names=[spec.name for spec in given.inputs],
            output_names=[spec.name for spec in given.outputs],
            opset_version=opset,
            dynamo=True,
            optimize=True,
            verbose=False,
        )
    for value in [*exported.model.graph.inputs, *exported.model.graph.outputs]:
        for place, size in axes[value.name].items():
            value.shape[place] = size
    exported.save(str(path), external_data=False)


def export_executorch(given: Deliverable, path: Path) -> None:
    """ExecuTorch's `.pte` with XNNPACK, for phones; batches of up to 8."""
    path.write_bytes(lower_to_mobile(export_program(given, largest_batch=MOBILE_BATCH)))


def lower_to_mobile(program: Any) -> bytes:
    """A captured program as a `.pte`.

    Raises:
        ValueError: ExecuTorch can't lower it.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    # executorch 1.5.1: its EdgeOpArgValidator takes the first tensor of a list (of split, chunk, unbind) for the list,
    # asks for its length and so fixes a free batch
    unchecked = EdgeCompileConfig(_check_ir_validity=False)
    try:
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()], compile_config=unchecked)
        return edge.to_executorch().buffer
    except Exception as error:
        raise ValueError(f"ExecuTorch can't lower this net: {first_line(error)}") from error


@dataclass(frozen=True)
class Format:
    """A way out.

    Args:
        export: Writes the file, of a deliverable and a path.
        suffix: Of its file's name.
        packages: Import names that it and its runtime need, with what installs them.
        tolerance: Largest difference from the net, as a share of the largest output (1 where that is less).
    """

    export: Callable[..., None]
    suffix: str
    packages: Mapping[str, str]
    tolerance: float


EXTRA = "python -m pip install -c constraints.txt -e '.[export]'"
MOBILE = "python -m pip install -c constraints.txt -e '.[mobile]'"
FORMATS: dict[str, Format] = {
    "onnx": Format(export_onnx, ".onnx", dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), EXTRA), tolerance=1e-4),
    "torchscript": Format(export_torchscript, ".torchscript.pt", {}, tolerance=1e-5),
    "torchscript_script": Format(export_torchscript_script, ".scripted.pt", {}, tolerance=1e-5),
    "torch_export": Format(export_torch_export, ".pt2", {}, tolerance=1e-5),
    "aotinductor": Format(export_aotinductor, ".aoti.pt2", {}, tolerance=1e-4),
    "executorch": Format(export_executorch, ".pte", {"executorch": MOBILE}, tolerance=1e-3),
}


def format_of(path: Path) -> str:
    """The format of an artifact by its name.

    Raises:
        ValueError: It is none of ours.
    """
    fitting = [name for name, kind in FORMATS.items() if path.name.endswith(kind.suffix)]
    if not fitting:
        raise ValueError(f"{path} ends like no artifact: {', '.join(kind.suffix for kind in FORMATS.values())}")
    return max(fitting, key=lambda name: len(FORMATS[name].suffix))


def check_formats(names: list[str]) -> None:
    """Refuse formats that can't be made here, before any work.

    Raises:
        ValueError: A format is unknown, or something that it needs is missing; it says how to get it.
    """
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"there is no format {name!r}: choose from {', '.join(FORMATS)}")
        for package, command in FORMATS[name].packages.items():
            if importlib.util.find_spec(package) is None:
                raise ValueError(f"the format {name} needs the package {package}: {command}")
        if name == "aotinductor" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
            raise ValueError("the format aotinductor needs a C++ compiler, e.g. apt-get install g++, or leave it out")
