"""The command line: LightningCLI with links from data to net, and guards around what fails silently upstream."""

import importlib
import inspect
import logging
import os
import pkgutil
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import Namespace
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim import Optimizer

from lightning_app.checkpoints import KEYWORDS, describe_differences, newest_checkpoint, read_checkpoint
from lightning_app.errors import explain
from lightning_app.main import ROOT
from lightning_app.report import print_report
from models.nets.pretrained import without_pretrained_weights

# Facts of the data, known once the datamodule is built, and where they go. A net may do without a fact that it takes no
# argument for, but one that ignores the number of classes or channels deserves a warning.
NET, TASK = "model.init_args.net.init_args", "model.init_args"
LINKS = [
    ("num_classes", NET),
    ("in_channels", NET),
    ("image_size", NET),
    ("image_size", TASK),
    ("class_names", TASK),
    ("mean", TASK),
    ("std", TASK),
]
EXPECTED = {"num_classes", "in_channels"}


class AppParser(LightningArgumentParser):
    """Answers a mistake in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a Union this way
            super().error(message, ex)
        if os.environ.get("TRACEBACK") and ex is not None:
            raise ex
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [option for option in parser._option_string_actions if option.startswith("--")]
        line = explain(message, options=options, classes=known_classes())
        self.exit(2, f"{parser.prog.replace(' [options]', '')}: error: {line}\n")


class AppCLI(LightningCLI):
    """Builds data, net, task and Trainer from the configuration and runs one subcommand."""

    def __init__(self, argv: list[str], *, run_subcommand: bool = True) -> None:
        self.requested = argv[0]
        self.run_subcommand = run_subcommand
        self.argv = find_configs(argv)
        self.run_name = run_name(self.argv)
        super().__init__(
            args=self.argv,
            parser_class=AppParser,
            parser_kwargs={
                "prog": "train.py",
                self.requested: {
                    "default_config_files": [str(ROOT / "configs" / "defaults.yaml")],
                    "allow_abbrev": False,
                },
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
            parser.link_arguments(f"data.{fact}", f"{target}.{fact}", apply_on="instantiate")

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
        recorded = (
            read_checkpoint(config.ckpt_path).get("hyper_parameters", {}) if os.path.isfile(config.ckpt_path) else {}
        )
        if not Path(config.ckpt_path).exists() and config.ckpt_path != "hpc" and "://" not in config.ckpt_path:
            raise ValueError(f"--ckpt_path: there is no checkpoint {config.ckpt_path}")
        current = config.model.as_dict() if isinstance(config.model, Namespace) else {}
        if differing := describe_differences(recorded, current):
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

    def instantiate_classes(self) -> None:
        """Instantiate, then check what the links from data to net did."""
        config = self.config[self.requested]
        explicit = {(fact, target): config.get(f"{target}.{fact}") for fact, target in LINKS}
        if config.ckpt_path:
            with without_pretrained_weights():
                super().instantiate_classes()
        else:
            super().instantiate_classes()
        if self.datamodule is not None:
            self.check_links(config, explicit)

    def check_links(self, config: Namespace, explicit: dict[tuple[str, str], Any]) -> None:
        """An explicit value that contradicts the data is an error; a link that reached nothing is a warning."""
        data = type(self.datamodule).__name__
        for (fact, target), given in explicit.items():
            option = f"--{target.replace('.init_args', '')}.{fact}"
            missing = object()
            value = getattr(self.datamodule, fact, missing)
            if value is missing:
                if f"{target}.{fact}" in config and given is None:
                    warnings.warn(f"{data} tells no {fact}, so {option} keeps its default", stacklevel=2)
            elif given is not None and given != value:
                raise ValueError(f"{option} is {given}, but {data} has {fact} {value}; leave the option out")
            elif fact in EXPECTED and f"{target}.{fact}" not in config and target in config:
                warnings.warn(f"the net takes no {fact}; see that its output fits {data}'s {value}", stacklevel=2)

    def _run_subcommand(self, subcommand: str) -> None:
        if self.run_subcommand:
            super()._run_subcommand(subcommand)

    def after_fit(self) -> None:
        config = self.config[self.requested]
        trained = self.trainer.state.finished and not self.trainer.fast_dev_run
        if config.test_after_fit and trained and self.datamodule is not None:
            best = self.trainer.checkpoint_callback.best_model_path if self.trainer.checkpoint_callback else ""
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path="best" if best else None, verbose=False)
        print_report(self.trainer)

    def predict(self, return_predictions: bool | None = None, **kwargs: Any) -> None:
        """Predict without keeping every prediction in memory: the writer callback has them."""
        self.trainer.predict(return_predictions=bool(return_predictions), **kwargs)


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
    except (ValueError, TypeError, OSError, ImportError, MisconfigurationException) as error:
        line = users_mistake(error)
        if line is None or os.environ.get("TRACEBACK"):
            raise
        print(f"train.py {argv[0]}: error: {line}", file=sys.stderr)
        return 2
    return 0


def users_mistake(error: Exception) -> str | None:
    """The message for the user where `error` is his mistake and not a fault of the program, else None.

    His are Lightning's complaints about the configuration, and what our own packages raised with a message for him: the
    innermost frame tells. An error out of a DataLoader worker carries its trace as text.
    """
    if isinstance(error, MisconfigurationException):
        return " ".join(str(error).split())
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    text = str(error)
    if text.startswith("Caught ") and "DataLoader worker" in text:
        trace = [line for line in text.splitlines() if line.strip().startswith("File ")]
        ours = bool(trace) and any(f"{ROOT / package}{os.sep}" in trace[-1] for package in PACKAGES)
        return text.splitlines()[-1].split(": ", 1)[-1] if ours else None
    if isinstance(error, TypeError) and "required" in text and "__init__()" in text:
        return f"{text}: neither the configuration nor the data gives it"
    innermost = Path(frames[-1].filename) if frames else Path()
    ours = any(innermost.is_relative_to(ROOT / package) for package in PACKAGES)
    return " ".join(text.split()) if ours and isinstance(error, ValueError | OSError | ImportError) else None


PACKAGES = ("models", "datamodules", "callbacks", "lightning_app")


def register_classes() -> None:
    """Import our modules, so that their classes answer to their bare names on the command line."""
    for package in ("models", "models.nets", "datamodules", "callbacks"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")


def known_classes() -> dict[str, list[str]]:
    """Names of the classes that a configuration may name, with their arguments."""

    def below(cls: type) -> set[type]:
        return {cls}.union(*(below(child) for child in cls.__subclasses__()))

    nets = {cls for cls in below(nn.Module) if cls.__module__.startswith("models.")}
    others = (cls for base in (LightningModule, LightningDataModule, Callback, Optimizer) for cls in below(base))
    return {cls.__name__: _argument_names(cls) for cls in [*nets, *others]}


def _argument_names(cls: type) -> list[str]:
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            names |= dict.fromkeys(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    return [name for name in names if name not in ("self", "args", "kwargs")]


def run_name(argv: list[str]) -> str:
    """Folder of the run below logs/: the first recipe's file name, or the folder of the run whose config it is."""
    configs = [path for path in _values(argv, "--config", "-c") if "overlay" not in path.parts]
    if not configs:
        return "run"
    if configs[0].name == "config.yaml" and configs[0].resolve().parent.name.startswith("version_"):
        return configs[0].resolve().parents[1].name
    return configs[0].stem


def find_configs(argv: list[str]) -> list[str]:
    """Make `configs/x.yaml` work from any folder, and measure a checkpoint by the configuration of its run.

    A YAML path that does not exist here but does below the repository is taken from there. `validate`, `test` and
    `predict` with a checkpoint file and no --config use the config.yaml that its run saved.
    """
    found = []
    for word in argv:
        option, equals, value = word.rpartition("=")
        path = Path(value)
        if path.suffix in (".yaml", ".yml") and not path.is_absolute() and not path.exists() and (ROOT / path).exists():
            word = f"{option}{equals}{ROOT / path}"
        found.append(word)
    checkpoints = _values(found, "--ckpt_path")
    if argv[0] != "fit" and checkpoints and not _values(found, "--config", "-c"):
        saved = checkpoints[0].resolve().parents[1] / "config.yaml"
        if saved.is_file():
            found[1:1] = ["--config", str(saved)]
    return found


def _values(argv: list[str], *options: str) -> list[Path]:
    pairs = [(word, after) for word, after in zip(argv, [*argv[1:], ""], strict=True)]
    joined = [Path(word.split("=", 1)[1]) for word in argv if word.split("=", 1)[0] in options and "=" in word]
    return joined + [Path(after) for word, after in pairs if word in options]


def quiet_lightning() -> None:
    """Silence what is no news to the user: an advertisement, and a deprecation between Lightning and torch."""
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(
        lambda record: "litlogger" not in record.getMessage()
    )
