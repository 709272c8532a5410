"""One step of generation as a function of tensors alone: what was read goes in and comes out, for runtimes that keep no
state.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.nets.key_value_cache import KeyValueCache

# B batch, L layers, G key-value heads, P tokens read before, D width of a head, E width, V vocabulary


class GrowingLayer:
    """Keys and values (B, G, P, D) of one layer, longer after each `extend`."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def extend(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """As `LayerCache.extend`."""
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        return self.keys, self.values


class GrowingCache(KeyValueCache):
    """A cache of given tensors that nothing is pushed out of.

    Args:
        keys: Keys (B, L, G, P, D).
        values: Values of the same shape.
        last_embedding: Embedding of the newest token (B, 1, E), for nets that look one back.
        capacity: Tokens that it will hold at most.
    """

    def __init__(self, keys: Tensor, values: Tensor, last_embedding: Tensor | None, capacity: int) -> None:
        layers: Any = [GrowingLayer(*both) for both in zip(keys.unbind(1), values.unbind(1), strict=True)]
        self.layers = layers
        self.capacity, self.length, self.padding = capacity, keys.shape[3], None
        self.last_embedding = last_embedding

    def shows_all(self, near: int) -> bool:
        """As `KeyValueCache.shows_all`, told without the length, which a runtime does not know beforehand."""
        return near >= self.capacity

    def positions(self, count: int) -> Tensor:
        """As `KeyValueCache.positions`."""
        return torch.arange(self.length + count, device=self.layers[0].keys.device)


class DecodeStep(nn.Module):
    """A token, and keys and values of those before, to logits of the next and to keys and values with its own.

    Args:
        net: An EfficientTransformer.

    Raises:
        ValueError: It is not causal.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        if not net.causal:
            raise ValueError("a cache needs a causal net")
        self.net = net

    @property
    def looks_back(self) -> bool:
        """Whether the newest token's embedding goes in and out too."""
        return self.net.previous_share is not None

    def start(self, batch_size: int) -> list[Tensor]:
        """Keys, values and last embedding before the first token."""
        net = self.net
        empty = torch.zeros(batch_size, len(net.blocks), net.num_kv_heads, 0, net.head_dim)
        return [empty, empty, *([torch.zeros(batch_size, 1, net.embed_dim)] if self.looks_back else [])]

    def forward(
        self, input_ids: Tensor, keys: Tensor, values: Tensor, last_embedding: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Logits (B, V), keys and values (B, L, G, P + 1, D), and the last embedding (B, 1, E) where it is looked at.

        Args:
            input_ids: The newest token (B, 1).
            keys: Keys of the P before it, (B, L, G, P, D).
            values: Their values.
            last_embedding: Embedding of the one before it, (B, 1, E).
        """
        cache = GrowingCache(keys, values, last_embedding, self.net.max_length)
        logits = self.net(input_ids, cache=cache)[:, -1]
        made = [torch.stack([getattr(layer, part) for layer in cache.layers], 1) for part in ("keys", "values")]
        return logits, *made, *([cache.last_embedding] if cache.last_embedding is not None and self.looks_back else [])
