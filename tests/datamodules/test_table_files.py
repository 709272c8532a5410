"""Files as people have them: encodings, quotes, line numbers, what is named when something is wrong."""

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from datamodules.table_files import read_rows

RECORDS = [
    {"text": 'She said "good", twice', "label": "1"},
    {"text": "two\nlines, and a comma", "label": "0"},
    {"text": "naïve café \N{FACE WITH TEARS OF JOY} 東京", "label": "1"},
    {"text": "  spaces stay  ", "label": "0"},
]


def save(path: Path, records: list[dict[str, Any]]) -> Path:
    frame = pandas.DataFrame(records)
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".tsv":
            frame.to_csv(path, index=False, sep="\t")
        case ".parquet":
            frame.to_parquet(path)
        case _:
            path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".CSV"])
def test_cells_come_back_as_they_were(tmp_path: Path, suffix: str) -> None:
    saved = save(tmp_path / f"texts{suffix.lower()}", RECORDS)
    rows = read_rows(saved.rename(tmp_path / f"texts{suffix}"), ["label", "text"])
    assert rows.columns == {name: [record[name] for record in RECORDS] for name in ("label", "text")}
    assert rows.faults == {}
    assert rows.source == f"texts{suffix}"


def test_line_numbers_are_those_of_an_editor(tmp_path: Path) -> None:
    path = save(tmp_path / "texts.csv", RECORDS)
    rows = read_rows(path, ["text"])
    lines = path.read_text().splitlines()
    assert rows.numbers == [2, 3, 5, 6]
    for number, record in zip(rows.numbers, RECORDS, strict=True):
        assert record["text"].splitlines()[0].split('"')[0] in lines[number - 1]


def test_rows_of_parquet_count_from_one(tmp_path: Path) -> None:
    rows = read_rows(save(tmp_path / "a.parquet", RECORDS), ["text"])
    assert (rows.unit, rows.numbers) == ("row", [1, 2, 3, 4])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\ncafé,1\n", encoding=encoding)
    given = {} if encoding in ("utf-8", "utf-8-sig", "utf-16") else {"encoding": encoding}
    assert read_rows(path, ["text", "label"], **given).columns == {"text": ["café"], "label": ["1"]}


def test_a_file_in_another_encoding_is_named_with_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\nfine,1\ncafé,0\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.csv, line 3: byte 0xe9 is not utf-8; .* --data\.encoding latin-1"):
        read_rows(tmp_path / "a.csv", ["text"])
    with pytest.raises(ValueError, match="encoding 'utf-9' is not known"):
        read_rows(tmp_path / "a.csv", ["text"], encoding="utf-9")


def test_a_very_long_cell_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text\n{'long ' * 100_000}\n")
    assert len(read_rows(tmp_path / "a.csv", ["text"]).columns["text"][0]) == 500_000


def test_bad_rows_of_cells_are_noted_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n\ngood,1\nbad\nc,0,x\n\n\n")
    rows = read_rows(tmp_path / "a.csv", ["text", "label"])
    faults = {rows.numbers[position]: fault for position, fault in rows.faults.items()}
    assert faults == {2: "empty line", 4: "1 cells where the header has 2", 5: "3 cells where the header has 2"}
    assert rows.numbers == [2, 3, 4, 5]  # empty lines at the end of a file are no rows


def test_bad_rows_of_json_are_noted_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": \n[1]\n{"other": 1}\n')
    rows = read_rows(tmp_path / "a.jsonl", ["text"])
    faults = {rows.numbers[position]: fault for position, fault in rows.faults.items()}
    assert faults.keys() == {2, 3, 4}
    assert faults[2] == "empty line"
    assert faults[3].startswith("not JSON (")
    assert faults[4] == "not an object of names"
    assert rows.columns["text"] == ["a", None, None, None, None]


def test_a_text_file_has_a_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\r\n\ntwo, three\n")
    rows = read_rows(tmp_path / "a.txt", ["anything"])
    assert (rows.columns["anything"], rows.numbers) == (["one", "", "two, three"], [1, 2, 3])
    with pytest.raises(ValueError, match=r"a\.txt has texts only; text, label need a file with named columns"):
        read_rows(tmp_path / "a.txt", ["text", "label"])


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        (
            "a.csv",
            "text,label\na,1\n",
            {},
            r"a\.csv has no column 'texts'; it has 'text', 'label'; did you mean 'text'\?",
        ),
        ("a.jsonl", '{"txt": 1}\n', {}, r"has no column 'texts'; it has 'txt'"),
        ("a.csv", "texts;label\na;1\n", {}, r"a\.csv is not separated by ','; try|: try --data.delimiter ';'"),
        ("a.csv", "texts\tlabel\na\t1\n", {}, r"try --data.delimiter '\\t'"),
        ("a.csv", "texts,texts\na,1\n", {}, r"more than one column 'texts'"),
        ("a.csv", "", {}, r"a\.csv has no column 'texts'; it has none"),
        ("a.csv", "texts,label\n", {}, r"a\.csv has no rows"),
        ("a.csv", 'texts\nfine\n"open\nmore\n', {}, r"a\.csv, line 3: .*is a quotation mark left open"),
        ("a.csv", "texts\na\n", {"delimiter": ",,"}, r"delimiter \(',,'\) must be one character"),
        ("a.xlsx", "", {}, r"a\.xlsx must be one of \.csv, \.tsv, .*not \.xlsx"),
        ("a.parquet", "no parquet", {}, r"a\.parquet is no readable Parquet file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: str, options: Any, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path / name, ["texts"], **options)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*gone\.csv"):
        read_rows(tmp_path / "gone.csv", ["text"])


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pyarrow: pip install ".\[text\]"'):
        read_rows(tmp_path / "a.parquet", ["text"])
