"""Data sets that `save_to_disk` wrote: names of labels, splits that are missing or without labels."""

import sys
from pathlib import Path
from typing import Any

import pytest

from datamodules.hugging_face import HuggingFaceDataModule

datasets = pytest.importorskip("datasets", reason='needs pip install ".[text]", which `make test` installs')


def make_part(count: int, *, labels: Any = None, names: list[str] | None = None) -> Any:
    columns = {"text": [f"film {i}" for i in range(count)], "label": labels or [i % 2 for i in range(count)]}
    part = datasets.Dataset.from_dict(columns)
    return part.cast_column("label", datasets.ClassLabel(names=names)) if names else part


@pytest.fixture
def save(tmp_path: Path, tiny_tokenizer: str) -> Any:
    def make(data: Any, **options: Any) -> HuggingFaceDataModule:
        data.save_to_disk(str(tmp_path / "saved"))
        return HuggingFaceDataModule(str(tmp_path / "saved"), tokenizer=tiny_tokenizer, **options)

    return make


def test_splits_and_names_are_the_data_sets_own(save: Any) -> None:
    names = ["positive", "neutral", "negative"]
    parts = {
        "train": make_part(40, names=names),
        "validation": make_part(6, names=names, labels=[2, 1, 0, 2, 1, 0]),
        "test": make_part(4, names=names),
    }
    data = save(datasets.DatasetDict(parts))
    assert data.class_names == names  # the order of the data set, with a class that training lacks
    data.setup()
    assert [len(data.tables[split]) for split in ("train", "val", "test")] == [40, 6, 4]
    assert data.tables["val"].labels == [2, 1, 0, 2, 1, 0]


def test_a_single_set_is_split(save: Any) -> None:
    data = save(make_part(50, labels=[("good", "bad")[i % 2] for i in range(50)]))
    data.setup()
    assert data.class_names == ["bad", "good"]
    assert [len(data.tables[split]) for split in ("train", "val", "test")] == pytest.approx([40, 5, 5], abs=2)


def test_a_split_without_labels_is_not_tested_on(save: Any) -> None:
    parts = datasets.DatasetDict({"train": make_part(40), "test": make_part(8, labels=[-1] * 8)})
    data = save(parts)
    with pytest.warns(UserWarning, match="the split test has no labels and is not used"):
        data.setup()
    texts = {text for split in ("train", "val", "test") for text in data.tables[split].texts}
    assert len(texts) == 40


def test_bad_rows_are_named(save: Any) -> None:
    part = datasets.Dataset.from_dict({"text": ["a", None, "", "b"], "label": [0, 1, 0, 1]})
    with pytest.raises(
        ValueError, match=r"split train: 2 of 4 rows .*row 2 \(text is missing\), row 3 \(text is empty\)"
    ):
        save(part)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "txt"}, r"split train has no column 'txt'; it has 'text', 'label'; did you mean 'text'\?"),
        ({"label_column": "lable"}, r"has no column 'lable'; .* did you mean 'label'\?"),
    ],
)
def test_missing_columns_are_named(save: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save(make_part(10), **options)


def test_a_missing_split_is_named(save: Any) -> None:
    with pytest.raises(ValueError, match="has no split 'training'; it has train"):
        save(datasets.DatasetDict({"train": make_part(10)}), train_split="training")


def test_what_is_neither_saved_nor_on_the_hub_is_named(tiny_tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="no-such-set-anywhere is neither a directory") as caught:
        HuggingFaceDataModule("no-such-set-anywhere", tokenizer=tiny_tokenizer)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_remedy(tiny_tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'datasets: pip install ".\[text\]"'):
        HuggingFaceDataModule("x", tokenizer=tiny_tokenizer)
