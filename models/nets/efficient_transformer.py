"""A transformer in the present style: RMSNorm (arXiv 1910.07467), rotary positions (2104.09864), grouped queries
(2305.13245), SwiGLU (2002.05202), normalised queries and keys (2010.04245), tied embeddings. No loss, no tokenizer.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.nets.attention import Kernel, Mask, make_kernel
from models.nets.fused import rms_norm, rotate, silu_gate
from models.nets.key_value_cache import KeyValueCache, LayerCache

# B batch, T tokens, E width, H heads, G key-value heads, D width of a head, V vocabulary


def rotary_table(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, D / 2) of positions (T,)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * base**-exponents
    return angles.cos(), angles.sin()


def previous_embeddings(
    x: Tensor, padding: Tensor | None, documents: Tensor | None, cache: KeyValueCache | None
) -> Tensor:
    """The embedding before each, (B, T, E) of the same: zero at the start, after padding and across documents."""
    source = x if padding is None else x * padding.unsqueeze(-1)
    first = torch.zeros_like(x[:, :1]) if cache is None or cache.last_embedding is None else cache.last_embedding
    if cache is not None:
        cache.last_embedding = source[:, -1:]
    previous = torch.cat([first, source[:, :-1]], 1)
    if documents is not None:
        previous = previous * F.pad(documents[:, 1:] == documents[:, :-1], (1, 0)).unsqueeze(-1)
    return previous


class Attention(nn.Module):
    """Multi-head attention with rotary positions: (B, T, E) to the same."""

    def __init__(
        self, embed_dim: int, num_heads: int, num_kv_heads: int, *, qk_norm: bool, dropout: float, kernel: Kernel
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(embed_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(embed_dim, embed_dim, bias=False)
        # one gain for queries and keys together: only their product counts
        self.qk_gain = nn.Parameter(torch.ones(1)) if qk_norm else None
        self.attend = make_kernel(kernel)

    def forward(
        self, x: Tensor, mask: Mask, cos: Tensor, sin: Tensor, cache: LayerCache | None = None, start: int = 0
    ) -> Tensor:
        batch, length, width = x.shape
        turned = self.num_heads + self.num_kv_heads
        qkv = self.qkv(x).view(batch, length, -1, self.head_dim).transpose(1, 2)  # (B, H + 2 G, T, D)
        qk, v = qkv.split([turned, self.num_kv_heads], 1)
        if self.qk_gain is not None:
            qk = rms_norm(qk, self.qk_gain)
        qk = rotate(qk, cos.to(qk.dtype), sin.to(qk.dtype))  # queries and keys in one go
        q, k = qk.split([self.num_heads, self.num_kv_heads], 1)
        if cache is not None:
            k, v = cache.extend(k, v, start)
        x = self.attend(q, k, v, mask, self.dropout if self.training else 0.0)  # (B, H, T, D)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


class SwiGLU(nn.Module):
    """Gated feed-forward layer: (B, T, E) to the same."""

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate_and_up = nn.Linear(embed_dim, 2 * hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu_gate(self.gate_and_up(x)))


class Block(nn.Module):
    """Attention and feed-forward layer, each behind a norm and beside a skip connection.

    The norms have no gains: the matrices that follow can learn them.
    """

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float, attention: Attention) -> None:
        super().__init__()
        self.attention, self.mlp = attention, SwiGLU(embed_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Mask, cos: Tensor, sin: Tensor, cache: LayerCache | None = None, start: int = 0
    ) -> Tensor:
        x = x + self.dropout(self.attention(rms_norm(x), mask, cos, sin, cache, start))
        return x + self.dropout(self.mlp(rms_norm(x)))


class EfficientTransformer(nn.Module):
    """Tokens (B, T) to logits (B, T, V), each of the token that follows.

    Args:
        vocab_size: Tokens V.
        max_length: Tokens of the longest sequence in training.
        depth: Blocks.
        embed_dim: Width E.
        num_heads: Heads H of the queries.
        num_kv_heads: Heads G of keys and values; each serves H / G of the queries'. None: H.
        hidden_dim: Width of the feed-forward layers. None: 8/3 E, rounded up to a multiple of 32.
        causal: Whether a token sees only those before it.
        window: How far a token sees, itself included. None: everything.
        qk_norm: Normalise queries and keys.
        tie_embeddings: One matrix for the embedding and the head.
        dropout: Of attention weights and of what each layer adds.
        previous_token: Add to each embedding a learned share of the one before, channel by channel (token shift, Peng
            et al., arXiv 2305.13048), which small nets would need a block for.
        rope_base: Base of the rotary frequencies; larger reaches further.
        kernel: What computes attention: sdpa, flash, flex, varlen, or naive.

    Raises:
        ValueError: The sizes do not fit together, or an option is out of range.
    """

    BLOCKS = (Block,)

    def __init__(
        self,
        *,
        vocab_size: int,
        max_length: int = 256,
        depth: int = 4,
        embed_dim: int = 128,
        num_heads: int = 4,
        num_kv_heads: int | None = None,
        hidden_dim: int | None = None,
        causal: bool = True,
        window: int | None = None,
        qk_norm: bool = True,
        tie_embeddings: bool = True,
        dropout: float = 0.0,
        previous_token: bool = False,
        rope_base: float = 10_000.0,
        kernel: Kernel = "sdpa",
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if embed_dim % (2 * num_heads):
            raise ValueError(f"embed_dim ({embed_dim}) must be a multiple of twice num_heads ({num_heads})")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads ({num_heads}) must be a multiple of num_kv_heads ({num_kv_heads})")
        if window is not None and window < 1:
            raise ValueError(f"window ({window}) must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout ({dropout}) must be within [0, 1)")
        if min(vocab_size, max_length, depth) < 1:
            raise ValueError(
                f"vocab_size ({vocab_size}), max_length ({max_length}) and depth ({depth}) must be above 0"
            )
        hidden_dim = -(-8 * embed_dim // (3 * 32)) * 32 if hidden_dim is None else hidden_dim
        self.vocab_size, self.max_length, self.embed_dim = vocab_size, max_length, embed_dim
        self.causal, self.window, self.rope_base = causal, window, rope_base
        self.head_dim, self.num_kv_heads = embed_dim // num_heads, num_kv_heads
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.previous_share = nn.Parameter(torch.zeros(embed_dim)) if previous_token else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                embed_dim,
                hidden_dim,
                dropout,
                Attention(embed_dim, num_heads, num_kv_heads, qk_norm=qk_norm, dropout=dropout, kernel=kernel),
            )
            for _ in range(depth)
        )
        self.gain = nn.Parameter(torch.ones(embed_dim))  # of the last norm: a tied head can't learn it
        self.head = nn.Linear(embed_dim, vocab_size, bias=False)
        self.reset_parameters()
        if tie_embeddings:
            self.head.weight = self.embedding.weight
        cos, sin = rotary_table(torch.arange(max_length), self.head_dim, rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def reset_parameters(self) -> None:
        """Normal weights; what adds to the residual stream starts at zero, so that every block starts as no change."""
        nn.init.normal_(self.embedding.weight, std=0.02)  # small, as in GPT-2: a tied head starts undecided
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
        for module in self.modules():
            if isinstance(module, Block):
                nn.init.zeros_(module.attention.out.weight)
                nn.init.zeros_(module.mlp.down.weight)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
        *,
        see: int | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits (B, T, V) of tokens (B, T).

        Args:
            input_ids: The tokens.
            attention_mask: 1 for tokens and 0 for padding, (B, T).
            document_ids: Number of each token's document, (B, T); tokens see their own document only.
            cache: What was read before, which these tokens continue; it takes them in.
            see: A window for this call, besides the net's own: what a cache of so many places would hold.
            last_only: Logits of the last token alone, (B, 1, V).
        """
        states = self.hidden_states(input_ids, attention_mask, document_ids, cache, see=see)
        return self.head(states[:, -1:] if last_only else states)

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
        *,
        see: int | None = None,
    ) -> Tensor:
        """What the head sees, (B, T, E); arguments as `forward`."""
        start, length = 0 if cache is None else cache.length, input_ids.shape[1]
        cos, sin = self.rotary(start, length, input_ids.device)
        if cache is None:
            padding = None if attention_mask is None else attention_mask.bool()
            window = min((limit for limit in (self.window, see) if limit is not None), default=None)
            mask = Mask(causal=self.causal, window=window, documents=document_ids, padding=padding)
        else:
            mask = self.cached_mask(cache, length)
        x = self.embedding(input_ids)
        if self.previous_share is not None:
            padding = attention_mask if cache is None else cache.padding_of_next(length)
            x = x + self.previous_share * previous_embeddings(x, padding, document_ids, cache)
        x = self.dropout(x)
        for index, block in enumerate(self.blocks):
            layer = None if cache is None else cache.layers[index]
            x = block(x, mask, cos, sin, layer, start)
        if cache is not None:
            cache.length += length
        return rms_norm(x) * self.gain

    def cached_mask(self, cache: KeyValueCache, length: int) -> Mask:
        """Who of `length` new tokens sees what of the cache."""
        # a full ring has pushed out what lies further back than its capacity
        near = min(self.window or cache.capacity, cache.capacity)
        if length == 1 and cache.padding is None and cache.shows_all(near):
            return Mask()  # the newest token sees everything that is left
        keys = cache.positions(length)
        padding = cache.padding_of(keys)
        queries = torch.arange(cache.length, cache.length + length, device=keys.device)
        return Mask(True, near, padding=padding, query_positions=queries, key_positions=keys)

    def rotary(self, start: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines (T, D / 2) of positions from `start` on."""
        if start + length <= self.max_length:
            return self.cos[start : start + length], self.sin[start : start + length]  # type: ignore[index]
        return rotary_table(torch.arange(start, start + length, device=device), self.head_dim, self.rope_base)

    def make_cache(self, batch_size: int, capacity: int, padding: Tensor | None = None) -> KeyValueCache:
        """An empty cache; with a window it holds no more than the window.

        Raises:
            ValueError: The net is not causal: what was read would change with what follows.
        """
        if not self.causal:
            raise ValueError("a cache needs a causal net")
        weight = self.embedding.weight
        capacity = min(capacity, self.window or capacity)
        sizes: Any = (batch_size, self.num_kv_heads, capacity, self.head_dim, weight.dtype, weight.device)
        return KeyValueCache([LayerCache(*sizes) for _ in self.blocks], padding)

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Embedding, then each block. The gain of the last norm and the share of the previous token are in none."""
        return [[self.embedding], *([block] for block in self.blocks)]
