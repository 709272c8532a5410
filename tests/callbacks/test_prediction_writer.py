import csv
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from callbacks.prediction_writer import PredictionWriter, header, merge_parts, prediction_rows, sort_part

NAMES = ["plain.jpg", "comma, in.jpg", 'quo"te.jpg', "new\nline.jpg", "größe 猫.jpg", "bad\udcff.jpg"]


class Data(pl.LightningDataModule):
    """Six images with the names above; what `skip` lists is left out, as unreadable files are."""

    def __init__(self, images: torch.Tensor, skip: tuple[int, ...] = ()) -> None:
        super().__init__()
        kept = torch.tensor([i for i in range(len(NAMES)) if i not in skip])
        self.dataset, self.predict_names = TensorDataset(images[kept], kept), NAMES

    def predict_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_size=4)


def read(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.reader(file))


def test_rows_equal_a_sort_of_each_sample() -> None:
    probabilities = torch.rand(5, 4).softmax(1)
    for row, sample in zip(prediction_rows(probabilities, list("abcd"), 2), probabilities, strict=True):
        ranked = sorted(zip(sample.tolist(), "abcd", strict=True), reverse=True)[:2]
        assert row == [cell for p, name in ranked for cell in (name, f"{p:.6f}")]


def test_file_holds_every_sample_under_its_name(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task, images = tiny.Task(), torch.randn(6, 1, 4, 4)
    trainer = tiny.trainer(callbacks=[PredictionWriter(top_k=9)])
    trainer.predict(task, datamodule=Data(images), return_predictions=False)
    path = Path(trainer.log_dir) / "predictions.csv"
    first, *rows = read(path)
    assert first == ["name", "label", "probability", "label_2", "probability_2", "label_3", "probability_3"]
    assert [row[0] for row in rows] == NAMES
    with torch.no_grad():
        probabilities = task.eval().net(images).softmax(1)
    assert [row[1] for row in rows] == [task.class_names[i] for i in probabilities.argmax(1)]
    assert [float(row[2]) for row in rows] == pytest.approx(probabilities.amax(1).tolist(), abs=1e-5)
    assert str(path) in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir() if "predictions" in p.name] == ["predictions.csv"]


def test_samples_may_come_in_any_order(tiny: Any, tmp_path: Path) -> None:
    """Texts come sorted by length."""
    images, order = torch.randn(6, 1, 4, 4), torch.tensor([4, 0, 5, 2, 1, 3])

    class Sorted(Data):
        name_column = "text"

        def predict_dataloader(self) -> DataLoader[Any]:
            return DataLoader(TensorDataset(images[order], order), batch_size=4)

    target = tmp_path / "out.csv"
    task = tiny.Task()
    trainer = tiny.trainer(callbacks=[PredictionWriter(path=str(target))], logger=False)
    trainer.predict(task, datamodule=Sorted(images), return_predictions=False)
    first, *rows = read(target)
    assert first[:2] == ["text", "label"]
    assert [row[0] for row in rows] == NAMES
    with torch.no_grad():
        assert [row[1] for row in rows] == [task.class_names[i] for i in task.eval().net(images).argmax(1)]


def test_a_share_in_order_is_not_written_again(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_text('0,a\r\n2,"b\nc"\r\n')
    before = part.stat()
    sort_part(part)
    assert part.stat().st_mtime_ns == before.st_mtime_ns
    part.write_text('2,"b\nc"\r\n0,a\r\n')
    sort_part(part)
    assert read(part) == [["0", "a"], ["2", "b\nc"]]


def test_samples_without_a_prediction_are_told(tiny: Any, tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "out.csv"
    trainer = tiny.trainer(callbacks=[PredictionWriter(path=str(target))], logger=False)
    with pytest.warns(UserWarning, match=r"2 samples got no prediction .*: comma, in.jpg, bad"):
        trainer.predict(tiny.Task(), datamodule=Data(torch.randn(6, 1, 4, 4), skip=(1, 5)))
    assert len(read(target)) == 5


def test_without_a_datamodule_names_are_indices(tiny: Any, tmp_path: Path) -> None:
    trainer = tiny.trainer(callbacks=[PredictionWriter(top_k=1, path=str(tmp_path / "out.csv"))], logger=False)
    trainer.predict(tiny.Task(), DataLoader(TensorDataset(torch.randn(3, 1, 4, 4), torch.arange(3))))
    assert [row[0] for row in read(tmp_path / "out.csv")] == ["name", "0", "1", "2"]


def test_a_failed_run_leaves_the_earlier_file(tiny: Any, tmp_path: Path) -> None:
    class Failing(tiny.Task):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 1:
                raise RuntimeError("broken")
            return super().predict_step(batch, batch_idx)

    target = tmp_path / "out.csv"
    target.write_text("earlier")
    trainer = tiny.trainer(callbacks=[PredictionWriter(path=str(target))], logger=False)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.predict(Failing(), datamodule=Data(torch.randn(6, 1, 4, 4)))
    assert target.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


def test_shares_of_several_ranks_are_merged_in_index_order(tmp_path: Path) -> None:
    parts = [tmp_path / "out.part0", tmp_path / "out.part1"]
    parts[0].write_text("0,a,0.9\n2,c,0.7\n4,e,0.5\n")
    parts[1].write_text("1,b,0.8\n3,d,0.6\n4,e,0.5\n")  # 4: a sampler that pads with repetitions
    merge_parts(parts, tmp_path / "out.csv", None)
    assert read(tmp_path / "out.csv") == [
        header(1),
        ["0", "a", "0.9"],
        ["1", "b", "0.8"],
        ["2", "c", "0.7"],
        ["3", "d", "0.6"],
        ["4", "e", "0.5"],
    ]


def test_a_task_without_probabilities_writes_nothing_and_says_so(tiny: Any, tmp_path: Path) -> None:
    class Other(tiny.Task):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return batch[0]

    trainer = tiny.trainer(callbacks=[PredictionWriter(path=str(tmp_path / "out.csv"))], logger=False)
    with pytest.warns(UserWarning, match="nothing was written"):
        trainer.predict(Other(), datamodule=Data(torch.randn(6, 1, 4, 4)))
    assert not list(tmp_path.iterdir())


def test_wrong_options_are_named(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"top_k \(0\)"):
        PredictionWriter(top_k=0)
    trainer = tiny.trainer(callbacks=[PredictionWriter(path=str(tmp_path))], logger=False)
    with pytest.raises(ValueError, match="is a folder"):
        trainer.predict(tiny.Task(), datamodule=Data(torch.randn(6, 1, 4, 4)))
