"""Who quantizes what: a backend for each format and method, from what was seen to work."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from callbacks.export.deliverable import Deliverable, Inputs
from callbacks.export.formats import EXTRA
from callbacks.quantization import fx, linear, onnx_runtime, pt2e
from callbacks.quantization.settings import Quantization


@dataclass(frozen=True)
class Backend:
    """A way to int8 for one format.

    Args:
        name: Of the tool chain, told to the user.
        export: Quantizes with calibration inputs and writes the file; returns what the file must compute.
        tolerance: Largest difference from that, as a share of the largest output: where other kernels round otherwise,
            some values land a step of int8 apart.
        packages: Import names that it needs besides those of the format.
    """

    name: str
    export: Callable[[Deliverable, Quantization, list[Inputs], Path], Deliverable]
    tolerance: float
    packages: tuple[str, ...] = ()


SAME, ROUNDED = 1e-5, 0.25
FX = Backend("torch.ao", fx.export, SAME)
ONNX = Backend("ONNX Runtime", onnx_runtime.export, ROUNDED)
TORCHAO = ("torchao",)
BACKENDS: dict[tuple[str, str], Backend] = {
    ("torchscript", "dynamic"): FX,
    ("torchscript", "static"): FX,
    ("onnx", "dynamic"): ONNX,
    ("onnx", "static"): ONNX,
    ("torch_export", "dynamic"): Backend("torchao", linear.export_torch_export, SAME, TORCHAO),
    ("torch_export", "weight_only"): Backend("torchao", linear.export_torch_export, SAME, TORCHAO),
    ("torch_export", "static"): Backend("torchao PT2E", pt2e.export_torch_export, SAME, TORCHAO),
    ("aotinductor", "dynamic"): Backend("torchao", linear.export_aotinductor, ROUNDED, TORCHAO),
    ("aotinductor", "weight_only"): Backend("torchao", linear.export_aotinductor, 1e-4, TORCHAO),
    ("executorch", "static"): Backend("XNNPACK", pt2e.export_executorch, ROUNDED, TORCHAO),
}
# convolutions need ranges beforehand; what is mostly Linear has inputs whose ranges differ from text to text
TASKS = {"dynamic": ("text", "language"), "weight_only": ("text", "language"), "static": ("vision", "diffusion")}


def check_quantization(formats: Iterable[str], settings: Quantization) -> None:
    """Refuse formats that can't be had in int8, before any work.

    Raises:
        ValueError: No backend serves a format with this method, or its package is missing.
    """
    for name in formats:
        backend = BACKENDS.get((name, settings.method))
        if backend is None:
            served = ", ".join(format_name for format_name, method in BACKENDS if method == settings.method)
            raise ValueError(f"no backend makes {name} with {settings.method} quantization: choose from {served}")
        for package in backend.packages:
            if importlib.util.find_spec(package) is None:
                raise ValueError(f"{settings.method} quantization of {name} needs the package {package}: {EXTRA}")


def check_task(given: Deliverable, settings: Quantization) -> None:
    """Refuse a method that does not suit a task, and names of modules that are not there.

    Raises:
        ValueError: It says what suits.
    """
    if given.task not in TASKS[settings.method]:
        fitting = " or ".join(method for method, tasks in TASKS.items() if given.task in tasks)
        raise ValueError(f"{settings.method} quantization is not for the task {given.task}: use {fitting}")
    settings.check_names(fx.inner(given))
