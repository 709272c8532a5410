"""int8 Linear layers by torchao's `quantize_`, for nets that are mostly Linear: weights alone, or activations too."""

from dataclasses import replace
from pathlib import Path

from torch import nn

from callbacks.export.deliverable import Deliverable, Inputs, Positional
from callbacks.export.formats import FORMATS
from callbacks.quantization.fx import inner
from callbacks.quantization.settings import Quantization


def quantize(given: Deliverable, settings: Quantization) -> nn.Module:
    """A copy of the net with its Linear layers in int8, a scale for each output channel."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    net = inner(given)
    kind = Int8WeightOnlyConfig if settings.method == "weight_only" else Int8DynamicActivationInt8WeightConfig
    quantize_(net, kind(), lambda module, name: isinstance(module, nn.Linear) and not settings.skips(name))
    return net


def export_as(format_name: str, given: Deliverable, settings: Quantization, path: Path) -> Deliverable:
    """Quantize and write a format that starts from `torch.export`; returns what was captured."""
    made = replace(given, net=Positional(quantize(given, settings)).eval())
    FORMATS[format_name].export(made, path)
    return made


def export_torch_export(
    given: Deliverable, settings: Quantization, calibration: list[Inputs], path: Path
) -> Deliverable:
    """As `export_as`."""
    return export_as("torch_export", given, settings, path)


def export_aotinductor(
    given: Deliverable, settings: Quantization, calibration: list[Inputs], path: Path
) -> Deliverable:
    """As `export_as`."""
    return export_as("aotinductor", given, settings, path)
