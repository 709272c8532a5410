"""Language modelling: predict the token that follows; perplexity, bits per byte, generated text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.base import Task
from models.generation import Sampling, generate, pad_left

Batch = Mapping[str, Tensor]
INPUTS = ("input_ids", "attention_mask", "document_ids")


class LanguageModel(Task):
    """Trains a causal net on the tokens that follow.

    The tokenizer is part of the checkpoint: `task.generate_texts(["..."])` needs nothing else.

    Args:
        net: Maps tokens (B, T) to logits (B, T, V); takes `attention_mask` and `document_ids` where a batch has them.
        tokenizer_json: The tokenizer as the `tokenizers` package writes it; None where there is nothing to decode.
        bytes_per_token: Bytes of text in a token, on average over the validation split, for bits per byte.
        z_loss: Weight of the squared log-normaliser, which keeps logits from drifting (arXiv 2204.02311, section 5).
        **kwargs: Optimizer and schedule, see `Task`.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        tokenizer_json: str | None = None,
        bytes_per_token: float | None = None,
        z_loss: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(net, **kwargs)
        if z_loss < 0:
            raise ValueError(f"z_loss ({z_loss}) must not be negative")
        self.tokenizer_json, self.bytes_per_token, self.z_loss = tokenizer_json, bytes_per_token, z_loss
        for recorded in (self.hparams, self._hparams_initial):
            recorded.pop("tokenizer_json", None)  # in the checkpoint once, and in no logger
        self.example_input_array = torch.zeros(2, 8, dtype=torch.int64)
        self.totals = torch.zeros(2, dtype=torch.float64)  # loss and tokens of an evaluation

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["tokenizer_json"] = self.tokenizer_json

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        recorded = checkpoint.get("tokenizer_json")
        if self.tokenizer_json is not None and recorded is not None and recorded != self.tokenizer_json:
            raise ValueError("the checkpoint's tokenizer is another than the data's: its tokens would mean other texts")
        self.tokenizer_json = recorded if self.tokenizer_json is None else self.tokenizer_json

    def forward(self, input_ids: Tensor, **inputs: Tensor) -> Tensor:
        """Logits (B, T, V) of tokens (B, T)."""
        return self.net(input_ids, **inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self(**_inputs(batch)).float()
        loss = next_token_loss(logits, batch["labels"])
        if self.is_logging_step:
            self.log("train/loss", loss, prog_bar=True)
        if self.z_loss:
            loss = loss + self.z_loss * squared_normaliser(logits, batch["labels"])
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._add(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._add(batch)

    def on_predict_start(self) -> None:
        raise ValueError(
            "a language model predicts no table of a corpus: scripts/generate.py writes texts, test scores it"
        )

    def on_validation_epoch_start(self) -> None:
        self.totals = torch.zeros(2, dtype=torch.float64, device=self.device)

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        self._log_totals("val")

    def on_test_epoch_end(self) -> None:
        self._log_totals("test")

    def generate_texts(self, prompts: list[str], *, stop: Sequence[str] = (), **options: Any) -> list[str]:
        """Continue prompts, of whatever lengths; the prompts are not repeated.

        Args:
            prompts: Texts; an empty one starts from a line break.
            stop: Texts that end a continuation, which is cut ahead of them.
            **options: `max_new_tokens`, `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `use_cache`, `when_full`; see
                `models.generation`.
        """
        *_, texts = self.stream_texts(prompts, stop=stop, **options)
        return texts

    def stream_texts(
        self,
        prompts: list[str],
        *,
        stop: Sequence[str] = (),
        max_new_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        **options: Any,
    ) -> Iterator[list[str]]:
        """The continuations so far, after each token; arguments as `generate_texts`."""
        tokenizer = self.tokenizer
        tokens, mask = pad_left([tokenizer.encode(prompt or "\n", add_special_tokens=False).ids for prompt in prompts])
        training = self.training
        self.eval()
        made: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        ended = [False] * len(prompts)
        yield texts
        for new in generate(
            self.net,
            tokens.to(self.device),
            mask.to(self.device),
            max_new_tokens=max_new_tokens,
            sampling=Sampling(temperature, top_k, top_p, min_p),
            generator=None if seed is None else torch.Generator(self.device).manual_seed(seed),
            **options,
        ):
            for row, token in enumerate(new.tolist()):
                if not ended[row]:
                    made[row].append(token)
                    text = tokenizer.decode(made[row], skip_special_tokens=False)
                    cuts = [text.index(word) for word in stop if word in text]
                    ended[row], texts[row] = bool(cuts), text[: min(cuts)] if cuts else text
            yield list(texts)
            if all(ended):
                break
        self.train(training)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the corpus.

        Raises:
            ValueError: The task has none.
        """
        from tokenizers import Tokenizer

        if self.tokenizer_json is None:
            raise ValueError("this language model has no tokenizer: it was built without one")
        return Tokenizer.from_str(self.tokenizer_json)

    def _add(self, batch: Batch) -> None:
        logits, labels = self(**_inputs(batch)).float(), batch["labels"]
        count = (labels != -100).sum()
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        self.totals += torch.stack([total.double(), count.double()])

    def _log_totals(self, split: str) -> None:
        total, count = self.trainer.strategy.reduce(self.totals, reduce_op="sum").tolist()
        loss = total / max(count, 1)
        values = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.bytes_per_token is not None:
            values["bits_per_byte"] = loss / math.log(2) / self.bytes_per_token
        self.log_dict({f"{split}/{name}": value for name, value in values.items()}, prog_bar=True, sync_dist=True)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, T, V) over the labels (B, T) that count, those that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def squared_normaliser(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean squared logarithm of the softmax's denominator, over the labels that count."""
    counts = labels != -100
    return (logits.logsumexp(-1).square() * counts).sum() / counts.sum().clamp(min=1)


def _inputs(batch: Batch) -> dict[str, Tensor]:
    return {name: batch[name] for name in INPUTS if name in batch}
