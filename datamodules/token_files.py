"""A corpus as token files: built once, in a folder that is named after what it was built from, and memory-mapped."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.text_tokenizers import encode_all, make_tokenizer
from lightning_app.assets import build_once

VERSION = 2  # of what is written; part of the fingerprint
COARSE = 4  # times the smallest share: what one document may be at most, to be shared out whole


class Documents:
    """The texts of a corpus, read one by one.

    Args:
        paths: Files of text; a .jsonl file has a document a line, any other is one document.
        text_key: Where the text of a .jsonl line stands.
    """

    def __init__(self, paths: Sequence[Path], text_key: str = "text") -> None:
        self.paths, self.text_key = list(paths), text_key

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            content = path.read_text(encoding="utf-8", errors="replace")
            if path.suffix != ".jsonl":
                yield content
                continue
            for number, line in enumerate(content.splitlines(), start=1):
                try:
                    yield json.loads(line)[self.text_key]
                except (json.JSONDecodeError, KeyError, TypeError) as error:
                    raise ValueError(
                        f"{path}, line {number}: no JSON object with {self.text_key!r} ({error})"
                    ) from error

    def fingerprint(self, settings: dict[str, Any]) -> str:
        """Changes with any file's name, size or time, and with any setting."""
        state = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        content = json.dumps([VERSION, self.text_key, state, settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def split_documents(sizes: Sequence[int], fractions: dict[str, float], seed: int) -> dict[str, list[int]]:
    """Whole documents for each split, by a shuffle that depends on the seed alone; the first split gets the rest.

    Counted in characters, so that a split is as large as asked, give or take a document.
    """
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist()
    total, start, parts = sum(sizes), 0, {}
    train, *others = fractions
    for name in others:
        end, filled = start, 0
        while end < len(order) - 1 and filled < fractions[name] * total:
            filled += sizes[order[end]]
            end += 1
        parts[name] = sorted(order[start:end])
        start = end
    return {train: sorted(order[start:])} | parts


def too_coarse(sizes: Sequence[int], fractions: dict[str, float]) -> bool:
    """Whether a document is so large a part of the corpus that sharing out whole ones would miss the fractions."""
    return max(sizes, default=0) > COARSE * min(fractions.values()) * sum(sizes)


def cut_document(text: str, fractions: dict[str, float]) -> dict[str, str]:
    """Consecutive parts of a document, in the order of the splits."""
    parts, start = {}, 0.0
    for name, fraction in fractions.items():
        parts[name] = text[round(start * len(text)) : round((start + fraction) * len(text))]
        start += fraction
    return parts


def build_token_files(
    documents: Documents, folder: Path, *, tokenizer: str, vocab_size: int, fractions: dict[str, float], seed: int
) -> Path:
    """Write tokens, document borders and tokenizer of every split, unless another process or run has.

    The tokenizer learns from the training split alone.

    Returns:
        The folder: `tokenizer.json`, `facts.json`, and for each split `SPLIT.bin` and `SPLIT_ends.npy`.

    Raises:
        ValueError: There is no text, or a split gets none.
    """
    settings = {"tokenizer": tokenizer, "vocab_size": vocab_size, "fractions": fractions, "seed": seed}
    target = folder / documents.fingerprint(settings)

    def build(new: Path) -> None:
        texts = list(documents)
        rank_zero_info(f"Tokenising {len(texts):,} documents, {sum(map(len, texts)):,} characters, into {target}")
        sizes = [len(text) for text in texts]
        if too_coarse(sizes, fractions):
            rank_zero_info(
                "They are too few to share out whole: each gives a consecutive part of itself to every split"
            )
            parts = [cut_document(text, fractions) for text in texts]
            splits = {name: [part[name] for part in parts if part[name]] for name in fractions}
        else:
            chosen = split_documents(sizes, fractions, seed)
            splits = {name: [texts[index] for index in indices] for name, indices in chosen.items()}
        made = make_tokenizer(tokenizer, splits["train"], vocab_size)
        size = made.get_vocab_size()
        facts: dict[str, Any] = {"vocab_size": size, "settings": settings}
        for name, part in splits.items():
            tokens = [
                np.array(ids, dtype=np.uint16 if size <= 1 << 16 else np.uint32) for ids in encode_all(made, part)
            ]
            if not sum(map(len, tokens)):
                raise ValueError(f"the {name} split of {len(texts)} documents has no token: give it a larger fraction")
            np.concatenate(tokens).tofile(new / f"{name}.bin")
            np.save(new / f"{name}_ends.npy", np.cumsum([len(ids) for ids in tokens], dtype=np.int64))
            num_bytes = sum(len(text.encode()) for text in part)
            facts[name] = {"documents": len(part), "tokens": sum(map(len, tokens)), "bytes": num_bytes}
        made.save(str(new / "tokenizer.json"))
        (new / "facts.json").write_text(json.dumps(facts))

    return build_once(target, build)


class TokenBlocks(Dataset[dict[str, Tensor]]):
    """Blocks of consecutive tokens, read from the memory-mapped file when they are asked for.

    A batch is a dict of `input_ids` (B, T), `labels` (B, T), the tokens that follow (-100 where another document
    begins), and, where documents are kept apart, `document_ids` (B, T).

    Args:
        folder: A folder of `build_token_files`.
        split: Name of the split.
        length: Tokens T of a block.
        stride: Tokens from the start of one block to that of the next; 1 makes every position a start.
        keep_apart: Whether documents are told apart, so that none sees another.

    Raises:
        ValueError: The split is shorter than a block.
    """

    def __init__(self, folder: Path, split: str, *, length: int, stride: int, keep_apart: bool) -> None:
        facts = json.loads((folder / "facts.json").read_text())
        self.dtype = np.dtype(np.uint16 if facts["vocab_size"] <= 1 << 16 else np.uint32)
        self.path, self.length, self.stride = folder / f"{split}.bin", length, stride
        self.tokens = np.memmap(self.path, dtype=self.dtype, mode="r")
        self.ends = torch.from_numpy(np.load(folder / f"{split}_ends.npy"))
        self.keep_apart = keep_apart and len(self.ends) > 1
        if len(self.tokens) <= length:
            raise ValueError(f"the {split} split has {len(self.tokens):,} tokens, no more than max_length ({length})")

    def __getstate__(self) -> dict[str, Any]:
        """A worker maps the file for itself: pickling the map would copy the corpus."""
        return {name: value for name, value in vars(self).items() if name != "tokens"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.tokens = np.memmap(self.path, dtype=self.dtype, mode="r")

    def __len__(self) -> int:
        """Number of blocks; with a stride of a whole block, the last one, shorter, counts too."""
        usable = len(self.tokens) - 1
        return max(1, usable - self.length + 1) if self.stride == 1 else -(-usable // self.stride)

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """One batch. DataLoader prefers this to single items."""
        starts = torch.as_tensor(indices) * self.stride
        rows = np.stack([self._row(start) for start in starts.tolist()]).astype(np.int64)
        tokens = torch.from_numpy(rows)  # (B, T + 1)
        positions = starts[:, None] + torch.arange(self.length + 1)
        inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
        labels[positions[:, 1:] >= len(self.tokens)] = -100
        batch = {"input_ids": inputs.contiguous(), "labels": labels}
        if len(self.ends) > 1:
            documents = torch.searchsorted(self.ends, positions, right=True)
            labels[documents[:, 1:] != documents[:, :-1]] = -100
            if self.keep_apart:
                batch["document_ids"] = documents[:, :-1].contiguous()
        return batch

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def _row(self, start: int) -> np.ndarray:
        row = self.tokens[start : start + self.length + 1]
        return np.pad(row, (0, self.length + 1 - len(row)))
