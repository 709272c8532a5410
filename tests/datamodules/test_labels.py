"""Class names from labels of every kind."""

import math
from typing import Any

import pytest

from datamodules.labels import LabelNames, label_text, name_labels


def names(labels: list[str]) -> LabelNames:
    return name_labels(labels, source="a.csv", column="stars")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (" good ", "good"),
        (5, "5"),
        (4.0, "4.0"),
        (True, "True"),
        ("", None),
        ("  ", None),
        (None, None),
        (math.nan, None),
    ],
)
def test_label_text(value: Any, text: str | None) -> None:
    assert label_text(value) == text


def test_words_go_by_alphabet() -> None:
    found = names(["pos", "neg", "pos", "10", "9"])
    assert found.names == ["10", "9", "neg", "pos"]
    assert found.index("pos") == 3
    assert found.index("Pos") is None


def test_sparse_numbers_go_by_size() -> None:
    found = names(["10", "1", "5", "5"])
    assert found.names == ["1", "5", "10"]
    assert [found.index(label) for label in ("1", "5", "10", "2")] == [0, 1, 2, None]


def test_one_number_has_one_spelling() -> None:
    found = names(["4.0", "4", "3.5", "-1", "05"])
    assert found.names == ["-1", "3.5", "4", "5"]
    assert found.index("4.00") == 2
    assert found.index("word") is None


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.csv: column 'stars' has the one class \['3'\]"):
        names(["3", "3.0"])


def test_a_column_of_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match=r"column 'stars' has 60 different values in 60 rows .*does not hold classes"):
        names([str(index / 7) for index in range(60)])
    assert len(names([str(index) for index in range(60)] * 3).names) == 60  # many classes, each several times, are fine


def test_an_order_can_be_given() -> None:
    found = LabelNames(["b", "c", "a"])
    assert [found.index(label) for label in "abc"] == [2, 0, 1]
    assert LabelNames(["5", "1"]).index("5.0") == 0
