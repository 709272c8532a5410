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

CHUNK = 1000  # texts tokenised at a time, on every core; some 100 bytes per token while they are


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
        for start in tqdm(starts, desc="tokenising", unit="chunk", disable=len(starts) < 50, leave=False):
            part = slice(start, start + CHUNK)
            encoded, num_truncated = _encode(tokenizer, texts[part], pairs[part] if pairs else None, max_length)
            self.num_truncated += num_truncated
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


def _encode(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> tuple[dict[str, list[list[int]]], int]:
    """Token and type ids of at most `max_length` per sample, and how many samples were cut for that."""
    inputs = list(texts), list(pairs) if pairs else None
    whole = tokenizer(*inputs, verbose=False)
    long = [row for row, ids in enumerate(whole["input_ids"]) if len(ids) > max_length]
    encoded = {name: whole[name] for name in ("input_ids", "token_type_ids") if name in whole}
    if long and whole.encodings is None:  # a tokenizer in plain Python does not tell which tokens are special
        cut = tokenizer(*inputs, truncation=True, max_length=max_length)
        return {name: cut[name] for name in encoded}, len(long)
    # a compiled one would cut as well, but keeps what it cut: of a pair, each piece of one text with each of the other
    for row in long:
        kept = _kept_positions(whole.sequence_ids(row), max_length, from_start=tokenizer.truncation_side == "right")
        for values in encoded.values():
            values[row] = [values[row][position] for position in kept]
    return encoded, len(long)


def _kept_positions(sides: Sequence[int | None], max_length: int, *, from_start: bool) -> list[int]:
    """Where the tokens are that stay: all special ones (None), and of the longer of two texts no more than needed."""
    first, second = ([position for position, side in enumerate(sides) if side == text] for text in (0, 1))
    special = [position for position, side in enumerate(sides) if side is None]
    room = max_length - len(special)
    shorter = min(len(first), len(second), room // 2)
    count = shorter if len(first) <= len(second) else room - shorter
    if not from_start:
        return sorted(special + first[len(first) - count :] + second[len(second) - (room - count) :])
    return sorted(special + first[:count] + second[: room - count])
