"""Tokenizers, and texts turned into tokens once and padded batch by batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from lightning_app.assets import resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 10_000  # texts tokenised at a time; the tokenizer uses every core for them


def load_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a hub name, a local directory or one of our assets.

    One without a padding token (a decoder's) pads with its end-of-text token, which is told: the attention mask keeps
    padding out either way.

    Raises:
        ValueError: There is no such tokenizer, or it has no token that could pad.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(name))
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"no tokenizer can be loaded from {name!r}, which must be a name on the Hugging Face hub, a directory or "
            f"all-MiniLM-L6-v2 ({reason})"
        ) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError(f"the tokenizer {name!r} has neither a padding nor an end-of-text token to pad with")
        tokenizer.pad_token = tokenizer.eos_token
        rank_zero_info(f"The tokenizer {name!r} has no padding token: {tokenizer.eos_token!r} pads.")
    return tokenizer


class TokenizedTexts(Dataset[dict[str, Tensor]]):
    """Texts as tokens in memory; a whole batch is put together and padded at once.

    A batch is a dict with Hugging Face's names: `input_ids` and `attention_mask` (B, T), `token_type_ids` where the
    tokenizer makes them, `labels` (B,) where there are any; and `indices` (B,), each sample's place among the texts.

    Args:
        tokenizer: Makes the tokens.
        texts: N texts.
        pairs: N second texts, or None.
        labels: N labels, or None.
        max_length: What is longer is cut, so that the special tokens stay; of a pair, the longer text first.
        pad_to: Length T of every batch. None: that of the batch's longest.
        longest_first: Order the samples by length, the longest first, which saves padding where batches are not
            shuffled. (And memory runs out, if it does, on the first batch.)
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        labels: Sequence[int] | None = None,
        max_length: int,
        pad_to: int | None = None,
        longest_first: bool = False,
    ) -> None:
        self.pad_token_id: int = tokenizer.pad_token_id
        self.pad_to = pad_to
        self.num_truncated = 0
        tokens: list[Tensor] = []
        types: list[Tensor] = []
        starts = range(0, len(texts), CHUNK)
        for start in tqdm(starts, desc="tokenising", unit="chunk", disable=len(starts) < 5, leave=False):
            part = slice(start, start + CHUNK)
            encoded = tokenizer(
                list(texts[part]), list(pairs[part]) if pairs else None, truncation=True, max_length=max_length
            )
            self.num_truncated += _count_truncated(encoded, tokenizer, texts[part], pairs[part] if pairs else None)
            tokens += [torch.tensor(ids, dtype=torch.int32) for ids in encoded["input_ids"]]
            types += [torch.tensor(ids, dtype=torch.int8) for ids in encoded.get("token_type_ids", ())]
        # two long tensors in place of many small ones: workers share them without a copy
        self.lengths = torch.tensor([len(ids) for ids in tokens], dtype=torch.int64)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        self.tokens = torch.cat([torch.zeros(0, dtype=torch.int32), *tokens])
        self.types = torch.cat(types) if types else None
        self.labels = None if labels is None else torch.tensor(labels, dtype=torch.int64)
        self.order = torch.arange(len(tokens))
        if longest_first:
            self.order = self.lengths.argsort(descending=True, stable=True)
            self.lengths = self.lengths[self.order]

    def __len__(self) -> int:
        return len(self.order)

    def __getitems__(self, positions: Sequence[int]) -> dict[str, Tensor]:
        """One batch. DataLoader prefers this to single items."""
        indices = self.order[torch.as_tensor(positions)]
        lengths = self.offsets[indices + 1] - self.offsets[indices]
        width = self.pad_to or int(lengths.max())
        batch = {
            "input_ids": self._padded(self.tokens, indices, width, self.pad_token_id),
            "attention_mask": (torch.arange(width) < lengths[:, None]).long(),
        }
        if self.types is not None:
            batch["token_type_ids"] = self._padded(self.types, indices, width, 0)
        if self.labels is not None:
            batch["labels"] = self.labels[indices]
        batch["indices"] = indices
        return batch

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.__getitems__([position]).items()}

    def _padded(self, flat: Tensor, indices: Tensor, width: int, value: int) -> Tensor:
        starts, ends = self.offsets[indices].tolist(), self.offsets[indices + 1].tolist()
        rows = [flat[start:end] for start, end in zip(starts, ends, strict=True)]
        # on the right, whatever the tokenizer prefers: absolute positions then count from the text's first token
        padded = pad_sequence(rows, batch_first=True, padding_value=value)  # (B, longest)
        return torch.nn.functional.pad(padded, (0, width - padded.shape[1]), value=value).long()


def collate_texts(batch: Any) -> Any:
    """A batch comes put together from `TokenizedTexts.__getitems__`."""
    return batch


def _count_truncated(encoded: Any, tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None) -> int:
    if encoded.encodings is not None:
        return sum(bool(encoding.overflowing) for encoding in encoded.encodings)
    # a tokenizer in plain Python keeps no record of what it cut
    whole = tokenizer(list(texts), list(pairs) if pairs else None, verbose=False)["input_ids"]
    return sum(len(cut) < len(ids) for cut, ids in zip(encoded["input_ids"], whole, strict=True))
