"""The command line: LightningCLI with links from data to net, and guards around what fails silently upstream."""

import argparse
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import Namespace
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_app.arguments import find_configs, run_name
from lightning_app.checkpoints import KEYWORDS, describe_differences, newest_checkpoint, read_checkpoint
from lightning_app.devices import has_bfloat16, trains_on_cpu
from lightning_app.errors import explain, passed_through, users_mistake
from lightning_app.main import ROOT
from lightning_app.registry import explicit_value, known_classes, register_classes
from lightning_app.report import best_checkpoint, print_report
from lightning_app.workarounds import drop_weight_averaging, forget_argument, keep_null_in_nested_arguments
from models.nets.pretrained import without_pretrained_weights

# Facts of the data, known once the datamodule is built, and where they go. A net may do without a fact that it takes no
# argument for, but one that ignores the number of classes or channels deserves a warning.
NET, TASK = "model.init_args.net.init_args", "model.init_args"
LINKS = [
    ("num_classes", NET),
    ("in_channels", NET),
    ("image_size", NET),
    ("vocab_size", NET),
    ("max_length", NET),
    ("image_size", TASK),
    ("class_names", TASK),
    ("tokenizer_json", TASK),
    ("bytes_per_token", TASK),
    ("mean", TASK),
    ("std", TASK),
]
EXPECTED = {"num_classes", "in_channels"}


class AppParser(LightningArgumentParser):
    """Answers a mistake in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a Union this way
            raise argparse.ArgumentError(None, message) from ex
        if os.environ.get("TRACEBACK") and ex is not None:
            raise ex
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [option for option in parser._option_string_actions if option.startswith("--")]
        line = explain(message, options=options, classes=known_classes())
        print(f"{parser.prog.replace(' [options]', '')}: error: {line}", file=sys.stderr)
        sys.exit(2)


class AppCLI(LightningCLI):
    """Builds data, net, task and Trainer from the configuration and runs one subcommand."""

    def __init__(self, argv: list[str], *, run_subcommand: bool = True) -> None:
        self.requested = argv[0]
        self.run_subcommand = run_subcommand
        self.argv = find_configs(argv)
        self.run_name = run_name(self.argv)
        keep_null_in_nested_arguments()
        self.facts: dict[str, Any] = {}  # what the links took from the data
        self.recorded: dict[str, Any] = {}  # the hyperparameters of the checkpoint
        super().__init__(
            args=self.argv,
            parser_class=AppParser,
            parser_kwargs={
                "prog": "train.py",
                "allow_abbrev": False,
                self.requested: {"default_config_files": [str(ROOT / "configs" / "defaults.yaml")]},
            },
            # Lightning's own optimizer groups would stand beside the task's
            auto_configure_optimizers=False,
            # a fixed `trainer.logger.version` continues that folder
            save_config_kwargs={"overwrite": True},
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Only the subcommand at hand: building a parser costs half a second each."""
        return {self.requested: LightningCLI.subcommands()[self.requested]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.add_argument(
            "--test_after_fit",
            type=bool,
            default=True,
            help="Test the best checkpoint when training ends (read by fit; saved configurations carry it elsewhere).",
        )
        for fact, target in LINKS:
            parser.link_arguments(f"data.{fact}", f"{target}.{fact}", self.recorder(fact), apply_on="instantiate")

    def recorder(self, fact: str) -> Callable[[Any], Any]:
        """The compute function of a link, which notes the fact as it passes."""

        def data(value: Any) -> Any:
            self.facts[fact] = value
            return value

        return data

    def _parse_ckpt_path(self) -> None:
        """Find the checkpoint before any work, and keep the command line's hyperparameters.

        Lightning's own version of this method lets those in the checkpoint win in silence.
        """
        config = self.config[self.requested]
        if not config.ckpt_path:
            return
        if config.ckpt_path in KEYWORDS:
            root = config.trainer.default_root_dir or "logs"
            config.ckpt_path = str(newest_checkpoint(config.ckpt_path, Path(root) / self.run_name))
        if os.path.isfile(config.ckpt_path):
            self.recorded = read_checkpoint(config.ckpt_path).get("hyper_parameters", {})
        if not Path(config.ckpt_path).exists() and config.ckpt_path != "hpc" and "://" not in config.ckpt_path:
            raise ValueError(f"--ckpt_path: there is no checkpoint {config.ckpt_path}")
        current = config.model.as_dict() if isinstance(config.model, Namespace) else {}
        linked = {f"{target}.{fact}".replace("init_args.", "").removeprefix("model.") for fact, target in LINKS}
        if differing := describe_differences(self.recorded, current, ignore=linked):
            print(f"{config.ckpt_path} was made with other hyperparameters; the command line's are used:")
            print("\n".join(f"  {line}" for line in differing), flush=True)

    def before_instantiate_classes(self) -> None:
        trainer = self.config[self.requested].trainer
        if trainer.logger in (None, True):
            trainer.logger = Namespace(
                class_path="pytorch_lightning.loggers.TensorBoardLogger",
                init_args=Namespace(
                    save_dir=trainer.default_root_dir or "logs", name=self.run_name, default_hp_metric=False
                ),
            )
        if str(trainer.precision).startswith("bf16") and trains_on_cpu(trainer.accelerator):
            asked_for = any(argument.startswith("--trainer.precision") for argument in self.argv)
            if not asked_for and not has_bfloat16("cpu"):
                print(
                    f"This CPU has no bfloat16 instructions: float32 in the place of {trainer.precision}, which "
                    f"would be several times slower (--trainer.precision {trainer.precision} insists on it)",
                    flush=True,
                )
                trainer.precision = "32-true"
        give_tokenizer(self.config[self.requested])
        if self.requested != "fit":
            give_class_names(self.config[self.requested], self.recorded)

    def instantiate_classes(self) -> None:
        """Instantiate, then check what the links from data to net did."""
        config = self.config[self.requested]
        explicit = {(fact, target): explicit_value(config, target, fact) for fact, target in LINKS}
        try:
            with without_pretrained_weights() if config.ckpt_path else contextlib.nullcontext():
                super().instantiate_classes()
        except Exception as error:
            # a net may have failed for want of a fact, or over a contradiction, and say so less plainly
            if not passed_through(error, ROOT / "datamodules"):
                self.check_links(config, explicit)
            raise
        self.check_links(config, explicit)
        for fact, target in LINKS:
            if f"{target}.{fact}" not in config:
                for recorded in (self.model.hparams, self.model._hparams_initial):
                    forget_argument(recorded, f"{target}.{fact}".removeprefix(f"{TASK}."))

    def check_links(self, config: Namespace, explicit: dict[tuple[str, str], Any]) -> None:
        """An explicit value that contradicts the data is an error; a link that reached nothing is a warning.

        Raises:
            ValueError: On a contradiction, also between the classes of data and checkpoint, or where neither the data
                nor the configuration gives a needed fact.
        """
        if not config.data:
            return
        data = config.data.class_path.rsplit(".", 1)[-1]
        names, recorded = self.facts.get("class_names"), self.recorded.get("class_names")
        if names is not None and recorded is not None and list(names) != list(recorded):
            raise ValueError(
                f"{config.ckpt_path} knows the classes {describe(recorded)}, and {data} has {describe(names)}: a label "
                "would mean another class (to start from its weights: --model.net.pretrained FILE in the place of "
                "--ckpt_path)"
            )
        for (fact, target), given in explicit.items():
            accepted = target in config and f"{target}.{fact}" in config
            option = f"--{target.replace('.init_args', '')}.{fact}"
            if fact not in self.facts:
                if accepted and given is None:
                    raise ValueError(f"{data} tells no {fact}: give it the attribute, or set {option}")
            elif given is not None and given != self.facts[fact]:
                raise ValueError(f"{option} is {given}, but {data} has {fact} {self.facts[fact]}; leave the option out")
            elif fact in EXPECTED and target in config and not accepted:
                warnings.warn(f"the net takes no {fact}; see that it fits {data}'s {self.facts[fact]}", stacklevel=2)

    def after_instantiate_classes(self) -> None:
        if self.requested != "fit":
            drop_weight_averaging(self.trainer)

    def _run_subcommand(self, subcommand: str) -> None:
        if self.run_subcommand:
            super()._run_subcommand(subcommand)

    def after_fit(self) -> None:
        config = self.config[self.requested]
        if config.test_after_fit and self.trainer.state.finished and self.datamodule is not None:
            best = "best" if best_checkpoint(self.trainer) else None
            drop_weight_averaging(self.trainer)
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False)
        print_report(self.trainer)

    def predict(self, return_predictions: bool | None = None, **kwargs: Any) -> None:
        """Predict without keeping every prediction in memory: the writer callback has them."""
        self.trainer.predict(return_predictions=bool(return_predictions), **kwargs)


def describe(names: Sequence[str]) -> str:
    """Class names, the first few of many."""
    return f"{len(names)}, " + ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")


def give_tokenizer(config: Namespace) -> None:
    """Texts are tokenised as the encoder was trained to read them, unless a tokenizer is given."""
    if not config.data or "tokenizer" not in config.data.get("init_args", {}):
        return
    if config.data.init_args.tokenizer is None:
        config.data.init_args.tokenizer = config.get(f"{NET}.model_name")


def give_class_names(config: Namespace, recorded: dict[str, Any]) -> None:
    """A checkpoint knows its classes: what predicts with it need not have the training data."""
    options = config.data.get("init_args", {}) if config.data else {}
    if "class_names" in options and options["class_names"] is None:
        options["class_names"] = recorded.get("class_names")


def build(argv: list[str]) -> AppCLI:
    """Data, task and Trainer of a command line (`.datamodule`, `.model`, `.trainer`), built and not run."""
    register_classes()
    return AppCLI(argv, run_subcommand=False)


def run(argv: list[str]) -> int:
    """Run a subcommand; a user's mistake is told in one line. Returns the exit code."""
    register_classes()
    quiet_lightning()
    try:
        AppCLI(argv)
    except (ValueError, RuntimeError, OSError, ImportError, FloatingPointError, MisconfigurationException) as error:
        line = users_mistake(error)
        if line is None or os.environ.get("TRACEBACK"):
            raise
        print(f"train.py {argv[0]}: error: {line}", file=sys.stderr)
        return 2
    finally:
        # gloo's threads, left running when Python exits, now and then abort the process after a run that went well
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return 0


def quiet_lightning() -> None:
    """Silence what is no news to the user: an advertisement, and a deprecation between Lightning and torch."""
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter is intended to run from within Python")
    warnings.filterwarnings("ignore", message=".*does not have many workers", module="pytorch_lightning.*")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(
        lambda record: "litlogger" not in record.getMessage()
    )
