"""The user's own file: splits, labels, bad rows, files to predict."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

from datamodules.text_file import TextFileDataModule

WORDS = ["good", "bad", "so so"]


def write(path: Path, rows: list[list[Any]], header: tuple[str, ...] = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def reviews(count: int = 60, kinds: int = 3) -> list[list[str]]:
    return [[f"{WORDS[i % kinds]}, film {i}", WORDS[i % kinds]] for i in range(count)]


@pytest.fixture
def load(tiny_tokenizer: str, tmp_path: Path) -> Any:
    def make(rows: Any = None, name: str = "a.csv", **options: Any) -> TextFileDataModule:
        path = tmp_path / name
        if rows is not None:
            write(path, rows)
        return TextFileDataModule(str(path), tokenizer=tiny_tokenizer, **options)

    return make


def test_splits_are_stratified_disjoint_and_complete(load: Any) -> None:
    data = load(reviews(100), val_fraction=0.2, test_fraction=0.1)
    data.setup()
    sizes = {split: len(data.tables[split]) for split in ("train", "val", "test")}
    assert sizes == pytest.approx({"train": 70, "val": 20, "test": 10}, abs=2)
    texts = [text for split in ("train", "val", "test") for text in data.tables[split].texts]
    assert sorted(texts) == sorted(text for text, _ in reviews(100))
    for split in ("val", "test"):
        assert set(data.tables[split].labels) == {0, 1, 2}
    assert data.class_names == ["bad", "good", "so so"]
    for table in data.tables.values():
        for text, label in zip(table.texts, table.labels, strict=True):
            assert text.startswith(data.class_names[label])


def test_the_split_is_the_same_in_fresh_processes(tmp_path: Path, tiny_tokenizer: str, root: Path) -> None:
    write(tmp_path / "a.csv", reviews(50))
    code = (
        "import sys, json, torch; torch.manual_seed(int(sys.argv[3]))\n"
        "from datamodules.text_file import TextFileDataModule\n"
        "data = TextFileDataModule(sys.argv[1], tokenizer=sys.argv[2])\n"
        "print(json.dumps({split: table.texts for split, table in data.read_splits().items()}))"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "a.csv"), tiny_tokenizer]
    runs = [subprocess.run([*argv, seed], cwd=root, capture_output=True, text=True, check=True) for seed in "12"]
    assert json.loads(runs[0].stdout) == json.loads(runs[1].stdout)
    here = TextFileDataModule(str(tmp_path / "a.csv"), tokenizer=tiny_tokenizer).read_splits()
    assert {split: table.texts for split, table in here.items()} == json.loads(runs[0].stdout)


def test_files_of_splits_are_used_as_they_are(load: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sets"
    folder.mkdir()
    write(folder / "train.csv", reviews(30))
    write(folder / "dev.csv", reviews(6))
    data = load(name="sets", test_path=str(write(tmp_path / "later.csv", reviews(9))))
    data.setup()
    assert [len(data.tables[split]) for split in ("train", "val", "test")] == [30, 6, 9]


def test_without_test_rows_val_is_tested_and_told(load: Any) -> None:
    data = load(reviews(), test_fraction=0.0)
    with pytest.warns(UserWarning, match="the val rows are tested, which flatters"):
        data.setup()
    assert data.tables["test"].texts == data.tables["val"].texts


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_sparse_numbers_are_classes(tmp_path: Path, tiny_tokenizer: str, kind: str) -> None:
    """As pandas writes them where one value is missing: with a point."""
    frame = pandas.DataFrame(
        {"review": [f"film {i}" for i in range(40)], "stars": [(1, 3, 5, 10)[i % 4] for i in range(40)]}
    )
    path = tmp_path / f"a.{kind}"
    frame["stars"] = frame["stars"].astype(float)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    data = TextFileDataModule(str(path), text_column="review", label_column="stars", tokenizer=tiny_tokenizer)
    assert data.class_names == ["1", "3", "5", "10"]
    data.setup("fit")
    for text, label in zip(data.tables["train"].texts, data.tables["train"].labels, strict=True):
        assert label == int(text.split()[1]) % 4


def test_pairs(tmp_path: Path, tiny_tokenizer: str) -> None:
    rows = [[f"film {i}", f"plot {i}", "yes" if i % 2 else "no"] for i in range(20)]
    path = write(tmp_path / "a.csv", rows, ("text", "other", "label"))
    data = TextFileDataModule(str(path), pair_column="other", tokenizer=tiny_tokenizer, batch_size=4)
    data.setup()
    batch = next(iter(data.val_dataloader()))
    assert batch["token_type_ids"].max() == 1
    first, second = data.sample_texts("val", batch["indices"].tolist())[0].split(" | ")
    assert first.split()[1] == second.split()[1]


BAD = [
    ["fine", "good"],
    ["", "good"],
    ["  ", "bad"],
    ["no label", ""],
    ["nan", "bad"],
    *reviews(20, 2),
]


def test_bad_rows_end_the_run_with_their_lines(load: Any) -> None:
    with pytest.raises(ValueError, match=r"a\.csv: 3 of 25 rows can't be used: ") as caught:
        load(BAD)
    message = str(caught.value)
    assert "line 3 (text is empty), line 4 (text is empty), line 5 (label is missing)" in message
    assert "--data.on_bad_row skip" in message
    assert "line 6" not in message  # "nan" is a word in a file of words


def test_bad_rows_are_left_out_counted_and_listed(load: Any) -> None:
    with pytest.warns(
        UserWarning, match=r"a\.csv: 3 of 25 rows are left out: line 3 \(text is empty\), line 4"
    ) as told:
        data = load(BAD, on_bad_row="skip")
    data.setup()
    assert len([w for w in told if "left out" in str(w.message)]) == 1
    assert sum(len(data.tables[split]) for split in ("train", "val", "test")) == 22


def test_what_is_no_text_is_named(tmp_path: Path, tiny_tokenizer: str) -> None:
    values = ["fine", None, 12.5, float("nan"), True, ["a"]]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": value, "label": i % 2}) for i, value in enumerate(values)))
    with pytest.raises(ValueError, match=r"5 of 6 rows") as caught:
        TextFileDataModule(str(path), tokenizer=tiny_tokenizer)
    for part in (
        "line 2 (text is missing)",
        "line 3 (text is no text but 12.5)",
        "line 4 (text is missing)",
        "line 5 (text is no text but True)",
        "line 6 (text is no text but ['a'])",
    ):
        assert part in str(caught.value)


def test_a_column_of_numbers_is_not_taken_for_texts(load: Any) -> None:
    with pytest.raises(
        ValueError, match=r"column 'label' holds numbers \(e.g. '0'\), not texts: is it the right column"
    ):
        load([[f"film {i}", i % 2] for i in range(10)], text_column="label", label_column="text")


def test_a_label_that_training_lacks_is_named(load: Any, tmp_path: Path) -> None:
    val = write(tmp_path / "val.csv", [["a film", "good"], ["a plot", "Good"]])
    data = load(reviews(), val_path=str(val))
    with pytest.raises(
        ValueError,
        match=r"val\.csv, line 3: the label 'Good' is not among the training rows', which are bad, good",
    ):
        data.setup("fit")


def test_predictions_need_no_label(load: Any, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", [["it was good"], [""], ['a, "b"\nc']], ("text",))
    data = load(reviews(), predict_path=str(new), on_bad_row="skip")
    with pytest.warns(UserWarning, match=r"new\.csv: 1 of 3 rows are left out: line 3"):
        data.setup("predict")
    assert data.predict_names == ["it was good", 'a, "b"\nc']
    assert [batch["indices"].tolist() for batch in data.predict_dataloader()] == [[1, 0]]  # the longer first
    lines = tmp_path / "new.txt"
    lines.write_text("one\ntwo\n")
    data = load(predict_path=str(lines))
    data.setup("predict")
    assert data.predict_names == ["one", "two"]


def test_predictions_need_no_training_rows_where_the_classes_are_given(load: Any, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", [["it was good"]], ("text",))
    data = load(name="gone.csv", predict_path=str(new), class_names=["x", "a"])
    data.setup("predict")
    assert (data.class_names, data.num_classes, data.predict_names) == (["x", "a"], 2, ["it was good"])
    with pytest.raises(ValueError, match=r"there is no file .*gone\.csv"):
        load(name="gone.csv", class_names=["x", "a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "txt"}, r"a\.csv has no column 'txt'; it has 'text', 'label'; did you mean 'text'\?"),
        ({"val_path": "gone.csv"}, r"there is no file .*gone\.csv"),
        ({"val_fraction": 0.0}, r"val_fraction \(0.0\) must be above 0"),
        ({"val_fraction": 0.6, "test_fraction": 0.5}, r"val_fraction \(0.6\) \+ test_fraction \(0.5\) must be below 1"),
        ({"on_bad_row": "drop"}, r"on_bad_row \('drop'\) must be 'error' or 'skip'"),
    ],
)
def test_wrong_options_are_refused(load: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(reviews(), **options)


def test_an_empty_split_is_refused(load: Any) -> None:
    data = load(reviews(6, 2), val_fraction=0.01)
    with pytest.raises(ValueError, match=r"val_fraction \(0.01\) leaves no val row of 6: raise it"):
        data.setup("fit")


def test_a_folder_without_a_training_file_is_refused(load: Any, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    write(tmp_path / "sets" / "reviews.csv", reviews())
    with pytest.raises(ValueError, match=r"sets has no train file, such as train\.csv; it has reviews\.csv"):
        load(name="sets")
    write(tmp_path / "sets" / "train.csv", reviews())
    write(tmp_path / "sets" / "train.tsv", reviews())
    with pytest.raises(ValueError, match=r"two train files: train\.csv and train\.tsv"):
        load(name="sets")
