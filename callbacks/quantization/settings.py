"""What may be asked of quantization, the same for every backend."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

Method = Literal["dynamic", "static", "qat", "weight_only"]
Observer = Literal["histogram", "min_max"]


@dataclass(frozen=True)
class Quantization:
    """How weights and activations become 8-bit integers.

    Args:
        method: dynamic: weights now, activations each time by their range; static: both now, by what calibration saw;
            qat: as the net was trained to bear it (configs/overlay/qat.yaml); weight_only: weights, in memory alone.
        observer: How calibration finds ranges: by the histogram that loses least, or by the extremes.
        per_channel: A scale for each output channel of a weight; else one for all.
        calibration_batches: Training batches that calibration sees.
        skip_modules: Names in the net of what stays float32, with all that is inside.
        max_drop: Score that may be lost: of an accuracy as it is (0.01 is a point), of a perplexity or a loss a share.

    Raises:
        ValueError: An option is out of range.
    """

    method: Method
    observer: Observer = "histogram"
    per_channel: bool = True
    calibration_batches: int = 16
    skip_modules: tuple[str, ...] = ()
    max_drop: float = 0.01

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"there is no quantization {self.method!r}: choose from {', '.join(get_args(Method))}")
        if self.observer not in get_args(Observer):
            raise ValueError(f"observer {self.observer!r} must be one of {', '.join(get_args(Observer))}")
        if self.calibration_batches < 1:
            raise ValueError(f"calibration_batches ({self.calibration_batches}) must be above 0")
        if not 0 <= self.max_drop < 1:
            raise ValueError(f"max_drop ({self.max_drop}) must be within [0, 1): 0.01 is a point of accuracy")

    def skips(self, name: str) -> bool:
        """Whether a module stays float32."""
        return any(name == skipped or name.startswith(f"{skipped}.") for skipped in self.skip_modules)

    def check_names(self, net: nn.Module) -> None:
        """Refuse names that the net does not have.

        Raises:
            ValueError: There is no such module.
        """
        known = dict(net.named_modules())
        for name in self.skip_modules:
            if name not in known:
                children = ", ".join(child for child, _ in net.named_children())
                raise ValueError(f"skip_modules: the net has no module {name!r}; it has {children}, and what is inside")


def layers(net: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[tuple[str, nn.Module]]:
    """Layers of the given kinds, with their names."""
    return ((name, module) for name, module in net.named_modules() if isinstance(module, kinds))
