"""What the terminal shows when a run ends: metrics, where things lie, what to do next."""

import os
import shlex
from pathlib import Path

from pytorch_lightning import Trainer


def print_report(trainer: Trainer) -> None:
    """Print the test metrics (or the last validation's), the checkpoint, the saved configuration and next commands."""
    folder = trainer.log_dir  # a collective call: on every rank
    if not trainer.is_global_zero:
        return
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    chosen = {n: v for n, v in metrics.items() if n.startswith("test/")} or {
        n: v for n, v in metrics.items() if n.startswith("val/")
    }
    rows = [(name, f"{value:.4f}") for name, value in sorted(chosen.items())]
    checkpoint = best_checkpoint(trainer)
    if checkpoint:
        rows.append(("best checkpoint", relative(checkpoint)))
    if folder and (Path(folder) / "config.yaml").exists():
        rows.append(("configuration", relative(Path(folder) / "config.yaml")))
        rows.append(("dashboard", f"tensorboard --logdir {relative(Path(folder).parents[1])}"))
    if checkpoint:
        makers = {"stream_texts": "scripts/generate.py --ckpt", "stream_images": "scripts/sample.py --ckpt"}
        fitting = (command for method, command in makers.items() if hasattr(trainer.lightning_module, method))
        command = next(fitting, "scripts/train.py predict --ckpt_path")
        rows.append(("next", f"python {command} {relative(checkpoint)}"))
    width = max((len(name) for name, _ in rows), default=0)
    print("\n" + "\n".join(f"  {name:{width}}  {value}" for name, value in rows), flush=True)


def best_checkpoint(trainer: Trainer) -> str:
    """Path of the best checkpoint of the run, empty where none was saved."""
    return getattr(trainer.checkpoint_callback, "best_model_path", "")


def relative(path: str | Path) -> str:
    """The path from the working directory where it lies below it, quoted if the shell needs it."""
    path = os.path.relpath(path) if Path(path).resolve().is_relative_to(Path.cwd()) else str(path)
    return shlex.quote(path)
