"""LoRA (Hu et al., arXiv 2106.09685) by the `peft` package: low-rank updates trained in place of the weights."""

from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class LoRA:
    """Settings of the low-rank updates.

    Args:
        rank: Rank of each update.
        alpha: The update counts `alpha / rank` times.
        dropout: Dropout ahead of the update.
        target_modules: Names of the linear layers that get one, as they end; by itself every one.
    """

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank ({self.rank}) must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"lora.dropout ({self.dropout}) must be within [0, 1)")


def add_lora(net: nn.Module, options: LoRA) -> None:
    """Give the net's linear layers low-rank updates, in place, and freeze everything else in it.

    Raises:
        ImportError: `peft` is missing.
        ValueError: No layer has one of the names.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from transformers.pytorch_utils import Conv1D  # a linear layer, as GPT-2 has them
    except ModuleNotFoundError as error:
        raise ImportError('lora needs the package peft: pip install ".[text]"') from error
    paths = [path for path, module in net.named_modules() if isinstance(module, (nn.Linear, Conv1D))]
    linear = sorted({path.split(".")[-1] for path in paths})
    targets = list(options.target_modules) or linear
    if unknown := [name for name in targets if not any(_ends_with(path, name) for path in paths)]:
        raise ValueError(f"lora.target_modules {unknown} match no linear layer; they are called {linear}")
    config = LoraConfig(
        r=options.rank, lora_alpha=options.alpha, lora_dropout=options.dropout, target_modules=targets, bias="none"
    )
    inject_adapter_in_model(config, net)


def merge_lora(net: nn.Module) -> nn.Module:
    """Fold low-rank updates into the weights they belong to, in place: afterwards no trace of `peft` is left.

    A net without any stays as it is.
    """
    layers = [(name, module) for name, module in net.named_modules() if hasattr(module, "get_base_layer")]
    for name, module in layers:
        module.merge()
        parent, _, child = name.rpartition(".")
        setattr(net.get_submodule(parent), child, module.get_base_layer())
    return net


def _ends_with(full: str, name: str) -> bool:
    return full == name or full.endswith("." + name)
