"""The function that tells what leaves of a task, to which each task adds its own; scores that tasks share."""

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from callbacks.export.deliverable import Deliverable


@singledispatch
def describe(task: Any, data: Any) -> list[Deliverable]:
    """What leaves of a task.

    Args:
        task: A task in eval mode on the CPU, as `load_task` returns it.
        data: Its datamodule, set up.

    Raises:
        ValueError: There is no export of such a task.
    """
    known = [kind.__name__ for kind in describe.registry if kind is not object]
    raise ValueError(f"there is no export of a {type(task).__name__}: it is none of {known}")


def accuracy(outputs: list[Tensor], labels: list[Tensor]) -> float:
    """Share of logits (B, K) whose largest is the label's."""
    return float((torch.cat(outputs).argmax(-1) == torch.cat(labels)).float().mean())
