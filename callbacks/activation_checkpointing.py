"""Activation checkpointing (Chen et al., arXiv 1604.06174): compute activations again instead of keeping them."""

import functools
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.rank_zero import rank_zero_info
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(net: nn.Module, *, every_k: int = 1) -> list[nn.Module]:
    """Let every k-th of the net's blocks, the modules of the classes in `net.BLOCKS`, keep nothing but its inputs.

    The block's `forward` is replaced, not the block: names of parameters, types of modules and the state stay as they
    are (torch's checkpoint_wrapper changes the first two). Dropout draws the same numbers again.

    Returns:
        The blocks, for `restore_blocks`.

    Raises:
        ValueError: The net declares no blocks, or has none of them.
    """
    classes = tuple(getattr(net, "BLOCKS", ()))
    found = [module for module in net.modules() if classes and isinstance(module, classes)]
    inside = {child for module in found for child in module.modules() if child is not module}
    blocks = [module for module in found if module not in inside][::every_k]  # one within another is covered by it
    if not blocks:
        raise ValueError(f"activation checkpointing needs a net with blocks; BLOCKS of {type(net).__name__} names none")
    for block in blocks:
        block.forward = functools.partial(_forward, block, block.forward)
    return blocks


def restore_blocks(blocks: list[nn.Module]) -> None:
    """Give the blocks their own `forward` back."""
    for block in blocks:
        del block.forward


def _forward(block: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    # non-reentrant: the reentrant kind gives no gradients behind a frozen first stage
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


class ActivationCheckpointing(Callback):
    """Trades time for memory during a fit: activations of blocks are computed a second time in the backward pass.

    Args:
        every_k: Every k-th block; 1 is all of them and saves most.

    Raises:
        ValueError: An option is out of range, or the net has no blocks.
    """

    def __init__(self, *, every_k: int = 1) -> None:
        if every_k < 1:
            raise ValueError(f"every_k ({every_k}) must be at least 1")
        self.every_k = every_k
        self._blocks: list[nn.Module] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace the blocks' forward."""
        net: Any = pl_module.net
        self._blocks = checkpoint_blocks(net, every_k=self.every_k)
        rank_zero_info(f"Activation checkpointing of {len(self._blocks)} blocks ({type(self._blocks[0]).__name__})")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give it back."""
        restore_blocks(self._blocks)
        self._blocks = []
