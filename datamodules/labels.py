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
    """Names of the classes, in label order.

    Where every name is a number, 4, 4.0 and "4" are one class: a table with a gap in the column writes its whole
    numbers with a point.

    Args:
        names: The names, each once.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.numeric = all(to_number(name) is not None for name in names)
        self._index = {name: index for index, name in enumerate(self.names)}

    def index(self, label: str) -> int | None:
        """The class of a label; None where it is none of them."""
        return self._index.get(canonical(label) if self.numeric else label)


def name_labels(labels: Sequence[str], *, source: str, column: str) -> LabelNames:
    """The classes of training labels: numbers by size, words by alphabet.

    Args:
        labels: The labels.
        source: Where they come from, for errors.
        column: Name of their column, for errors.

    Raises:
        ValueError: There is but one class, or so many that the column holds no classes.
    """
    distinct = set(labels)
    numeric = all(to_number(label) is not None for label in distinct)
    names = sorted({canonical(label) for label in distinct}, key=float) if numeric else sorted(distinct)
    if len(names) < 2:
        raise ValueError(f"{source}: column {column!r} has the one class {names}; there must be two at least")
    if len(names) > 50 and len(names) > len(labels) / 2:
        raise ValueError(
            f"{source}: column {column!r} has {len(names):,} different values in {len(labels):,} rows "
            f"(e.g. {names[0]!r}, {names[1]!r}): it does not hold classes"
        )
    return LabelNames(names)


def canonical(label: str) -> str:
    """The one spelling of a number."""
    number = to_number(label)
    return label if number is None else str(int(number)) if number.is_integer() else str(number)
