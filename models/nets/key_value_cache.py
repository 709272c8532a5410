"""Keys and values of what has been read, kept so that generation computes each token once."""

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer, in a ring of `capacity` places that is allocated once.

    Args:
        batch_size: Sequences B.
        num_heads: Key-value heads G.
        capacity: Places; the oldest make room for new ones.
        head_dim: Width D of a head.
        dtype: Of keys and values.
        device: Of keys and values.
    """

    def __init__(
        self, batch_size: int, num_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.keys = torch.zeros(batch_size, num_heads, capacity, head_dim, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)

    def extend(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Take in keys and values (B, G, Q, D) of positions from `start` on; returns all that may be attended to.

        The order of the returned ones is that of `KeyValueCache.positions`.
        """
        count, capacity = keys.shape[2], self.keys.shape[2]
        if start + count <= capacity:  # no place is taken twice: write, and read a view
            self.keys[:, :, start : start + count] = keys
            self.values[:, :, start : start + count] = values
            return self.keys[:, :, : start + count], self.values[:, :, : start + count]
        if count == 1:
            self.keys[:, :, start % capacity] = keys[:, :, 0]
            self.values[:, :, start % capacity] = values[:, :, 0]
            return self.keys, self.values
        # a chunk whose first tokens still see what its last ones push out
        held = min(start, capacity)
        everything = torch.cat([self.keys[:, :, :held], keys], 2), torch.cat([self.values[:, :, :held], values], 2)
        kept = min(count, capacity)
        places = torch.arange(start + count - kept, start + count, device=keys.device) % capacity
        self.keys[:, :, places] = keys[:, :, -kept:]
        self.values[:, :, places] = values[:, :, -kept:]
        return everything


class KeyValueCache:
    """One `LayerCache` a layer, and the positions of what they hold.

    Args:
        layers: The layers' caches.
        padding: Which of the first tokens hold something, (B, Q); for prompts of several lengths, padded on the left.
    """

    def __init__(self, layers: list[LayerCache], padding: Tensor | None = None) -> None:
        self.layers = layers
        self.capacity = layers[0].keys.shape[2]
        self.length = 0  # tokens taken in so far
        self.last_embedding: Tensor | None = None  # of the newest token, for nets that look one back
        self.padding = padding

    def shows_all(self, near: int) -> bool:
        """Whether the next token, which sees `near` tokens, sees all that are held."""
        return near >= min(self.length + 1, self.capacity)

    def positions(self, count: int) -> Tensor:
        """Positions of the keys that `LayerCache.extend` returns for `count` more tokens, (K,)."""
        end, device = self.length + count, self.layers[0].keys.device
        if end <= self.capacity:
            return torch.arange(end, device=device)
        held = min(self.length, self.capacity)
        places = torch.arange(self.capacity if count == 1 else held, device=device)
        last = end - 1 if count == 1 else self.length - 1  # the newest position in the ring
        in_ring = last - (last - places) % self.capacity
        return in_ring if count == 1 else torch.cat([in_ring, torch.arange(self.length, end, device=device)])

    def padding_of_next(self, count: int) -> Tensor | None:
        """As `padding_of`, of the `count` tokens that come next."""
        if self.padding is None:
            return None
        return self.padding_of(torch.arange(self.length, self.length + count, device=self.padding.device))

    def padding_of(self, positions: Tensor) -> Tensor | None:
        """True for positions that hold something, (B, K); None where all do."""
        if self.padding is None:
            return None
        known = self.padding.shape[1]
        return self.padding[:, positions.clamp(max=known - 1)] | (positions >= known)
