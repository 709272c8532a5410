"""The efficient transformer read in both directions, with a pooling and a linear head: classes of whole sequences."""

from typing import Any

from torch import Tensor, nn

from models.nets.efficient_transformer import Block, EfficientTransformer

# B batch, T tokens, E width, K classes


class SequenceClassifier(nn.Module):
    """Tokens (B, T) to logits (B, K), from random weights: for texts where no pretrained encoder fits.

    Args:
        num_classes: Number of classes K.
        vocab_size: Tokens that the tokenizer knows.
        max_length: Tokens of the longest sample.
        dropout: Of attention weights, of what each layer adds, and ahead of the head.
        kwargs: Sizes, window, kernel and the like, see `EfficientTransformer`.
    """

    BLOCKS = (Block,)

    def __init__(
        self, *, num_classes: int, vocab_size: int, max_length: int = 256, dropout: float = 0.1, **kwargs: Any
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.transformer = EfficientTransformer(
            vocab_size=vocab_size, max_length=max_length, dropout=dropout, causal=False, tie_embeddings=True, **kwargs
        )
        del self.transformer.head  # over the vocabulary
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.transformer.embed_dim, num_classes))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits (B, K) of tokens (B, T); `attention_mask` is 0 for padding. Token types are not told apart."""
        states = self.transformer.hidden_states(input_ids, attention_mask)  # (B, T, E)
        if attention_mask is None:
            return self.head(states.mean(1))
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * weights).sum(1) / weights.sum(1).clamp(min=1))

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Those of the transformer."""
        return self.transformer.stages
