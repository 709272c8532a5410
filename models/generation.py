"""Continue texts with a language model: how the next token is chosen, and the loop around it. Plain torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

# B batch, T tokens, V vocabulary

WhenFull = Literal["roll", "error"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; filters apply in this order.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Only the k likeliest. None: all.
        top_p: Only the likeliest that together have this probability (Holtzman et al., arXiv 1904.09751).
        min_p: Only those with this share of the likeliest one's probability (arXiv 2407.01082).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature ({self.temperature}) must not be negative")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k ({self.top_k}) must be at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p ({self.top_p}) must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p ({self.min_p}) must be within [0, 1]")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities (B, V) that the next token is drawn from, of logits (B, V); not for a temperature of 0."""
        logits = logits.float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            chosen = logits.topk(self.top_k, dim=-1).indices
            logits = logits.masked_fill(
                torch.ones_like(logits, dtype=torch.bool).scatter(-1, chosen, False), -torch.inf
            )
        if self.top_p < 1:
            values, order = logits.softmax(-1).sort(dim=-1, descending=True)
            beyond = values.cumsum(-1) - values >= self.top_p  # the one that reaches top_p stays
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
        probabilities = logits.softmax(-1)
        if self.min_p > 0:
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.masked_fill(probabilities < least, 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities

    def choose(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The next tokens (B,) of logits (B, V)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial(self.probabilities(logits), 1, generator=generator).squeeze(-1)


def pad_left(prompts: list[list[int]], pad_token: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts of several lengths as tokens and mask, (B, T) each, so that all end together.

    Raises:
        ValueError: There is no prompt, or an empty one.
    """
    if not prompts or not all(prompts):
        raise ValueError("every prompt must have at least one token")
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad_token] * (width - len(prompt)) + prompt for prompt in prompts])
    return tokens, torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])


@torch.inference_mode()
def generate(
    net: Any,
    tokens: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    use_cache: bool = True,
    when_full: WhenFull = "roll",
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """The tokens (B,) that follow, one after the other.

    Args:
        net: A causal net with `max_length`, `window`, `make_cache`, called as `net(input_ids, attention_mask, ...)`.
        tokens: Prompts (B, T), padded on the left.
        attention_mask: 0 for padding, (B, T). None: there is none.
        max_new_tokens: How many to make at most.
        sampling: How each is chosen.
        use_cache: Keep keys and values, and compute each token once.
        when_full: Beyond `max_length` tokens, let the oldest go (roll) or end with an error before the first token.
        generator: Source of chance.

    Raises:
        ValueError: There would be more tokens than `max_length` and `when_full` is error.
    """
    batch, length = tokens.shape
    if when_full == "error" and length + max_new_tokens > net.max_length:
        raise ValueError(
            f"{length} tokens and {max_new_tokens} new ones are more than the net was trained for ({net.max_length}); "
            "when_full 'roll' lets the oldest go"
        )
    padded = attention_mask is not None and not bool(attention_mask.all())
    padding = attention_mask.bool() if padded else None  # type: ignore[union-attr]
    cache = net.make_cache(batch, net.max_length, padding) if use_cache else None
    everything = unread = tokens
    for step in range(max_new_tokens):
        if cache is None:
            mask = None if padding is None else torch.nn.functional.pad(padding, (0, step), value=True)
            logits = net(everything, mask, see=net.max_length)[:, -1]
        else:
            logits = net(unread, cache=cache, last_only=True)[:, -1]
        new = sampling.choose(logits, generator)
        yield new
        unread = new[:, None]
        everything = torch.cat([everything, unread], 1) if cache is None else everything
