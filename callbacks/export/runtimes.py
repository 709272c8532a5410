"""Artifacts, loaded each in its own runtime: a function of tensors by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from callbacks.export import torchscript
from callbacks.export.deliverable import Inputs, Outputs

Run = Callable[[Inputs], Outputs]


def load(format_name: str, path: Path) -> Run:
    """The artifact at `path`, as a function from inputs by name to its outputs."""
    return {
        "onnx": load_onnx,
        "torchscript": load_torchscript,
        "torchscript_script": load_torchscript,
        "torch_export": load_torch_export,
        "aotinductor": load_aotinductor,
        "executorch": load_executorch,
    }[format_name](path)


def load_onnx(path: Path) -> Run:
    """By ONNX Runtime, on as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> Outputs:
        made: Any = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return tuple(map(torch.from_numpy, made))

    return run


def in_order(net: Callable[..., Any]) -> Run:
    """A function of tensors in order as one of tensors by name."""

    def run(inputs: Inputs) -> Outputs:
        # compiled code reads what it is given with the strides of the example
        made = net(*(tensor.contiguous() for tensor in inputs.values()))
        return tuple(made) if isinstance(made, tuple | list) else (made,)

    return run


def load_torchscript(path: Path) -> Run:
    """By torch; inputs in order."""
    return in_order(torchscript.load(path))


def load_torch_export(path: Path) -> Run:
    """By torch; inputs in order."""
    if ".int8" in path.name:
        import torchao.quantization.pt2e  # noqa: F401  # the operators of int8 graphs register themselves
    return in_order(torch.export.load(path).module())


def load_aotinductor(path: Path) -> Run:
    """By torch, as compiled code; inputs in order."""
    return in_order(torch._inductor.aoti_load_package(str(path)))


def load_executorch(path: Path) -> Run:
    """By ExecuTorch's runtime for Python; inputs in order."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return in_order(lambda *tensors: method.execute(list(tensors)))
