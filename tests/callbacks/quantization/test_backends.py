"""int8 against what rounding must give, and the gate's verdict on what it costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from callbacks.export import gate, runtimes
from callbacks.export.deliverable import Deliverable, Inputs, Positional, TensorSpec
from callbacks.export.formats import FORMATS
from callbacks.quantization import fx, linear, onnx_runtime
from callbacks.quantization.backends import BACKENDS, check_quantization, check_task
from callbacks.quantization.settings import Quantization

STATIC, DYNAMIC = Quantization("static"), Quantization("dynamic")


def deliverable(net: nn.Module, shape: tuple[int, ...], classes: int, task: str = "vision") -> Deliverable:
    """A classifier of anything."""
    return Deliverable(
        task=task,
        net=Positional(net).eval().requires_grad_(False),
        inputs=[TensorSpec("x", "float32", ("batch", *shape), "")],
        outputs=[TensorSpec("logits", "float32", ("batch", classes), "")],
        facts={},
        to_inputs=lambda batch: {"x": batch[0]},
        metric="accuracy",
        score=lambda outputs, batches: float(
            (torch.cat(outputs).argmax(-1) == torch.cat([batch[1] for batch in batches])).float().mean()
        ),
    )


def matrix() -> Deliverable:
    """One Linear layer, whose output for the identity is its weight; one channel is a hundred times the others."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32, bias=False)
    layer.weight.data[0] *= 100
    return deliverable(nn.Sequential(layer), (64,), 32, task="text")


def images() -> tuple[Deliverable, list[Any]]:
    """A convolutional net that tells bright images from dark ones, and 80 of them."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )
    x = torch.randn(80, 1, 8, 8) * 3 + 1
    net(x)  # statistics
    given = deliverable(net, (1, 8, 8), 4)
    with torch.no_grad():
        return given, [(x, given.net(x).argmax(-1))]


def weights_of(run: Any) -> Tensor:
    return run({"x": torch.eye(64)})[0].T  # (32, 64)


@pytest.mark.parametrize("method", ["dynamic", "weight_only"])
@pytest.mark.parametrize("format_name", ["torchscript", "onnx", "torch_export"])
def test_each_weight_is_rounded_to_its_channels_step(format_name: str, method: Any, tmp_path: Path) -> None:
    if (format_name, method) not in BACKENDS:
        pytest.skip("no backend, see the table in docs/quantization.md")
    given, path = matrix(), tmp_path / f"a.int8{FORMATS[format_name].suffix}"
    BACKENDS[format_name, method].export(given, Quantization(method), [], path)
    weight: Any = given.net.net[0].weight  # type: ignore[union-attr,index]
    made = weights_of(runtimes.load(format_name, path))
    step = weight.abs().amax(1, keepdim=True) / 127
    wrong = (made - weight).abs()
    assert (wrong <= 1.05 * step).all()  # half a step of its own, and at most another of the input's
    assert wrong.max() > 0  # it was rounded at all


def test_one_scale_for_all_channels_is_worse(tmp_path: Path) -> None:
    given = matrix()
    small: Any = given.net.net[0].weight[1:]  # type: ignore[union-attr,index]
    errors = []
    for per_channel in (True, False):
        made = fx.export(given, replace(DYNAMIC, per_channel=per_channel), [], tmp_path / "a")
        errors.append(float((weights_of(made.run)[1:] - small).abs().max()))
    assert errors[0] < 0.1 * errors[1]


@pytest.mark.parametrize("format_name", ["torchscript", "onnx", "torch_export"])
def test_static_passes_the_gate(format_name: str, tmp_path: Path) -> None:
    given, batches = images()
    (inputs, *_), _ = samples = gate.collect(given, batches)
    plain, path = (tmp_path / f"a{kind}{FORMATS[format_name].suffix}" for kind in ("", ".int8"))
    FORMATS[format_name].export(given, plain)
    backend = BACKENDS[format_name, "static"]
    reference = backend.export(given, STATIC, [inputs], path)
    rounded = gate.Rounded(reference, backend.tolerance, "static", max_drop=0.1, rival=plain)
    verdict = gate.check(given, format_name, path, samples, seconds=0, rounded=rounded)
    assert verdict.told == "passed"
    assert float((runtimes.load(format_name, path)(inputs)[0] - given.run(inputs)[0]).abs().max()) > 0


def test_ranges_from_the_wrong_data_are_not_worth_it(tmp_path: Path) -> None:
    given, batches = images()
    (inputs, *_), _ = samples = gate.collect(given, batches)
    dim = [{"x": inputs["x"] / 100}]  # so that all that is bright is cut off
    FORMATS["torchscript"].export(given, tmp_path / "a")
    reference = fx.export(given, STATIC, dim, tmp_path / "b")
    rounded = gate.Rounded(reference, 1e-5, "static", max_drop=0.1, rival=tmp_path / "a")
    verdict = gate.check(given, "torchscript", tmp_path / "b", samples, seconds=0, rounded=rounded)
    assert verdict.problem is None
    assert "lost, 10.00% is allowed" in verdict.told


def test_a_quantized_file_that_computes_something_else_fails(tmp_path: Path) -> None:
    given, batches = images()
    (inputs, *_), _ = samples = gate.collect(given, batches)
    FORMATS["torchscript"].export(given, tmp_path / "a")
    fx.export(given, replace(STATIC, per_channel=False), [inputs], tmp_path / "b")
    reference = replace(given, net=Positional(fx.quantize_static(given, STATIC, [inputs])))
    rounded = gate.Rounded(reference, 1e-5, "static", max_drop=0.5, rival=tmp_path / "a")
    verdict = gate.check(given, "torchscript", tmp_path / "b", samples, seconds=0, rounded=rounded)
    assert verdict.told.startswith("FAILED: differs by")


def test_what_is_skipped_stays_as_it_was(tmp_path: Path) -> None:
    given, batches = images()
    inputs: Inputs = given.to_inputs(batches[0])
    everything = replace(STATIC, skip_modules=tuple(str(place) for place in range(7)))
    assert_close(fx.quantize_static(given, everything, [inputs])(inputs["x"]), given.net(inputs["x"]))
    dynamic, kept = matrix(), replace(DYNAMIC, skip_modules=("0",))
    for make in (lambda settings: fx.quantize_dynamic(dynamic, settings, []), lambda s: linear.quantize(dynamic, s)):
        assert not torch.equal(make(DYNAMIC)(torch.eye(64)), dynamic.net(torch.eye(64)))
        assert torch.equal(make(kept)(torch.eye(64)), dynamic.net(torch.eye(64)))

    def quantized_convolutions(settings: Quantization) -> int:
        onnx_runtime.export(given, settings, [inputs], tmp_path / "a.onnx")
        graph = onnx.load(str(tmp_path / "a.onnx")).graph
        makers = {name: node.op_type for node in graph.node for name in node.output}
        return sum(node.op_type == "Conv" and makers.get(node.input[1]) == "DequantizeLinear" for node in graph.node)

    assert quantized_convolutions(STATIC) == 2
    assert quantized_convolutions(replace(STATIC, skip_modules=("3",))) == 1


def test_int8_must_be_faster_than_the_same_format_somewhere() -> None:
    assert gate.slower({1: (9.0, 2.0, 1.0), 8: (9.0, 2.0, 3.0)}) is None
    assert gate.slower({}) is None
    told = gate.slower({1: (9.0, 2.0, 1.0), 8: None})
    assert told == "no faster than the same format in float32: 2.00 ms against 1.00 at batch 1"


def test_a_drop_of_an_accuracy_is_in_points_and_of_a_loss_a_share() -> None:
    given, _ = images()
    assert gate.drop_of(given, 0.9, 0.89) == pytest.approx(0.01)
    assert gate.drop_of(replace(given, higher_is_better=False), 20.0, 21.0) == pytest.approx(0.05)


def test_what_can_not_be_had_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"no backend makes torchscript with weight_only .*: choose from torch_export"):
        check_quantization(["torchscript"], Quantization("weight_only"))
    with pytest.raises(ValueError, match="dynamic quantization is not for the task vision: use static"):
        check_task(images()[0], DYNAMIC)
    with pytest.raises(ValueError, match="the net has no module 'layer9'; it has 0, 1, 2"):
        check_task(images()[0], replace(STATIC, skip_modules=("layer9",)))
    for options, message in [
        ({"method": "int4"}, "there is no quantization 'int4'"),
        ({"method": "static", "observer": "best"}, "observer 'best' must be one of histogram, min_max"),
        ({"method": "static", "calibration_batches": 0}, "must be above 0"),
        ({"method": "static", "max_drop": 3}, "0.01 is a point of accuracy"),
    ]:
        with pytest.raises(ValueError, match=message):
            Quantization(**options)  # type: ignore[arg-type]
