"""Labelled texts in named columns, whatever they were read from: bad rows, class names, splits."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from datamodules.base import Split
from datamodules.labels import LabelNames, label_text, name_labels, to_number
from datamodules.splits import check_fraction, stratified_split
from datamodules.table_files import Rows
from datamodules.texts import TextDataModule, TextTable

OnBadRow = Literal["error", "skip"]
SHOWN = 10  # bad rows that a message lists


@dataclass
class Samples:
    """Rows that can be used: texts, second texts, labels as they are written, and where each stands."""

    source: str
    unit: str
    texts: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class LabelledTextDataModule(TextDataModule):
    """Splits and tables of labelled rows; a subclass says which splits it has and reads their rows.

    Args:
        text_column: Name of the column of texts.
        label_column: Name of the column of labels: words, numbers with or without gaps, truth values.
        pair_column: Name of the column of second texts, where a sample is a pair.
        val_fraction: Share of the training rows that becomes val where no val rows are given.
        test_fraction: The same for test; 0: the val rows are the test rows too, with a warning.
        on_bad_row: A row without text or label ends the run (error), or is left out, counted and listed (skip).
        class_names: The classes in label order. None: those of the training rows, which are read for them at once. The
            command line gives a checkpoint's own when it predicts, which then needs no training rows.
        kwargs: Tokenizer, padding and loader options, see TextDataModule.

    Raises:
        ValueError: A bad row, a label that training does not have, no classes, or an option is out of range.
    """

    def __init__(
        self,
        *,
        text_column: str = "text",
        label_column: str = "label",
        pair_column: str | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        on_bad_row: OnBadRow = "error",
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if on_bad_row not in ("error", "skip"):
            raise ValueError(f"on_bad_row ({on_bad_row!r}) must be 'error' or 'skip'")
        self.fractions: dict[Split, float] = {
            "val": check_fraction("val_fraction", val_fraction),
            "test": check_fraction("test_fraction", test_fraction, zero=True),
        }
        if val_fraction + test_fraction >= 1:
            raise ValueError(f"val_fraction ({val_fraction}) + test_fraction ({test_fraction}) must be below 1")
        self.text_column, self.label_column, self.pair_column = text_column, label_column, pair_column
        self.on_bad_row = on_bad_row
        # the classes must be known before the net is built
        self.label_names = self.name_labels(self.train_samples) if class_names is None else LabelNames(class_names)
        super().__init__(class_names=self.label_names.names, **kwargs)

    @cached_property
    def train_samples(self) -> Samples:
        """The usable training rows, read once."""
        return self.take("train")

    @abstractmethod
    def given_splits(self) -> list[Split]:
        """Splits that have rows of their own, train among them."""

    @abstractmethod
    def rows(self, split: Split, columns: list[str]) -> Rows:
        """The rows of a split."""

    def name_labels(self, samples: Samples) -> LabelNames:
        """Class names of the training labels."""
        return name_labels(samples.labels, source=samples.source, column=self.label_column)

    def take(self, split: Split, *, labelled: bool = True) -> Samples:
        """The usable samples of a split that has rows of its own."""
        columns = [self.text_column, *([self.pair_column] if self.pair_column else [])]
        rows = self.rows(split, columns + ([self.label_column] if labelled else []))
        return take_samples(rows, columns, self.label_column if labelled else None, self.on_bad_row)

    def read_splits(self) -> dict[Split, TextTable]:
        """Tables of the three splits, the same in every run with one split_seed."""
        samples = {split: self.take(split) for split in self.given_splits() if split != "train"}
        tables: dict[Split, TextTable] = {split: self.table(part) for split, part in samples.items()}
        train = self.table(self.train_samples)
        assert train.labels is not None
        shares = {split: share for split, share in self.fractions.items() if split not in tables and share}
        parts = stratified_split(train.labels, [1 - sum(shares.values()), *shares.values()], self.split_seed)
        names: list[Split] = ["train", *shares]
        for split, part in zip(names, parts, strict=True):
            tables[split] = train.part(part)
        for split, table in tables.items():
            if not len(table):
                raise ValueError(f"{split}_fraction ({shares[split]}) leaves no {split} row of {len(train)}: raise it")
        if "test" not in tables:
            rank_zero_warn("test_fraction is 0 and no test rows are given: the val rows are tested, which flatters")
            tables["test"] = tables["val"]
        return tables

    def table(self, samples: Samples) -> TextTable:
        """Samples with labels as indices.

        Raises:
            ValueError: A label that no training row has.
        """
        labels = []
        for label, number in zip(samples.labels, samples.numbers, strict=True):
            index = self.label_names.index(label)
            if index is None:
                shown = ", ".join(self.class_names[:20]) + (", ..." if self.num_classes > 20 else "")
                raise ValueError(
                    f"{samples.source}, {samples.unit} {number}: the label {label!r} is not among the training rows', "
                    f"which are {shown}"
                )
            labels.append(index)
        return TextTable(samples.texts, samples.pairs if self.pair_column else None, labels)


def take_samples(rows: Rows, text_columns: list[str], label_column: str | None, on_bad_row: OnBadRow) -> Samples:
    """The samples of rows, and an end to bad rows: an error or a warning that lists them.

    Raises:
        ValueError: A row is bad and the policy is error, none is left, or the texts are numbers.
    """
    samples = Samples(rows.source, rows.unit)
    bad: list[str] = []
    for position, number in enumerate(rows.numbers):
        texts = [rows.columns[name][position] for name in text_columns]
        label = label_text(rows.columns[label_column][position]) if label_column else ""
        faults = [fault_of(name, text) for name, text in zip(text_columns, texts, strict=True)]
        fault = rows.faults.get(position) or next(filter(None, faults), None)
        if fault is None and label is None:
            fault = f"{label_column} is missing"
        if fault is not None:
            bad.append(f"{rows.unit} {number} ({fault})")
            continue
        samples.texts.append(texts[0])
        samples.pairs += texts[1:]
        samples.labels += [] if label_column is None else [str(label)]
        samples.numbers.append(number)
    if bad:
        shown = ", ".join(bad[:SHOWN]) + (", ..." if len(bad) > SHOWN else "")
        if on_bad_row == "error":
            raise ValueError(
                f"{rows.source}: {len(bad)} of {len(rows)} rows can't be used: {shown}; mend them, or leave them out "
                "with --data.on_bad_row skip"
            )
        rank_zero_warn(f"{rows.source}: {len(bad)} of {len(rows)} rows are left out: {shown}")
    if not samples.texts:
        raise ValueError(f"{rows.source} has no usable row of {len(rows)}")
    if 2 * sum(to_number(text) is not None for text in samples.texts) > len(samples.texts):
        raise ValueError(
            f"{rows.source}: column {text_columns[0]!r} holds numbers (e.g. {samples.texts[0]!r}), not texts: is it "
            "the right column?"
        )
    return samples


def fault_of(column: str, text: Any) -> str | None:
    """What is wrong with a text, if anything."""
    if text is None or (isinstance(text, float) and math.isnan(text)):
        return f"{column} is missing"
    if not isinstance(text, str):
        return f"{column} is no text but {text!r}"
    return None if text.strip() else f"{column} is empty"
