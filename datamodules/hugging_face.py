"""Labelled texts of a data set of the Hugging Face `datasets` package, from the hub or a saved directory."""

from pathlib import Path
from typing import Any

from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from datamodules.base import Split
from datamodules.labelled_texts import LabelledTextDataModule, Samples
from datamodules.labels import LabelNames
from datamodules.table_files import Rows, check_columns


class HuggingFaceDataModule(LabelledTextDataModule):
    """Texts and labels of a data set on the Hugging Face hub, or of a directory that `save_to_disk` wrote.

    Needs the package `datasets`. A val or test split that the data set lacks, or that has no labels, is a stratified
    part of the training rows.

    Args:
        path: Name on the hub, or the directory.
        config_name: Name of one of the data set's configurations.
        revision: Git revision on the hub; None: the newest.
        train_split: Name of the training split.
        val_split: Name of the validation split.
        test_split: Name of the test split.
        kwargs: Columns, bad rows and splits, see LabelledTextDataModule.

    Raises:
        ValueError: The data set can't be had, or lacks a split or a column.
        ImportError: `datasets` is missing.
    """

    def __init__(
        self,
        path: str,
        *,
        config_name: str | None = None,
        revision: str | None = None,
        train_split: str = "train",
        val_split: str = "validation",
        test_split: str = "test",
        **kwargs: Any,
    ) -> None:
        self.path = path
        self.names: dict[Split, str] = {"train": train_split, "val": val_split, "test": test_split}
        self.parts = load_parts(path, config_name, revision, alone=train_split)
        if train_split not in self.parts:
            raise ValueError(f"{path} has no split {train_split!r}; it has {', '.join(self.parts)}")
        super().__init__(**kwargs)

    def given_splits(self) -> list[Split]:
        """Splits of the data set that have labels; those of a test that is scored elsewhere are all -1."""
        labelled: list[Split] = []
        for split, name in self.names.items():
            if name not in self.parts:
                continue
            check_columns(f"{self.path}, split {name}", [self.label_column], self.parts[name].column_names)
            if set(self.parts[name].unique(self.label_column)) <= {-1, None}:
                rank_zero_warn(f"{self.path}: the split {name} has no labels and is not used")
                continue
            labelled.append(split)
        return labelled

    def rows(self, split: Split, columns: list[str]) -> Rows:
        """Rows of a split; labels that the data set keeps as numbers by their names."""
        part = self.parts[self.names[split]]
        source = f"{self.path}, split {self.names[split]}"
        check_columns(source, columns, part.column_names)
        rows = Rows(source, "row", {name: list(part[name]) for name in columns}, list(range(1, len(part) + 1)))
        feature = part.features.get(self.label_column)
        if self.label_column in rows.columns and hasattr(feature, "int2str"):
            labels = rows.columns[self.label_column]
            rows.columns[self.label_column] = [None if x is None or x < 0 else feature.int2str(x) for x in labels]
        return rows

    def name_labels(self, samples: Samples) -> LabelNames:
        """Class names, in the data set's own order where it has one."""
        feature = self.parts[self.names["train"]].features.get(self.label_column)
        return LabelNames(feature.names) if hasattr(feature, "int2str") else super().name_labels(samples)


def load_parts(path: str, config_name: str | None, revision: str | None, *, alone: str) -> dict[str, Any]:
    """The splits of a data set by name; a saved directory of a single one counts as `alone`.

    Raises:
        ValueError: It can't be had.
        ImportError: `datasets` is missing.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ImportError('HuggingFaceDataModule needs the package datasets: pip install ".[text]"') from error
    try:
        if Path(path).is_dir() and {"dataset_dict.json", "state.json"} & {file.name for file in Path(path).iterdir()}:
            found: Any = datasets.load_from_disk(path)
        else:
            found = datasets.load_dataset(path, config_name, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} is neither a directory that save_to_disk wrote nor a data set that the hub gives ({reason})"
        ) from error
    return dict(found) if isinstance(found, dict) else {alone: found}
