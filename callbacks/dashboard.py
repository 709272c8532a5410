"""A readable TensorBoard: train and val in one chart, a curve for short runs, a filled HParams tab."""

import math
import os
import re
import warnings
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger

Layout = dict[str, dict[str, list[Any]]]
Scalar = bool | int | float | str

# Charts of what isn't measured on both splits: title -> pattern of its tags.
TRAINING_CHARTS = {
    "learning rate": r"^lr-",
    "gradient norm": r"^train/gradient_norm$",
    "samples per second": r"^train/samples_per_second$",
}


def custom_scalars_layout(names: Iterable[str]) -> Layout:
    """A TensorBoard layout with train and val of a metric in one chart, from the `split/metric` names so far.

    Charts select their curves by pattern, so a curve that is logged later (an epoch's training mean) joins
    its chart.
    """
    metrics = sorted({name.split("/", 1)[1] for name in names if name.startswith("val/")})
    if not metrics:  # a run without validation
        found = (re.fullmatch(r"train/(.+?)(_step|_epoch)?", name) for name in names)
        metrics = sorted({m[1] for m in found if m} - {"gradient_norm", "samples_per_second"})
    charts = {
        metric: ["Multiline", [f"^train/{re.escape(metric)}(_step|_epoch)?$", f"^val/{re.escape(metric)}$"]]
        for metric in metrics
    }
    return {"train and val": charts, "training": {k: ["Multiline", [v]] for k, v in TRAINING_CHARTS.items()}}


def logging_interval(requested: int, *, steps_per_epoch: float, epochs: float) -> int:
    """The requested interval, or less where an epoch would get no point or a run fewer than ten."""
    at_most = min(steps_per_epoch, steps_per_epoch * epochs / 10)
    return requested if at_most >= requested else max(1, int(at_most))


def flatten_hyperparameters(value: Any, name: str) -> dict[str, Scalar]:
    """Nested options as `{"model.net.dropout": 0.3}`, the command line's spelling.

    A class is written as its bare name, its `init_args` as options of its own. What is no number or text is
    left out.
    """
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        flat: dict[str, Scalar] = {}
        for key, item in value.items():
            if key == "class_path":
                flat[name] = str(item).rsplit(".", 1)[-1]
            elif not str(key).startswith("_"):  # Lightning's own notes, such as _class_path
                flat |= flatten_hyperparameters(item, name if key == "init_args" else f"{name}.{key}")
        return flat
    return {name: value} if isinstance(value, bool | int | float | str) else {}


def write_session(logger: TensorBoardLogger, hyperparameters: dict[str, Scalar], *, start: bool) -> None:
    """Write the start or the end of an HParams session, the row of one run.

    Only the session is written, no HParams "experiment": TensorBoard shows the columns of the first
    experiment that it finds for all runs, so one recipe's would hide the other's. Without any it offers
    every hyperparameter and every scalar of every run.
    """
    from torch.utils.tensorboard.summary import hparams

    _, session_start, session_end = hparams(hyperparameters, {})
    logger.experiment._get_file_writer().add_summary(session_start if start else session_end)


class Dashboard(Callback):
    """Lays out the Custom Scalars tab, fills the HParams tab and gives short runs a curve.

    HParams shows the last value of each scalar: the last `val/*`, the `test/*` of a test that follows the
    fit, and `best/val_<metric>`, the score of the best checkpoint, written at the end of the fit under its
    own name so that no curve of `val/*` gets a stray point.
    """

    def __init__(self) -> None:
        self._sessions: set[str] = set()
        self._layouts: set[str] = set()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Open the run's row in the HParams tab, once: TensorBoard keeps the first that a folder holds."""
        if stage == "fit":
            # on_train_start lowers the interval; Lightning warns before that hook.
            warnings.filterwarnings("ignore", r"The number of training batches .* is smaller than the logging interval")
        if stage == "predict" or not trainer.is_global_zero:
            return
        for logger in _tensorboards(trainer):
            if logger.log_dir not in self._sessions:
                self._sessions.add(logger.log_dir)
                write_session(logger, _hyperparameters(trainer, pl_module), start=True)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lower the logging interval where it would leave no curve."""
        requested: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not trainer.loggers or not requested:
            return
        steps_per_epoch = max(1.0, trainer.num_training_batches / trainer.accumulate_grad_batches)
        epochs = math.inf if trainer.max_epochs in (None, -1) else float(trainer.max_epochs or 0)
        if trainer.max_steps >= 0:
            epochs = min(epochs, trainer.max_steps / steps_per_epoch)
            steps_per_epoch = min(steps_per_epoch, trainer.max_steps)
        trainer.log_every_n_steps = logging_interval(  # type: ignore[attr-defined]
            requested, steps_per_epoch=steps_per_epoch, epochs=epochs
        )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lay out the charts, once the names are known."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._lay_out(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the best score and close the run's row."""
        self._lay_out(trainer)
        checkpoint = trainer.checkpoint_callback
        score, monitor = (getattr(checkpoint, name, None) for name in ("best_model_score", "monitor"))
        for logger in _tensorboards(trainer) if trainer.is_global_zero else []:
            if score is not None and monitor is not None:
                logger.experiment.add_scalar(f"best/{monitor.replace('/', '_')}", float(score), trainer.global_step)
            write_session(logger, {}, start=False)

    def _lay_out(self, trainer: pl.Trainer) -> None:
        for logger in _tensorboards(trainer) if trainer.is_global_zero else []:
            if logger.log_dir not in self._layouts:
                self._layouts.add(logger.log_dir)
                logger.experiment.add_custom_scalars(custom_scalars_layout(trainer.callback_metrics))


def _tensorboards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def _hyperparameters(trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Scalar]:
    datamodule: Any = getattr(trainer, "datamodule", None)
    options: dict[str, Any] = {
        "model": {"class_path": type(pl_module).__name__, "init_args": pl_module.hparams},
        "trainer": {"max_epochs": trainer.max_epochs, "precision": str(trainer.precision)},
    }
    if seed := os.environ.get("PL_GLOBAL_SEED"):
        options["seed_everything"] = int(seed)
    if datamodule is not None:
        options["data"] = {"class_path": type(datamodule).__name__, "init_args": datamodule.hparams}
    return {key: v for name, option in options.items() for key, v in flatten_hyperparameters(option, name).items()}
