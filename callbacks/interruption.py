"""Ctrl-C and SIGTERM end a training run at a step's end, with a checkpoint to go on from."""

import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.environments import LightningEnvironment


class RunInterrupted(SystemExit):
    """Ends the process without a traceback, with status 130 after Ctrl-C and 143 after SIGTERM."""


def resume_command(checkpoint: Path, log_dir: Path | None, *, script: str, cwd: Path) -> str:
    """The command that resumes a run, or without a saved config.yaml just the argument to add.

    Paths below the working directory are written relative to it.
    """

    def shown(path: Path) -> str:
        path = path if path.is_absolute() else cwd / path
        return shlex.quote(str(path.relative_to(cwd) if path.is_relative_to(cwd) else path))

    config = None if log_dir is None else log_dir / "config.yaml"
    if config is None or not (cwd / config).exists():
        return f"add --ckpt_path {shown(checkpoint)}"
    return f"python {shown(Path(script))} fit --config {shown(config)} --ckpt_path {shown(checkpoint)}"


class GracefulInterruption(Callback):
    """On Ctrl-C or SIGTERM saves last.ckpt beside the best checkpoint and prints how to resume.

    The running step is finished first. On Ctrl-C a running validation as well, and a step after it: Lightning
    resumes wrongly from what is saved as an epoch starts, and the best checkpoint is saved just before that.
    SIGTERM, whose sender seldom waits, ends a validation at its next batch (on one rank; a resumed run does not
    make up for it). Several ranks agree at logging steps only, which spares a collective call per step. A
    second signal aborts and saves nothing.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, Any] = {}
        self._pid = 0
        self._active = False
        self._speaks = True

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Go behind all other callbacks: the checkpoint is to hold what they do at a step's end (EMA)."""
        if stage == "fit":
            trainer.callbacks = [c for c in trainer.callbacks if c is not self] + [self]  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen for Ctrl-C, before workers start: they inherit the handler, and a terminal signals them."""
        self._received, self._active, self._speaks = None, True, trainer.is_global_zero
        self._listen(signal.SIGINT)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen for SIGTERM.

        Takes the place of Lightning's handler, registered after on_fit_start, which raises a plain
        exception (status 1) and starts a collective call from within the handler. Lightning restores the
        original when the fit ends.
        """
        self._listen(signal.SIGTERM)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here, if asked to and unless gradients are being accumulated."""
        if trainer.world_size == 1:
            if self._received is None:
                return
        else:
            interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
            if not interval or trainer.global_step % interval:
                return
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch:
            self._stop_if_asked(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop here on SIGTERM; not on several ranks, whose numbers of batches may differ."""
        in_fit = trainer.state.fn == "fit" and not trainer.sanity_checking
        if self._received == signal.SIGTERM and in_fit and trainer.world_size == 1:
            self._stop_if_asked(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop what would follow (a test), if the signal came after the last step."""
        if trainer.strategy.reduce_boolean_decision(self._received is not None, all=False):
            self._say(trainer, "Interrupted after the last step: training is complete, nothing to resume.")
            raise RunInterrupted(self._status(trainer))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._release()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Give the signals back."""
        self._release()

    def _stop_if_asked(self, trainer: pl.Trainer) -> None:
        if not trainer.strategy.reduce_boolean_decision(self._received is not None, all=False):
            return
        log_dir = trainer.log_dir  # a collective call: on every rank
        folder = getattr(trainer.checkpoint_callback, "dirpath", None) or Path(log_dir or ".") / "checkpoints"
        checkpoint = Path(folder) / "last.ckpt"
        trainer.save_checkpoint(checkpoint)
        run = None if log_dir is None else Path(log_dir)
        command = resume_command(checkpoint, run, script=sys.argv[0], cwd=Path.cwd())
        self._say(trainer, f"Interrupted after step {trainer.global_step}: saved {checkpoint}")
        self._say(trainer, f"To resume: {command}")
        raise RunInterrupted(self._status(trainer))

    def _status(self, trainer: pl.Trainer) -> int:
        environment = getattr(trainer.strategy, "cluster_environment", None)
        if trainer.local_rank > 0 and isinstance(environment, LightningEnvironment):
            return 0  # Lightning kills the main process when a rank that it started ends with another status
        return 128 + (self._received or signal.SIGINT)

    @staticmethod
    def _say(trainer: pl.Trainer, text: str) -> None:
        if trainer.is_global_zero:
            print(text, flush=True)

    def _listen(self, signum: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets only the main thread set handlers
        self._pid = os.getpid()
        previous = signal.signal(signum, self._handle)
        if previous != self._handle:
            self._previous[signum] = previous

    def _release(self) -> None:
        self._active = False
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) == self._handle:
                signal.signal(signum, previous)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked worker: the main process ends it
            if signum == signal.SIGTERM:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
            return
        if not self._active:  # after a failed fit Lightning puts back the handlers that it found, this one among them
            signal.signal(signum, self._previous[signum])
            os.kill(os.getpid(), signum)
            return
        if self._received is not None:
            raise RunInterrupted(128 + signum)
        self._received = signum
        if self._speaks:  # os.write: print() may not be re-entered from a signal handler
            os.write(2, b"\nStopping after this step, then saving. Press Ctrl-C again to stop at once.\n")
