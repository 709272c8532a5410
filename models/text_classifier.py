"""Text classification with any encoder: fine-tuning, distillation, exact metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.classifier import Classifier

Batch = Mapping[str, Tensor]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TextClassifier(Classifier):
    """Classifies texts, or pairs of texts, with any net that takes tokens and returns logits (B, K).

    Args:
        net: Maps `input_ids`, `attention_mask` and, where the batch has them, `token_type_ids`, all (B, T), to logits
            (B, K).
        class_names: Names of the K classes, in the order of the labels.
        **kwargs: Loss, distillation, optimizer and schedule, see `Classifier` and `Task`.
    """

    def __init__(self, net: nn.Module, *, class_names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(net, class_names=class_names, **kwargs)
        tokens = torch.ones(2, 8, dtype=torch.int64)
        self.example_input_array = {"input_ids": tokens, "attention_mask": tokens}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits (B, K) of tokens (B, T)."""
        return self.net(input_ids, attention_mask, token_type_ids)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.train_on(_inputs(batch), batch["labels"])

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return self.evaluate(self.probabilities(batch), batch["labels"], "val")

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return self.evaluate(self.probabilities(batch), batch["labels"], "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return {"probabilities": self.probabilities(batch), "indices": batch["indices"]}

    def probabilities(self, batch: Batch) -> Tensor:
        """Probabilities (B, K) of a batch of tokens, as a datamodule or a tokenizer makes it."""
        return self(**_inputs(batch)).float().softmax(-1)


def _inputs(batch: Batch) -> dict[str, Tensor]:
    return {name: batch[name] for name in INPUTS if name in batch}
