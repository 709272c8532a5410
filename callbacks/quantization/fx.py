"""Every use of `torch.ao.quantization`, which is deprecated (torch plans to remove it for torchao), and its warnings.

Static by FX graphs, whose int8 kernels TorchScript keeps; dynamic by exchanging the Linear layers.
"""

import contextlib
import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from callbacks.export.deliverable import Deliverable, Inputs, Positional
from callbacks.export.formats import export_torchscript, first_line
from callbacks.quantization.settings import Quantization, layers

ENGINES = ("x86", "onednn", "fbgemm", "qnnpack")  # the best that the machine has; qnnpack is ARM's


@contextlib.contextmanager
def deprecated() -> Iterator[None]:
    """Silence what is known: that `torch.ao.quantization` goes, and how its observers call torch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.ao.quantization", category=DeprecationWarning)
        warnings.filterwarnings("ignore", ".*torch.ao.quantization", category=FutureWarning)
        warnings.filterwarnings("ignore", ".*torch.quantize_per_tensor", category=UserWarning)
        warnings.filterwarnings("ignore", ".*must run observer before calling calculate_qparams", category=UserWarning)
        warnings.filterwarnings("ignore", ".*reduce_range will be deprecated", category=UserWarning)
        warnings.filterwarnings("ignore", ".*TypedStorage is deprecated", category=UserWarning)
        yield


def use_engine() -> str:
    """Choose the int8 kernels of this machine for all of torch.

    Raises:
        ValueError: torch was built without any.
    """
    supported = torch.backends.quantized.supported_engines
    for engine in ENGINES:
        if engine in supported and not (engine == "qnnpack" and "x86" in supported):
            torch.backends.quantized.engine = engine
            return engine
    raise ValueError(f"this torch has no int8 kernels (it has {supported}): use the format onnx, or executorch")


def qconfig_of(settings: Quantization, engine: str) -> Any:
    """What observes activations and weights, with the ranges that the engine's kernels need."""
    from torch.ao.quantization import (
        HistogramObserver,
        MinMaxObserver,
        QConfig,
        default_per_channel_weight_observer,
        default_weight_observer,
    )

    kind = HistogramObserver if settings.observer == "histogram" else MinMaxObserver
    # without VNNI, sums of two products may overflow 16 bits: activations keep to 7 bits then
    activation = kind.with_args(reduce_range=engine in ("x86", "fbgemm") and not has_vnni())
    return QConfig(
        activation=activation,
        weight=default_per_channel_weight_observer if settings.per_channel else default_weight_observer,
    )


def has_vnni() -> bool:
    """Whether the CPU multiplies 8-bit integers into 32 bits."""
    return torch.cpu._is_vnni_supported()


def quantize_static(given: Deliverable, settings: Quantization, calibration: list[Inputs]) -> nn.Module:
    """The net with convolutions, matrices and what is between them in int8.

    Raises:
        ValueError: FX can't follow the net.
    """
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.fx.custom_config import PrepareCustomConfig
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    engine, net = use_engine(), inner(given)
    mapping = get_default_qconfig_mapping(engine)
    usual, ours = mapping.global_qconfig, qconfig_of(settings, engine)
    mapping.set_global(ours)
    for kind, qconfig in list(mapping.object_type_qconfigs.items()):
        if qconfig == usual:  # others are bound to what they serve, as softmax to the range 0 to 1
            mapping.set_object_type(kind, ours)
    for name in settings.skip_modules:
        mapping.set_module_name(name, None)
        for part, _ in net.get_submodule(name).named_modules(prefix=name):
            mapping.set_module_name(part, None)
    whole = PrepareCustomConfig().set_non_traceable_module_classes(list(given.opaque))
    example = tuple(given.example().values())
    with deprecated(), torch.no_grad():
        try:
            prepared = prepare_fx(net, mapping, example, prepare_custom_config=whole)
        except Exception as error:
            raise ValueError(f"FX can't follow the net, use the format onnx: {first_line(error)}") from error
        for inputs in calibration:
            prepared(*inputs.values())
        return convert_fx(prepared)


def quantize_dynamic(given: Deliverable, settings: Quantization, calibration: list[Inputs]) -> nn.Module:
    """The net with Linear layers whose inputs become int8 as they come."""
    from torch.ao.quantization import default_dynamic_qconfig, per_channel_dynamic_qconfig
    from torch.ao.quantization import quantize_dynamic as exchange

    use_engine()
    net = inner(given)
    qconfig = per_channel_dynamic_qconfig if settings.per_channel else default_dynamic_qconfig
    chosen = {name: qconfig for name, _ in layers(net, (nn.Linear,)) if not settings.skips(name)}
    with deprecated():
        return exchange(net, chosen, dtype=torch.qint8)


def inner(given: Deliverable) -> nn.Module:
    """A copy of the net without the wrapper that orders its inputs."""
    return copy.deepcopy(given.net.net if isinstance(given.net, Positional) else given.net)


def export(given: Deliverable, settings: Quantization, calibration: list[Inputs], path: Path) -> Deliverable:
    """Quantize and write TorchScript; returns what was traced."""
    make = quantize_dynamic if settings.method == "dynamic" else quantize_static
    made = replace(given, net=Positional(make(given, settings, calibration)).eval())
    with deprecated():
        export_torchscript(made, path)
    return made
