"""int8 by ONNX Runtime's own tools: QDQ graphs, static and dynamic, from the float32 file."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from callbacks.export.deliverable import Deliverable, Inputs, Positional
from callbacks.export.formats import export_onnx, first_line
from callbacks.quantization.settings import Quantization

OPERATORS = ["Conv", "MatMul", "Gemm"]


def export(given: Deliverable, settings: Quantization, calibration: list[Inputs], path: Path) -> Deliverable:
    """Quantize and write ONNX; returns the same graph as it is computed without fused kernels.

    Raises:
        ValueError: ONNX Runtime refuses the graph.
    """
    from onnxruntime import quantization as tools
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as temporary, quiet():
        source, prepared = Path(temporary) / "float.onnx", Path(temporary) / "prepared.onnx"
        export_onnx(given, source)
        common: dict[str, Any] = {
            "per_channel": settings.per_channel,
            "weight_type": tools.QuantType.QInt8,
            "nodes_to_exclude": skipped_nodes(source, settings),
            "op_types_to_quantize": OPERATORS,
        }
        try:
            quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            if settings.method == "dynamic":
                tools.quantize_dynamic(str(prepared), str(path), **common)
            else:
                calibrate = {
                    "histogram": tools.CalibrationMethod.Entropy,
                    "min_max": tools.CalibrationMethod.MinMax,
                }[settings.observer]
                tools.quantize_static(
                    str(prepared),
                    str(path),
                    reader(calibration),
                    quant_format=tools.QuantFormat.QDQ,
                    activation_type=tools.QuantType.QUInt8,
                    calibrate_method=calibrate,
                    **common,
                )
        except Exception as error:
            raise ValueError(f"ONNX Runtime can't quantize this graph: {first_line(error)}") from error
    return replace(given, net=Positional(Unfused(path, [spec.name for spec in given.inputs])))


def reader(calibration: list[Inputs]) -> Any:
    """Calibration inputs as ONNX Runtime asks for them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(calibration)

        def get_next(self) -> Any:
            inputs = next(self.left, None)
            return None if inputs is None else {name: tensor.numpy() for name, tensor in inputs.items()}

    return Reader()


def skipped_nodes(source: Path, settings: Quantization) -> list[str]:
    """Names of the graph's nodes that come from modules that stay float32."""
    import onnx

    names = []
    for node in onnx.load(str(source)).graph.node:
        scopes = next((part.value for part in node.metadata_props if part.key.endswith("name_scopes")), "")
        modules = [scope.strip(" []'\"").removeprefix("net.") for scope in scopes.split(",")]
        if any(settings.skips(module) for module in modules):
            names.append(node.name)
    return names


class Unfused(nn.Module):
    """An ONNX file computed node by node, each value rounded to int8 and back: what fused kernels must agree with."""

    def __init__(self, path: Path, names: list[str]) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        arrays = {name: tensor.numpy() for name, tensor in zip(self.names, inputs, strict=True)}
        made: Any = tuple(map(torch.from_numpy, self.session.run(None, arrays)))
        return made if len(made) > 1 else made[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the tools, which print their progress and log a warning for each small tensor that they leave alone."""
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)
