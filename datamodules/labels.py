"""Class names from the labels of a file, be they words, sparse numbers or truth values."""

import math
from collections.abc import Sequence
from typing import Any


def label_text(value: Any) -> str | None:
    """A label as text without surrounding space; None where there is none: null, NaN, or nothing but space."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return str(value).strip() or None


def to_number(label: str) -> float | None:
    """The number that a label is, if it is one."""
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class LabelNames:
    """Names of the classes, in label order: numbers by size, words by alphabet.

    Where every label is a number, 4, 4.0 and "4" are one class: a table that lacks a value elsewhere in the column
    writes its whole numbers with a point.

    Args:
        labels: The training labels.
        source: Where they come from, for errors.
        column: Name of their column, for errors.

    Raises:
        ValueError: There is but one class, or so many that the column holds no classes.
    """

    def __init__(self, labels: Sequence[str], *, source: str, column: str) -> None:
        distinct = set(labels)
        self.numeric = all(to_number(label) is not None for label in distinct)
        self.names = sorted({self.canonical(label) for label in distinct})
        if self.numeric:
            self.names.sort(key=float)
        count = len(self.names)
        if count < 2:
            raise ValueError(f"{source}: column {column!r} has the one class {self.names}; there must be two at least")
        if count > 50 and count > len(labels) / 2:
            raise ValueError(
                f"{source}: column {column!r} has {count:,} different values in {len(labels):,} rows "
                f"(e.g. {self.names[0]!r}, {self.names[1]!r}): it does not hold classes"
            )
        self._index = {name: index for index, name in enumerate(self.names)}

    def canonical(self, label: str) -> str:
        """The one spelling of a label."""
        number = to_number(label) if self.numeric else None
        return label if number is None else str(int(number)) if number.is_integer() else str(number)

    def index(self, label: str) -> int | None:
        """The class of a label; None where no training row has it."""
        return self._index.get(self.canonical(label))

    def reorder(self, names: Sequence[str]) -> None:
        """Take over an order of names that holds all of these, and maybe some that training lacks."""
        assert set(self.names) <= set(names), (self.names, names)
        self.names, self.numeric = list(names), False
        self._index = {name: index for index, name in enumerate(self.names)}
