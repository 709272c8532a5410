"""int8 of captured graphs (PT2E): by torchao for Inductor on x86, by ExecuTorch's XNNPACK for phones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from callbacks.export.deliverable import Deliverable, Inputs
from callbacks.export.formats import MOBILE_BATCH, export_program, first_line, lower_to_mobile
from callbacks.quantization.settings import Quantization, layers


class Captured(nn.Module):
    """A captured graph that is in eval mode and can't leave it."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.net(*inputs)

    def train(self, mode: bool = True) -> "Captured":
        """Does nothing: such graphs refuse it."""
        return self


def quantize(
    given: Deliverable, quantizer: Any, calibration: list[Inputs], *, largest_batch: int | None = None
) -> Deliverable:
    """The deliverable with a graph whose values are rounded to int8 and back, which compilers turn into int8 kernels.

    Raises:
        ValueError: The quantizer does not understand the graph.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    graph = export_program(given, largest_batch=largest_batch).module()
    with torch.no_grad():
        try:
            prepared = prepare_pt2e(graph, quantizer)
        except Exception as error:
            raise ValueError(f"PT2E can't quantize this net, use the format onnx: {first_line(error)}") from error
        for inputs in calibration:
            size = largest_batch or len(next(iter(inputs.values())))
            for start in range(0, len(next(iter(inputs.values()))), size):
                prepared(*(tensor[start : start + size] for tensor in inputs.values()))
        return replace(given, net=Captured(convert_pt2e(prepared)))


def x86(given: Deliverable, settings: Quantization, calibration: list[Inputs]) -> Deliverable:
    """For Inductor."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as tools

    quantizer = tools.X86InductorQuantizer()
    quantizer.set_global(
        tools.get_default_x86_inductor_quantization_config(
            is_dynamic=settings.method == "dynamic", reduce_range=not torch.cpu._is_vnni_supported()
        )
    )
    for name in skipped_layers(given, settings):
        quantizer.set_module_name_qconfig(name, None)
    return quantize(given, quantizer, calibration)


def export_torch_export(
    given: Deliverable, settings: Quantization, calibration: list[Inputs], path: Path
) -> Deliverable:
    """Quantize and write a `.pt2`, which computes in float32 what int8 would."""
    made = x86(given, settings, calibration)
    torch.export.save(export_program(made), path)
    return made


def export_executorch(given: Deliverable, settings: Quantization, calibration: list[Inputs], path: Path) -> Deliverable:
    """Quantize and write a `.pte` with XNNPACK's int8 kernels."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=settings.per_channel, is_dynamic=settings.method == "dynamic")
    )
    for name in skipped_layers(given, settings):
        quantizer.set_module_name(name, None)
    made = quantize(given, quantizer, calibration, largest_batch=MOBILE_BATCH)
    path.write_bytes(lower_to_mobile(export_program(made, largest_batch=MOBILE_BATCH)))
    return made


def skipped_layers(given: Deliverable, settings: Quantization) -> list[str]:
    """Layers that stay float32, as the captured graph names them."""
    names = (name for name, _ in layers(given.net, (nn.Linear, nn.Conv1d, nn.Conv2d)))
    return [name for name in names if settings.skips(name.removeprefix("net."))]
