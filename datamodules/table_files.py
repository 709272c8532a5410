"""Rows of CSV, TSV, JSONL, Parquet and plain text files, each with the number by which a person finds it."""

import codecs
import csv
import difflib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass
class Rows:
    """Some columns of a file.

    Args:
        source: Name of the file.
        unit: What `numbers` count, line or row.
        columns: Values by name, one a row; None where a cell is null or not there.
        numbers: Number of each row, from 1: the line on which it starts, as an editor shows it.
        faults: What is wrong with a row, by its position.
    """

    source: str
    unit: str
    columns: dict[str, list[Any]]
    numbers: list[int] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, values: dict[str, Any], fault: str | None = None) -> None:
        """Append a row."""
        if fault is not None:
            self.faults[len(self)] = fault
        self.numbers.append(number)
        for name, column in self.columns.items():
            column.append(values.get(name))


def read_rows(path: Path, columns: Sequence[str], *, encoding: str = "utf-8", delimiter: str | None = None) -> Rows:
    """The named columns of a file, which is read by its suffix.

    Args:
        path: A .csv, .tsv, .jsonl, .ndjson, .parquet or .txt file; the last has one text a line and no names.
        columns: Names of the columns, of which a .txt file has only one.
        encoding: Of a text file. A byte order mark at its start counts for more.
        delimiter: Between cells. None: a comma, in .tsv a tab.

    Raises:
        ValueError: The file is missing, of another kind, can't be decoded, is empty, or lacks a column.
    """
    if path.suffix.lower() not in READERS:
        raise ValueError(f"{path} must be one of {', '.join(READERS)}, not {path.suffix or 'without a suffix'}")
    if not path.is_file():
        raise ValueError(f"there is no file {path.absolute()}")
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"delimiter ({delimiter!r}) must be one character")
    rows = Rows(path.name, "line", {name: [] for name in columns})
    READERS[path.suffix.lower()](path, rows, encoding, delimiter)
    if not len(rows):
        raise ValueError(f"{path} has no rows")
    return rows


def read_text(path: Path, encoding: str) -> str:
    """A file as text, without a byte order mark.

    Raises:
        ValueError: It is in another encoding; the line is named.
    """
    content = path.read_bytes()
    encoding = next((name for bom, name in BOMS if content.startswith(bom)), encoding)
    try:
        return content.decode(encoding)
    except LookupError as error:
        raise ValueError(f"encoding {encoding!r} is not known; utf-8, latin-1 and cp1252 are common") from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: byte {content[error.start]:#04x} is not {encoding}; name the file's encoding, "
            "e.g. --data.encoding latin-1 (or cp1252, of Windows)"
        ) from error


def _read_cells(path: Path, rows: Rows, encoding: str, delimiter: str | None) -> None:
    delimiter = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    text = read_text(path, encoding).rstrip("\r\n")
    csv.field_size_limit(1 << 30)  # the default, 128 KiB, is less than some articles have
    records = _records(path, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    _, header = next(records, (1, []))
    header = [name.strip() for name in header]
    other = next((d for d in (";", "\t", "|", ",") if d != delimiter and len(header) == 1 and d in header[0]), None)
    if other is not None and not set(rows.columns) <= set(header):
        raise ValueError(f"{path} is not separated by {delimiter!r}: try --data.delimiter {other!r}")
    check_columns(str(path), rows.columns, header)
    if repeated := [name for name in rows.columns if header.count(name) > 1]:
        raise ValueError(f"{path} has more than one column {repeated[0]!r}")
    for line, cells in records:
        fault = None
        if not cells:
            fault = "empty line"
        elif len(cells) != len(header):
            fault = f"{len(cells)} cells where the header has {len(header)}"
        rows.add(line, {} if fault else dict(zip(header, cells, strict=True)), fault)


def _records(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The line on which each record starts, and its cells: a quoted cell may run over several lines."""
    start = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{path}, line {start}: {error}; is a quotation mark left open or not doubled?") from error
        if cells is None:
            return
        yield start, cells
        start = reader.line_num + 1


def _read_json_lines(path: Path, rows: Rows, encoding: str, delimiter: str | None) -> None:
    names: dict[str, None] = {}
    for number, line in enumerate(read_text(path, encoding).rstrip().split("\n"), start=1):
        try:
            value = json.loads(line) if line.strip() else None
            fault = "empty line" if value is None else None if isinstance(value, dict) else "not an object of names"
        except json.JSONDecodeError as error:
            value, fault = None, f"not JSON ({error.msg} at column {error.colno})"
        names |= dict.fromkeys(value) if isinstance(value, dict) else {}
        rows.add(number, value if isinstance(value, dict) else {}, fault)
    if names:
        check_columns(str(path), rows.columns, list(names))


def _read_parquet(path: Path, rows: Rows, encoding: str, delimiter: str | None) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ImportError(f'{path.name} needs the package pyarrow: pip install ".[text]"') from error
    try:
        check_columns(str(path), rows.columns, pyarrow.parquet.read_schema(path).names)
        table = pyarrow.parquet.read_table(path, columns=list(rows.columns))
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is no readable Parquet file ({str(error).splitlines()[0]})") from error
    rows.unit = "row"
    rows.columns = {name: table[name].to_pylist() for name in rows.columns}
    rows.numbers = list(range(1, table.num_rows + 1))


def _read_lines(path: Path, rows: Rows, encoding: str, delimiter: str | None) -> None:
    if len(rows.columns) > 1:
        raise ValueError(f"{path} has texts only; {', '.join(rows.columns)} need a file with named columns, e.g. .csv")
    (column,) = rows.columns
    for number, line in enumerate(read_text(path, encoding).rstrip().split("\n"), start=1):
        rows.add(number, {column: line.rstrip("\r")})


READERS: dict[str, Callable[[Path, Rows, str, str | None], None]] = {
    ".csv": _read_cells,
    ".tsv": _read_cells,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
    ".txt": _read_lines,
}


def check_columns(source: str, wanted: Iterable[str], there: Sequence[str]) -> None:
    """Raise ValueError where a wanted column is not there, and name those that are."""
    for name in wanted:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{source} has no column {name!r}; it has {', '.join(map(repr, there)) or 'none'}{hint}")
