"""What text datamodules share: the tokenizer, the facts, the splits as tokens, batches of like length."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pytorch_lightning.utilities.rank_zero import rank_zero_info
from torch.utils.data import Sampler

from datamodules.base import BaseDataModule, Split
from datamodules.length_buckets import LengthBucketSampler
from datamodules.tokenization import TokenizedTexts, collate_texts, load_tokenizer

Padding = Literal["bucketed", "longest", "fixed"]


@dataclass
class TextTable:
    """The samples of one split.

    Args:
        texts: The texts.
        pairs: Second texts, where a sample is a pair.
        labels: Indices into the class names; None where there are none, as in what is to be predicted.
    """

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[int] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, indices: Sequence[int]) -> "TextTable":
        """Some of the samples."""
        return TextTable(
            [self.texts[index] for index in indices],
            self.pairs and [self.pairs[index] for index in indices],
            self.labels and [self.labels[index] for index in indices],
        )

    def sample(self, index: int) -> str:
        """A sample as one line for people."""
        return self.texts[index] if self.pairs is None else f"{self.texts[index]} | {self.pairs[index]}"


class TextDataModule(BaseDataModule, ABC):
    """Tokenises the splits that a subclass reads, and pads them batch by batch.

    Args:
        class_names: In label order.
        tokenizer: Name on the Hugging Face hub, directory or asset; the command line gives the encoder's own.
        max_length: Tokens of a sample, special tokens included; what is longer is cut, and how many were is told.
        padding: Pad to the longest of a batch of samples of like length (bucketed), to the longest of a batch drawn at
            random (longest), or always to max_length (fixed).
        kwargs: Loader options, see BaseDataModule.

    Raises:
        ValueError: An option is out of range, or there is no tokenizer.
    """

    name_column = "text"  # the first column of predictions

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        tokenizer: str | None = None,
        max_length: int = 128,
        padding: Padding = "bucketed",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.remove_ignored_hparams(["class_names"])  # the source's, not an option of the user
        if tokenizer is None:
            raise ValueError("tokenizer is missing: give the name of the encoder, e.g. bert-base-uncased")
        if padding not in get_args(Padding):
            raise ValueError(f"padding ({padding!r}) must be one of {list(get_args(Padding))}")
        self.tokenizer = load_tokenizer(tokenizer)
        least = self.tokenizer.num_special_tokens_to_add(pair=True) + 2
        if max_length < least:
            raise ValueError(f"max_length ({max_length}) must be at least {least}: special tokens count")
        self.class_names = list(class_names)
        self.num_classes = len(self.class_names)
        self.vocab_size = len(self.tokenizer)
        self.max_length = max_length
        self.padding = padding
        self.tables: dict[Split, TextTable] = {}
        self.collate_fn = collate_texts

    @abstractmethod
    def read_splits(self) -> dict[Split, TextTable]:
        """Tables of train, val and test."""

    def read_predict(self) -> TextTable:
        """What is to be predicted: the test texts, where a subclass knows of nothing else."""
        if "test" not in self.tables:
            self.tables |= self.read_splits()
        return self.tables["test"]

    def setup(self, stage: str | None = None) -> None:
        """Reads and tokenises, the same way for every stage and on every rank."""
        if stage != "predict" and "train" not in self.datasets:
            if "train" not in self.tables:
                self.tables |= self.read_splits()
            self._tokenise([split for split in ("train", "val", "test") if split in self.tables])
        if stage in ("predict", None) and "predict" not in self.datasets:
            self.tables["predict"] = self.read_predict()
            self._tokenise(["predict"])

    @property
    def predict_names(self) -> list[str]:
        """The texts to predict, in order."""
        table = self.tables["predict"]
        return [table.sample(index) for index in range(len(table))]

    def sample_texts(self, split: Split, indices: Sequence[int]) -> list[str]:
        """Samples of a split as people read them, by their place in it."""
        return [self.tables[split].sample(index) for index in indices]

    def _tokenise(self, splits: Sequence[Split]) -> None:
        truncated = {}
        for split in splits:
            table = self.tables[split]
            dataset = TokenizedTexts(
                self.tokenizer,
                table.texts,
                pairs=table.pairs,
                labels=None if split == "predict" else table.labels,
                max_length=self.max_length,
                pad_to=self.max_length if self.padding == "fixed" else None,
                longest_first=self.padding == "bucketed" and split != "train",
            )
            self.datasets[split] = dataset
            if dataset.num_truncated:
                truncated[split] = f"{dataset.num_truncated:,} of {len(table):,} {split}"
        if truncated:
            rank_zero_info(
                f"Cut to max_length ({self.max_length} tokens): {', '.join(truncated.values())} texts; "
                "--data.max_length takes more"
            )

    def train_sampler(self, replicas: int, rank: int, *, drop_last: bool) -> Sampler[int] | None:
        """Batches of like length, unless they are to be drawn at random."""
        overfits = self.trainer is not None and self.trainer.overfit_batches  # type: ignore[attr-defined]
        if self.padding != "bucketed" or overfits:
            return None
        dataset = self.datasets["train"]
        assert isinstance(dataset, TokenizedTexts)
        return LengthBucketSampler(
            dataset.lengths,
            batch_size=self.batch_size,
            num_replicas=replicas,
            rank=rank,
            seed=int(os.environ.get("PL_GLOBAL_SEED", 0)),
            drop_last=drop_last,
        )
