from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader

from callbacks import classification_report
from callbacks.classification_report import (
    ClassificationReport,
    confusion_counts,
    most_confident_mistakes,
)


def test_counts_equal_scikit_learns() -> None:
    from sklearn.metrics import confusion_matrix

    labels, predictions = torch.randint(5, (2, 100))
    expected = torch.from_numpy(confusion_matrix(labels, predictions, labels=range(6)))
    assert torch.equal(confusion_counts(labels, predictions, 6), expected)


@pytest.mark.parametrize("count", [0, 3, 100])
def test_mistakes_equal_a_loop_over_samples(count: int) -> None:
    probabilities, labels = torch.rand(40, 4).softmax(1), torch.randint(4, (40,))
    wrong = [
        (-float(p.max()), i)
        for i, (p, y) in enumerate(zip(probabilities, labels, strict=True))
        if int(p.argmax()) != int(y)
    ]
    expected = [i for _, i in sorted(wrong)][:count]
    assert most_confident_mistakes(probabilities, labels, count).tolist() == expected


def image_steps(read_events: Any, folder: Any, tag: str) -> list[int]:
    events = read_events(folder)
    return [e.step for e in events.Images(tag)] if tag in events.Tags()["images"] else []


def test_report_of_a_test_counts_every_sample(tiny: Any, read_events: Any) -> None:
    report, task = ClassificationReport(max_mistakes=4), tiny.Task()
    trainer = tiny.trainer(callbacks=[report])
    trainer.test(task, tiny.loader(count=13, batch_size=4), verbose=False)
    images, labels = tiny.data(13).tensors
    with torch.no_grad():
        probabilities = task.eval().net(images).softmax(1)
    assert report._counts is not None
    assert torch.equal(report._counts, confusion_counts(labels, probabilities.argmax(1), 3))
    chosen = most_confident_mistakes(probabilities, labels, 4)
    assert [m.label for m in report._mistakes] == labels[chosen].tolist()
    torch.testing.assert_close(torch.stack([m.sample for m in report._mistakes]), images[chosen])
    events = read_events(trainer.log_dir)
    assert set(events.Tags()["images"]) == {"test/confusion_matrix", "test/mistakes"}
    (table,) = events.Tensors("test/per_class_accuracy/text_summary")
    assert "| cat | " in table.tensor_proto.string_val[0].decode()


class Texts(pl.LightningDataModule):
    """Images in batches as texts have them, with what there is to read about each."""

    def __init__(self, tiny: Any) -> None:
        super().__init__()
        images, labels = tiny.data(13).tensors
        self.samples = [{"x": images[i], "labels": labels[i], "indices": i} for i in range(13)][::-1]
        self.asked: list[str] = []

    def sample_texts(self, split: str, indices: list[int]) -> list[str]:
        self.asked.append(split)
        return [f"text *{index}* | <b>" for index in indices]

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.samples, batch_size=4)  # type: ignore[arg-type]

    val_dataloader = test_dataloader


def text_task(tiny: Any) -> Any:
    class Task(tiny.Task):
        def _evaluate(self, batch: Any, split: str) -> Any:
            return super()._evaluate((batch["x"], batch["labels"]), split)

    return Task()


@pytest.mark.parametrize("split", ["val", "test"])
def test_mistakes_of_texts_are_a_table(tiny: Any, read_events: Any, split: str) -> None:
    task, data = text_task(tiny), Texts(tiny)
    trainer = tiny.trainer(callbacks=[ClassificationReport(max_mistakes=3)])
    (trainer.test if split == "test" else trainer.validate)(task, datamodule=data, verbose=False)
    assert set(data.asked) == {split}
    events = read_events(trainer.log_dir)
    assert set(events.Tags()["images"]) == {f"{split}/confusion_matrix"}
    (event,) = events.Tensors(f"{split}/mistakes/text_summary")
    rows = event.tensor_proto.string_val[0].decode().splitlines()[2:]
    images, labels = tiny.data(13).tensors
    with torch.no_grad():
        probabilities = task.eval().net(images).softmax(1)
    chosen = most_confident_mistakes(probabilities, labels, 3)
    for row, index in zip(rows, chosen.tolist(), strict=True):
        assert f"text \\*{index}\\* \\| &lt;b&gt;" in row
        assert f"| {float(probabilities[index].max()):.3f} |" in row


def test_a_datamodule_without_texts_still_has_its_matrix(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(callbacks=[ClassificationReport()])
    trainer.test(text_task(tiny), Texts(tiny).test_dataloader(), verbose=False)
    events = read_events(trainer.log_dir)
    assert set(events.Tags()["images"]) == {"test/confusion_matrix"}
    assert "test/mistakes/text_summary" not in events.Tags()["tensors"]


def test_short_fits_draw_only_their_last_validation(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(max_epochs=4, callbacks=[ClassificationReport()])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    assert image_steps(read_events, trainer.log_dir, "val/confusion_matrix") == [12]
    assert image_steps(read_events, trainer.log_dir, "val/mistakes") == [12]


def test_every_n_epochs_and_the_last(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(max_epochs=5, callbacks=[ClassificationReport(every_n_epochs=2)])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    assert image_steps(read_events, trainer.log_dir, "val/confusion_matrix") == [6, 12, 15]


def test_a_fit_that_stops_early_draws_its_last_validation(tiny: Any, read_events: Any) -> None:
    stopping = EarlyStopping("val/loss", patience=1, min_delta=1e9)
    trainer = tiny.trainer(max_epochs=50, callbacks=[ClassificationReport(every_n_epochs=40), stopping])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    assert image_steps(read_events, trainer.log_dir, "val/confusion_matrix") == [6]


def test_long_fits_draw_as_often_as_the_budget_allows(
    tiny: Any, read_events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(pl.Callback):
        """By this clock an epoch takes 30 s and a drawing 0.4 s: due after 50 s and each 40 s."""

        now = 0.0

        def perf_counter(self) -> float:
            return self.now

        def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.now += 30

    clock, draw = Clock(), classification_report.draw_confusion_matrix

    def slow_draw(*arguments: Any) -> Any:
        clock.now += 0.4
        return draw(*arguments)

    monkeypatch.setattr(classification_report, "time", clock)
    monkeypatch.setattr(classification_report, "draw_confusion_matrix", slow_draw)
    trainer = tiny.trainer(max_epochs=8, callbacks=[ClassificationReport(max_mistakes=0), clock])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    epochs = [s // 3 for s in image_steps(read_events, trainer.log_dir, "val/confusion_matrix")]
    assert epochs == [2, 3, 4, 6, 7, 8]


def test_a_batch_without_images_still_counts(tiny: Any, read_events: Any) -> None:
    class Text(tiny.Task):
        def test_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
            return {"probabilities": torch.eye(3)[batch["labels"]], "labels": batch["labels"]}

    data = [{"input_ids": torch.zeros(2, 4), "labels": torch.tensor([0, 2])}]
    report = ClassificationReport()
    trainer = tiny.trainer(callbacks=[report])
    trainer.test(Text(), torch.utils.data.DataLoader(data, batch_size=None), verbose=False)  # type: ignore[arg-type]
    assert report._counts is not None
    assert report._counts.diag().tolist() == [1, 0, 1]
    assert set(read_events(trainer.log_dir).Tags()["images"]) == {"test/confusion_matrix"}


@pytest.mark.parametrize("kind", ["none", "csv"])
def test_without_tensorboard_nothing_is_collected(tiny: Any, tmp_path: Any, kind: str) -> None:
    report = ClassificationReport()
    trainer = tiny.trainer(logger=CSVLogger(tmp_path) if kind == "csv" else False, callbacks=[report])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    trainer.test(tiny.Task(), tiny.loader(), verbose=False)
    assert report._counts is None


def test_other_tasks_are_left_alone(tiny: Any, read_events: Any) -> None:
    class Other(tiny.Task):
        def test_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return torch.zeros(())

    trainer = tiny.trainer(callbacks=[ClassificationReport()])
    trainer.test(Other(), tiny.loader(), verbose=False)
    assert not read_events(trainer.log_dir).Tags()["images"]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"every_n_epochs \(0\)"):
        ClassificationReport(every_n_epochs=0)
    with pytest.raises(ValueError, match=r"max_mistakes \(65\)"):
        ClassificationReport(max_mistakes=65)
