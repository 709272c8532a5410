"""Where pretrained weights come from, and when they are not wanted.

A net that is about to be filled from a checkpoint must not fetch pretrained weights first: the download would be thrown
away, and fail on a machine without a network.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import Tensor, nn

_skipped: ContextVar[bool] = ContextVar("pretrained_weights_skipped", default=False)


@contextlib.contextmanager
def without_pretrained_weights() -> Iterator[None]:
    """Nets built inside this context leave their pretrained weights out."""
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


def pretrained_weights_wanted() -> bool:
    """Whether a net under construction should fetch its pretrained weights."""
    return not _skipped.get()


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a file: a plain state dict, or a Lightning checkpoint, whose `net.` prefix is taken off.

    Raises:
        ValueError: Where the file can't be read as either; the file is named.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is not a readable checkpoint or state dict: {reason}") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no state dict (names and tensors)")
    if "state_dict" in content:
        state = {name.removeprefix("net."): value for name, value in state.items() if name.startswith("net.")}
    return state


def load_matching(net: nn.Module, state: dict[str, Tensor], *, head: str = "head.") -> list[str]:
    """Load `state` into `net`, where only the head may differ in shape or be absent.

    Returns:
        Names of the head's parameters that keep their fresh initialisation.

    Raises:
        ValueError: Where anything but the head is missing, unexpected or of another shape; the names are listed.
    """
    own = net.state_dict()
    fits = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    wrong = [
        f"{name} is {tuple(value.shape)} in the file and {tuple(own[name].shape)} in the net"
        if name in own
        else f"{name} is not in the net"
        for name, value in state.items()
        if name not in fits and not name.startswith(head)
    ]
    wrong += [f"{name} is not in the file" for name in own if name not in state and not name.startswith(head)]
    if wrong:
        shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise ValueError(f"pretrained weights do not fit {type(net).__name__}: {shown}")
    net.load_state_dict(fits, strict=False)
    return [name for name in own if name not in fits]
