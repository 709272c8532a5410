"""What leaves of a task: a net with plain tensors in and out, and what a user of the file must know of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]
Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output.

    Args:
        name: Its name in the artifact.
        dtype: float32, int64 or uint8.
        shape: Sizes; those by name (batch, length, past) are free.
        meaning: What it holds, and in which range.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str

    @property
    def free(self) -> dict[int, str]:
        """The free sizes by dimension."""
        return {place: size for place, size in enumerate(self.shape) if isinstance(size, str)}


@dataclass
class Deliverable:
    """A net, ready to be exported.

    Args:
        task: vision, text, language or diffusion.
        net: Takes the inputs in order and returns the outputs; in eval mode, on the CPU.
        inputs: What it takes.
        outputs: What it returns; batches come first in each.
        facts: What a user needs besides: preprocessing, class names, the tokenizer's file.
        to_inputs: A batch of the datamodule as inputs.
        metric: Name of the score.
        score: The score of first outputs for batches of the datamodule.
        limits: Largest value of a free size.
        scored: Samples to score, at most.
        higher_is_better: Whether a higher score is.
        opaque: Classes of modules that tracers of Python's control flow (FX) must not look into.
        name: Of the files.
        raw_samples: Of classifiers: for a folder to write to and a count, validation samples as a user has them (files,
            texts), and what the task's `probabilities` takes.
        with_preprocessing: Makes the same with preprocessing and softmax inside, where there is such a thing.
    """

    task: str
    net: nn.Module
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    facts: dict[str, Any]
    to_inputs: Callable[[Any], Inputs]
    metric: str
    score: Callable[[list[Tensor], list[Any]], float]
    limits: dict[str, int] = field(default_factory=dict)
    scored: int = 512
    higher_is_better: bool = True
    opaque: tuple[type[nn.Module], ...] = ()
    name: str = "model"
    raw_samples: Callable[[Path, int], tuple[list[str], Any]] | None = None
    with_preprocessing: Callable[[], "Deliverable"] | None = None

    def run(self, inputs: Inputs) -> Outputs:
        """What the net makes of inputs."""
        made = self.net(*inputs.values())
        return made if isinstance(made, tuple) else (made,)

    def example(self, batch: int = 2, length: int = 8) -> Inputs:
        """Inputs of the given free sizes, zeros, and ones for integers."""
        sizes = {"batch": batch} | {name: min(length, self.limits.get(name, length)) for name in ("length", "past")}
        make: dict[str, Callable[..., Tensor]] = {"float32": torch.zeros, "int64": torch.ones, "uint8": torch.ones}
        return {
            spec.name: make[spec.dtype](
                [sizes[size] if isinstance(size, str) else size for size in spec.shape],
                dtype=getattr(torch, spec.dtype),
            )
            for spec in self.inputs
        }


class Positional(nn.Module):
    """A net whose inputs go by position, in the order of the artifact's; float32 comes out."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Tensor) -> Tensor | Outputs:
        made = self.net(*inputs)
        return tuple(part.float() for part in made) if isinstance(made, tuple) else made.float()


class FromPixels(nn.Module):
    """A classifier with its preprocessing and softmax: pixels (B, C, H, W) of 0 to 255 to probabilities (B, K)."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net((pixels.float() / 255 - self.mean) / self.std).softmax(-1)
