"""Artifacts for other runtimes, made and checked when training ends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from callbacks.export.formats import check_formats

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "export.py"


class ArtifactExport(Callback):
    """Exports the best checkpoint after `fit`, into the run's folder `exported`.

    By scripts/export.py in a process of its own, so that the run stays as it was: mode, gradients, random state.

    Args:
        formats: Names of formats, see docs/export.md.

    Raises:
        ValueError: A format is unknown, or a package for it is missing. At the end of `fit`: an artifact is wrong.
    """

    def __init__(self, *, formats: tuple[str, ...] = ("onnx", "torchscript")) -> None:
        self.formats = list(formats)
        check_formats(self.formats)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a run that will leave nothing to export, before its first step."""
        if stage == "fit" and not trainer.fast_dev_run and trainer.checkpoint_callback is None:  # type: ignore[attr-defined]
            raise ValueError("ArtifactExport exports the best checkpoint, and this run keeps none")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        keeper: Any = trainer.checkpoint_callback
        best = getattr(keeper, "best_model_path", "") or getattr(keeper, "last_model_path", "")
        if not trainer.is_global_zero or not best:
            return
        out = Path(best).parents[1] / "exported"
        argv = [sys.executable, str(SCRIPT), "--ckpt", best, "--out", str(out), "--formats", *self.formats]
        if subprocess.run(argv).returncode:
            raise ValueError(f"the export of {best} failed, as told above; {out} has what was written")
