import math
import re
import warnings
from argparse import Namespace
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

from callbacks.dashboard import (
    Dashboard,
    custom_scalars_layout,
    flatten_hyperparameters,
    logging_interval,
)
from callbacks.gradient_norm import GradientNorm


def test_layout_puts_train_and_val_of_a_metric_into_one_chart() -> None:
    names = ["val/loss", "train/loss_step", "val/top+1", "test/loss", "epoch", "train/gradient_norm"]
    charts = custom_scalars_layout(names)["train and val"]
    assert list(charts) == ["loss", "top+1"]
    patterns = charts["loss"][1]
    tags = ["train/loss", "train/loss_step", "train/loss_epoch", "val/loss", "val/loss2", "test/loss"]
    assert [tag for tag in tags if any(re.match(p, tag) for p in patterns)] == tags[:4]
    assert re.match(charts["top+1"][1][1], "val/top+1")


def test_layout_without_validation_shows_training_metrics() -> None:
    names = ["train/loss_step", "train/loss_epoch", "train/gradient_norm"]
    assert list(custom_scalars_layout(names)["train and val"]) == ["loss"]


@pytest.mark.parametrize(
    ("requested", "steps_per_epoch", "epochs", "expected"),
    [
        (50, 1000, 3, 50),  # long enough
        (50, 20, 30, 20),  # one point an epoch
        (50, 20, 1, 2),  # ten points a run
        (50, 3, 1, 1),
        (50, math.inf, math.inf, 50),
        (1, 1000, 3, 1),
    ],
)
def test_logging_interval(requested: int, steps_per_epoch: float, epochs: float, expected: int) -> None:
    assert logging_interval(requested, steps_per_epoch=steps_per_epoch, epochs=epochs) == expected


def test_hyperparameters_are_flat_and_plain() -> None:
    options = {
        "net": {"class_path": "models.nets.Tiny", "init_args": Namespace(dropout=0.3, widths=[1, 2])},
        "_class_path": "models.Task",
        "compile": True,
        "weights": None,
    }
    assert flatten_hyperparameters(options, "model") == {
        "model.net": "Tiny",
        "model.net.dropout": 0.3,
        "model.compile": True,
    }


class Data(pl.LightningDataModule):
    def __init__(self, loader: Any, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="loader")
        self.train_dataloader = self.val_dataloader = self.test_dataloader = lambda: loader()  # type: ignore[method-assign]


def hparams_tab(folder: Any) -> tuple[Any, list[Any]]:
    """What TensorBoard's own HParams backend serves for a folder: the columns and the rows."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(TBContext(data_provider=provider))
    args = (RequestContext(), context, "")
    experiment = get_experiment.Handler(*args, api_pb2.GetExperimentRequest()).run()
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=10, allowed_statuses=range(4), include_metrics=True
    )
    request.col_params.add(metric=api_pb2.MetricName(tag="test/accuracy"))
    request.col_params.add(metric=api_pb2.MetricName(tag="best/val_accuracy"))
    groups = list_session_groups.Handler(*args, request).run().session_groups
    return experiment, list(groups)


def test_fit_and_test_fill_one_row_of_the_hparams_tab(tiny: Any, read_events: Any, tmp_path: Any) -> None:
    trainers = []
    for learning_rate in (0.1, 0.2):
        saver = ModelCheckpoint(tmp_path / "checkpoints", monitor="val/accuracy", mode="max")
        callbacks = [Dashboard(), saver, LearningRateMonitor(), GradientNorm()]
        trainer = tiny.trainer(max_epochs=3, callbacks=callbacks, enable_checkpointing=True)
        task, data = tiny.Task(learning_rate, options={"class_path": "a.b.C"}), Data(tiny.loader)
        trainer.fit(task, datamodule=data)
        trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
        trainers.append(trainer)

    experiment, rows = hparams_tab(tmp_path / "run")
    assert [row.name for row in rows] == ["version_0", "version_1"]
    columns = {info.name for info in experiment.hparam_infos}
    expected = {"model", "model.learning_rate", "model.options", "data", "data.batch_size"}
    assert columns >= expected | {"trainer.max_epochs", "trainer.precision"}
    assert {"test/accuracy", "test/loss", "best/val_accuracy"} <= {m.name.tag for m in experiment.metric_infos}
    for row, trainer, rate in zip(rows, trainers, (0.1, 0.2), strict=True):
        assert row.hparams["model.learning_rate"].number_value == rate
        assert row.hparams["model.options"].string_value == "C"
        assert row.hparams["data.batch_size"].number_value == 4
        values = {value.name.tag: value.value for value in row.metric_values}
        assert values["test/accuracy"] == pytest.approx(float(trainer.callback_metrics["test/accuracy"]))
        assert values["best/val_accuracy"] == pytest.approx(float(trainer.checkpoint_callback.best_model_score))
        assert len(row.sessions) == 1
        assert row.sessions[0].status == 1  # success

    events = read_events(trainers[0].log_dir)
    assert [e.step for e in events.Scalars("val/accuracy")] == [2, 5, 8]  # no stray point
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    assert len(events.Tensors("custom_scalars__config__")) == 1
    assert {"lr-AdamW", "train/gradient_norm", "train/loss_step"} <= set(events.Tags()["scalars"])
    assert "hp_metric" not in events.Tags()["scalars"]


def test_layout_is_served_by_the_custom_scalars_tab(tiny: Any, read_events: Any) -> None:
    from tensorboard.plugins.custom_scalar import layout_pb2

    trainer = tiny.trainer(callbacks=[Dashboard()])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    (event,) = read_events(trainer.log_dir).Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: list(chart.multiline.tag) for category in layout.category for chart in category.chart}
    assert charts["accuracy"] == ["^train/accuracy(_step|_epoch)?$", "^val/accuracy$"]
    assert {"loss", "learning rate", "gradient norm", "samples per second"} <= charts.keys()


def test_a_run_with_fewer_batches_than_the_interval_has_a_curve(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(max_epochs=4, callbacks=[Dashboard()], log_every_n_steps=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(tiny.Task(), tiny.loader())
    assert not [w for w in caught if "logging interval" in str(w.message)]
    assert len(read_events(trainer.log_dir).Scalars("train/loss_step")) == 12


def test_a_test_on_its_own_has_a_row(tiny: Any, tmp_path: Any) -> None:
    tiny.trainer(callbacks=[Dashboard()]).test(tiny.Task(), tiny.loader(), verbose=False)
    _, (row,) = hparams_tab(tmp_path / "run")
    assert "test/accuracy" in {value.name.tag for value in row.metric_values}


@pytest.mark.parametrize("kind", ["none", "csv"])
def test_other_loggers_are_left_alone(tiny: Any, tmp_path: Any, kind: str) -> None:
    logger = CSVLogger(tmp_path) if kind == "csv" else False
    trainer = tiny.trainer(logger=logger, callbacks=[Dashboard()])
    trainer.fit(tiny.Task(), tiny.loader(), tiny.loader())
    trainer.test(tiny.Task(), tiny.loader(), verbose=False)
    assert not list(tmp_path.rglob("events.out*"))
