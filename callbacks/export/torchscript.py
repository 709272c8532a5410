"""Every call of `torch.jit`, which is deprecated, and its warnings."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def deprecated() -> Iterator[None]:
    """Silence what is known: that `torch.jit` goes, and that traces fix what Python decides from sizes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", category=FutureWarning)
        warnings.filterwarnings("ignore", "`torch.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # the gate runs other sizes
        yield


def trace(net: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Write a frozen trace."""
    with deprecated(), torch.no_grad():
        made = torch.jit.trace(net, inputs, check_trace=False)  # the gate checks, in another process
        torch.jit.save(torch.jit.freeze(made), str(path))


def scripted(net: nn.Module) -> Any:
    """The net as TorchScript understands it; quick, so that a refusal comes before any work.

    Raises:
        ValueError: The net uses what TorchScript does not know, as those of transformers do.
    """
    for part in net.modules():
        if type(part).__module__.startswith("transformers."):
            raise ValueError(
                f"{type(part).__name__} is of transformers, whose nets can't be scripted: use the format torchscript, "
                "which traces"
            )

    kind: Any = type(net)  # TorchScript compiles properties too, unless their class names them here
    kind.__jit_unused_properties__ = [name for name, part in vars(kind).items() if isinstance(part, property)]
    try:
        with deprecated():
            return torch.jit.script(net)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(
            f"{type(net).__name__} can't be scripted ({reason.strip()}): use the format torchscript, which traces"
        ) from error


def script(net: nn.Module, path: Path) -> None:
    """Write a frozen script.

    Raises:
        ValueError: As `scripted`.
    """
    with deprecated():
        torch.jit.save(torch.jit.freeze(scripted(net)), str(path))


def load(path: Path) -> Any:
    """The net of a file."""
    with deprecated():
        return torch.jit.load(str(path))
