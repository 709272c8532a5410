"""Scaled dot-product attention with interchangeable kernels and one description of who may see whom.

`naive` is the oracle: it builds every score. The others must agree with it, mask by mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# B batch, H heads, G key-value heads (H is a multiple of G), Q queries, K keys, D width of a head

Kernel = Literal["naive", "sdpa", "flash", "flex", "varlen"]


@dataclass(frozen=True)
class Mask:
    """Which keys a query may see: those that every given rule allows.

    Args:
        causal: No key at a later position.
        window: No key `window` or more positions away.
        documents: Number of the document of each position, (B, K): no key of another document.
        padding: True for positions that hold something, (B, K): no key that is padding.
        query_positions: Positions of the queries, (Q,). None: the last Q of the keys.
        key_positions: Positions of the keys, (K,), negative for a place that holds none. None: 0 to K - 1.
    """

    causal: bool = False
    window: int | None = None
    documents: Tensor | None = None
    padding: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None

    def is_plain(self, queries: int, keys: int) -> bool:
        """Whether nothing but the causal rule, if that, is left to check."""
        # lengths are asked for last: torch.export may not know them
        if any(part is not None for part in (self.documents, self.padding, self.query_positions, self.key_positions)):
            return False
        return (self.window is None or self.window >= keys) and (not self.causal or queries == keys)

    def allowed(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """True where a query may see a key: (Q, K) or (B, 1, Q, K). None: everywhere."""
        q = torch.arange(keys - queries, keys, device=device) if self.query_positions is None else self.query_positions
        k = torch.arange(keys, device=device) if self.key_positions is None else self.key_positions
        distance = q[:, None] - k[None, :]  # (Q, K)
        rules = []
        if self.causal:
            rules.append(distance >= 0)
        if self.window is not None:
            rules.append(distance.abs() < self.window)
        if self.key_positions is not None:
            rules.append((k >= 0).expand(queries, keys))
        if self.padding is not None:
            rules.append(self.padding[:, None, None, :])
        if self.documents is not None:
            rules.append(self.documents[:, None, -queries:, None] == self.documents[:, None, None, :])
        if not rules:
            return None
        result = rules[0]
        for rule in rules[1:]:
            result = result & rule
        return result


def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
    """Every score at once: (B, H, Q, D), (B, G, K, D), (B, G, K, D) to (B, H, Q, D); 0 where a query sees nothing."""
    k, v = _repeat_heads(k, q.shape[1]), _repeat_heads(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, Q, K)
    allowed = mask.allowed(q.shape[-2], k.shape[-2], q.device)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)  # -inf would give NaN in an empty row
    weights = scores.softmax(-1)
    if allowed is not None:
        weights = weights.masked_fill(~allowed, 0.0)
    return F.dropout(weights, dropout) @ v


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
    """PyTorch's own attention, which picks flash, memory-efficient or plain; arguments as `naive_attention`.

    A window is computed block by block where it is short against the sequence: the cost then grows with the window.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    grouped = bool(q.shape[1] != k.shape[1])  # a tensor, while torch.jit traces
    if mask.is_plain(queries, keys):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=mask.causal, enable_gqa=grouped)
    if _in_blocks(mask, queries, keys):
        return _blockwise_window(q, k, v, mask, dropout)
    allowed = mask.allowed(queries, keys, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout, enable_gqa=grouped)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
    """Flash attention (Dao et al., arXiv 2205.14135) or nothing; arguments as `naive_attention`.

    Raises:
        ValueError: The device, the type or the mask is none that it takes.
    """
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return sdpa_attention(q, k, v, mask, dropout)
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        raise ValueError(
            f"kernel flash takes no {q.dtype} on {q.device.type} with this mask or dropout ({dropout}): use sdpa"
        ) from error


class FlexAttention:
    """FlexAttention (Dong et al., arXiv 2412.05496), which skips blocks of keys that no query of a block may see.

    Args:
        fallback: What takes its place where the device can't train with it, as a CPU can't: `sdpa`, or an `error`.
    """

    def __init__(self, fallback: Literal["sdpa", "error"] = "sdpa") -> None:
        self.fallback = fallback
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        """Arguments as `naive_attention`.

        Raises:
            ValueError: It can't train here and `fallback` is error, or attention weights are to be dropped.
        """
        trains = torch.is_grad_enabled() and any(part.requires_grad for part in (q, k, v))
        if dropout or (trains and q.device.type == "cpu"):
            if self.fallback == "sdpa":
                return sdpa_attention(q, k, v, mask, dropout)
            reason = "drops no attention weights" if dropout else "computes no gradients on a CPU"
            raise ValueError(f"kernel flex {reason}: use sdpa")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        queries, keys = q.shape[-2], k.shape[-2]
        if self._compiled is None:
            # on a CPU for each shape anew: with dynamic ones torch 2.14 writes C++ that does not compile on AVX2
            self._compiled = torch.compile(flex_attention, dynamic=q.device.type != "cpu")
        block_mask = None
        if not (mask.is_plain(queries, keys) and not mask.causal):
            batched = mask.documents is not None or mask.padding is not None
            block_mask = create_block_mask(
                _predicate(mask, queries, keys, q.device),
                q.shape[0] if batched else None,
                None,
                queries,
                keys,
                q.device,
            )
        return self._compiled(q, k, v, block_mask=block_mask, enable_gqa=q.shape[1] != k.shape[1])


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
    """Flash attention over packed documents without a mask, on GPUs that have it; arguments as `naive_attention`.

    Raises:
        ValueError: On a CPU, or with a mask other than causal documents.
    """
    if q.device.type != "cuda":
        raise ValueError("kernel varlen runs on CUDA devices only: use sdpa")
    given = (mask.padding, mask.query_positions, mask.key_positions)
    if dropout or any(part is not None for part in given) or q.shape[-2] != k.shape[-2]:
        raise ValueError("kernel varlen takes neither padding nor a cache nor dropout: use sdpa")
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, length, width = q.shape
    k, v = _repeat_heads(k, heads), _repeat_heads(v, heads)
    documents = mask.documents
    if documents is None:
        documents = torch.zeros(batch, length, dtype=torch.int64, device=q.device)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    edges = torch.cat([starts.flatten().nonzero().flatten(), starts.new_full((1,), batch * length, dtype=torch.int64)])
    longest = int(edges.diff().max())
    flat_q, flat_k, flat_v = (part.transpose(1, 2).reshape(batch * length, heads, width) for part in (q, k, v))
    reach = -1 if mask.window is None else mask.window - 1  # to either side; -1 is without end
    window = (reach, 0 if mask.causal else reach)
    output = varlen_attn(flat_q, flat_k, flat_v, edges.int(), edges.int(), longest, longest, window_size=window)
    assert isinstance(output, Tensor)
    return output.view(batch, length, heads, width).transpose(1, 2)


def make_kernel(name: Kernel, flex_fallback: Literal["sdpa", "error"] = "sdpa") -> Callable[..., Tensor]:
    """The attention function of a kernel by name.

    Raises:
        ValueError: There is none of that name.
    """
    kernels: dict[str, Callable[..., Tensor]] = {
        "naive": naive_attention,
        "sdpa": sdpa_attention,
        "flash": flash_attention,
        "flex": FlexAttention(flex_fallback),
        "varlen": varlen_attention,
    }
    if name not in kernels:
        raise ValueError(f"kernel {name!r} must be one of {list(kernels)}")
    return kernels[name]


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _in_blocks(mask: Mask, queries: int, keys: int) -> bool:
    """Whether a window pays: half of the work at most."""
    ordered = mask.query_positions is None and mask.key_positions is None and queries == keys
    return ordered and mask.window is not None and 4 * mask.window <= keys


def _blockwise_window(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
    """A window over blocks of `window` queries, each with the block before it (and, unless causal, the one after)."""
    assert mask.window is not None
    size, length = mask.window, q.shape[-2]
    blocks = -(-length // size)
    after = 0 if mask.causal else size
    pad = blocks * size - length

    def neighbours(x: Tensor) -> Tensor:
        """(..., K, D) to (..., blocks, size + size + after, D): a view."""
        x = F.pad(x, (0, 0, size, pad + after))
        return x.unfold(-2, 2 * size + after, size).transpose(-1, -2)

    heads = q.shape[1]
    k, v = _repeat_heads(k, heads), _repeat_heads(v, heads)
    q_blocks = F.pad(q, (0, 0, 0, pad)).unflatten(-2, (blocks, size))  # (B, H, blocks, size, D)
    index = torch.arange(-size, length + pad + after, device=q.device)
    positions = index.unfold(0, 2 * size + after, size)  # (blocks, 2 * size + after)
    distance = index[size : size + blocks * size].view(blocks, size, 1) - positions[:, None, :]
    allowed = (distance.abs() < size) & (positions[:, None, :] >= 0) & (positions[:, None, :] < length)
    if mask.causal:
        allowed = allowed & (distance >= 0)
    allowed = allowed[None]  # (1, blocks, size, 2 * size + after)
    clipped = positions.clamp(0, length - 1)
    if mask.padding is not None:
        allowed = allowed & mask.padding[:, clipped][:, :, None, :]
    if mask.documents is not None:
        own = F.pad(mask.documents, (0, pad)).view(-1, blocks, size, 1)
        allowed = allowed & (own == mask.documents[:, clipped][:, :, None, :])
    # queries that only fill up the last block see themselves, or their rows would be empty
    output = F.scaled_dot_product_attention(
        q_blocks.transpose(1, 2).flatten(0, 1),
        neighbours(k).transpose(1, 2).flatten(0, 1),
        neighbours(v).transpose(1, 2).flatten(0, 1),
        attn_mask=allowed.expand(q.shape[0], -1, -1, -1).flatten(0, 1).unsqueeze(1),
        dropout_p=dropout,
    )  # (B * blocks, H, size, D)
    return output.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2, 3)[..., :length, :]


def _predicate(mask: Mask, queries: int, keys: int, device: torch.device) -> Callable[..., Tensor]:
    """The mask as FlexAttention asks for it, one query and one key at a time."""
    q_at = torch.arange(keys - queries, keys, device=device) if mask.query_positions is None else mask.query_positions
    k_at = torch.arange(keys, device=device) if mask.key_positions is None else mask.key_positions

    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = q_at[q] - k_at[k]
        result = k_at[k] >= 0
        if mask.causal:
            result = result & (distance >= 0)
        if mask.window is not None:
            result = result & (distance.abs() < mask.window)
        if mask.padding is not None:
            result = result & mask.padding[b, k]
        if mask.documents is not None:
            result = result & (mask.documents[b, keys - queries + q] == mask.documents[b, k])
        return result

    return allowed
