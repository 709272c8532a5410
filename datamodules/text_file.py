"""The user's own labelled texts, in files with named columns."""

from pathlib import Path
from typing import Any

from datamodules.base import Split
from datamodules.labelled_texts import LabelledTextDataModule
from datamodules.splits import SPLIT_NAMES
from datamodules.table_files import READERS, Rows, read_rows
from datamodules.texts import TextTable


class TextFileDataModule(LabelledTextDataModule):
    """Texts and labels of a CSV, TSV, JSONL or Parquet file, or of a folder with such files for train, val and test.

    Args:
        path: The training file, or a folder with train.csv and, both optional, val.csv and test.csv (or another kind).
        val_path: The validation file. None: a stratified part of the training rows.
        test_path: The test file. None: likewise.
        predict_path: Texts to predict; needs no labels, and may be a .txt file with a text a line. None: the test rows.
        encoding: Of text files. A byte order mark at the start of a file counts for more.
        delimiter: Between cells. None: a comma, in .tsv files a tab.
        class_names: See LabelledTextDataModule; with predict_path no other file is needed then.
        kwargs: Columns, bad rows and splits, see LabelledTextDataModule.

    Raises:
        ValueError: A file is missing, can't be read or lacks a column.
    """

    def __init__(
        self,
        path: str,
        *,
        val_path: str | None = None,
        test_path: str | None = None,
        predict_path: str | None = None,
        encoding: str = "utf-8",
        delimiter: str | None = None,
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        given: dict[Split, str | None] = {"val": val_path, "test": test_path, "predict": predict_path}
        self.paths = find_files(Path(path)) | {split: Path(name) for split, name in given.items() if name is not None}
        self.encoding, self.delimiter = encoding, delimiter
        needed = {"predict"} if class_names is not None and predict_path is not None else set(self.paths)
        for split, file in self.paths.items():
            if split in needed and not file.is_file():
                raise ValueError(f"there is no file {file.absolute()}")
        super().__init__(class_names=class_names, **kwargs)

    def given_splits(self) -> list[Split]:
        """Splits with a file."""
        return [split for split in self.paths if split != "predict"]

    def rows(self, split: Split, columns: list[str]) -> Rows:
        """Rows of a split's file."""
        return read_rows(self.paths[split], columns, encoding=self.encoding, delimiter=self.delimiter)

    def read_predict(self) -> TextTable:
        """Texts of the file to predict, or of the test rows."""
        if "predict" not in self.paths:
            return super().read_predict()
        samples = self.take("predict", labelled=False)
        return TextTable(samples.texts, samples.pairs if self.pair_column else None)


def find_files(path: Path) -> dict[Split, Path]:
    """The file of each split: the file itself for train, or those of a folder that are named after a split.

    Raises:
        ValueError: There is no training file, or two for one split.
    """
    if not path.is_dir():
        return {"train": path}
    found: dict[Split, Path] = {}
    for file in sorted(path.iterdir()):
        for split, names in SPLIT_NAMES.items():
            if file.stem.lower() in names and file.suffix.lower() in READERS:
                if split in found:
                    raise ValueError(f"{path} has two {split} files: {found[split].name} and {file.name}")
                found[split] = file
    if "train" not in found:
        there = ", ".join(sorted(file.name for file in path.iterdir())[:10]) or "nothing"
        raise ValueError(f"{path} has no train file, such as train.csv; it has {there}")
    return found
