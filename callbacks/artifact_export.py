"""Artifacts for other runtimes, made and checked when training ends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from callbacks.export.formats import check_formats
from callbacks.quantization.backends import check_quantization
from callbacks.quantization.settings import Method, Quantization

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "export.py"


class ArtifactExport(Callback):
    """Exports the best checkpoint after `fit`, into the run's folder `exported`.

    By scripts/export.py in a process of its own, so that the run stays as it was: mode, gradients, random state.

    Args:
        formats: Names of formats, see docs/export.md.
        quantize: Each format in int8 too: dynamic, static or weight_only, see docs/quantization.md.
        max_drop: Score that int8 may lose.
        report_only: Go on where int8 is worse or slower than is allowed.

    Raises:
        ValueError: A format is unknown, can't be had in int8, or a package for it is missing. At the end of `fit`: an
            artifact is wrong.
    """

    def __init__(
        self,
        *,
        formats: tuple[str, ...] = ("onnx", "torchscript"),
        quantize: Method | None = None,
        max_drop: float = 0.01,
        report_only: bool = False,
    ) -> None:
        self.argv = ["--formats", *formats]
        check_formats(list(formats))
        if quantize is not None:
            check_quantization(formats, Quantization(quantize, max_drop=max_drop))
            self.argv += ["--quantize", quantize, "--max_drop", str(max_drop)]
        if report_only:
            self.argv.append("--report_only")

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
        argv = [sys.executable, str(SCRIPT), "--ckpt", best, "--out", str(out), *self.argv]
        if subprocess.run(argv).returncode:
            raise ValueError(f"the export of {best} failed, as told above; {out} has what was written")
