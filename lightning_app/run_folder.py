"""A run's folder, logs/RECIPE/version_N: what its configuration tells of the data."""

import logging
from pathlib import Path
from typing import Any

from lightning_app.cli import build, quiet_lightning


def folder_of(checkpoint: str | Path) -> Path:
    """The folder of the run that left a checkpoint."""
    return Path(checkpoint).resolve().parents[1]


def datamodule_of(checkpoint: str | Path) -> Any:
    """The datamodule that a checkpoint's run was configured with, set up.

    Raises:
        ValueError: The configuration is not where the run left it.
    """
    config = folder_of(checkpoint) / "config.yaml"
    if not config.exists():
        raise ValueError(f"the data's configuration is read from {config}, which is not there")
    quiet_lightning()
    lightning = logging.getLogger("pytorch_lightning")
    level = lightning.level
    lightning.setLevel(logging.WARNING)  # a Trainer that never runs has nothing to tell of the machine
    try:
        argv = ["validate", "--config", str(config), "--seed_everything=false", "--trainer.logger=false"]
        argv += ["--trainer.accelerator=cpu", "--trainer.strategy=auto", "--trainer.devices=1", "--trainer.num_nodes=1"]
        data: Any = build(argv).datamodule
        data.setup("fit")
    finally:
        lightning.setLevel(level)
    return data
