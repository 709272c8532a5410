"""Text that a language model writes, on the dashboard after validations."""

import time
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger


class TextSamples(Callback):
    """Continues prompts after a validation and writes them to the Text tab as `val/samples`.

    Takes at most 5 % of a fit's time, but for the last validation, which is always shown. The same random numbers each
    time, so that samples of different steps differ by what was learned.

    Args:
        prompts: What to continue.
        max_new_tokens: Tokens to make for each.
        temperature: Below 1 is more cautious.

    Raises:
        ValueError: No prompt, or an option is out of range.
    """

    BUDGET = 0.05

    def __init__(
        self, *, prompts: Sequence[str] = ("\n",), max_new_tokens: int = 200, temperature: float = 0.8
    ) -> None:
        if not prompts:
            raise ValueError("prompts must have at least one text")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens ({max_new_tokens}) must be at least 1")
        if temperature < 0:
            raise ValueError(f"temperature ({temperature}) must not be negative")
        self.prompts, self.max_new_tokens, self.temperature = list(prompts), max_new_tokens, temperature
        self._start = self._spent = self._cost = 0.0
        self._shown_at = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._start, self._spent, self._shown_at = time.perf_counter(), 0.0, -1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write samples, if there is time for them."""
        elapsed = time.perf_counter() - self._start
        due = trainer.state.fn != "fit" or self._spent + self._cost <= self.BUDGET * elapsed
        if not trainer.sanity_checking and due:
            self._show(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show what the finished model writes."""
        if self._shown_at != trainer.global_step:
            self._show(trainer, pl_module)

    def _show(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        task: Any = pl_module
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not trainer.is_global_zero or not boards or not hasattr(task, "generate_texts"):
            return
        start = time.perf_counter()
        options = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": 0}
        texts = task.generate_texts(self.prompts, **options)
        # four spaces make it code, which Markdown leaves as it is
        shown = "\n\n---\n\n".join(
            "\n".join(f"    {line}" for line in f"{prompt}{text}".expandtabs(4).splitlines())
            for prompt, text in zip(self.prompts, texts, strict=True)
        )
        for board in boards:
            board.experiment.add_text("val/samples", shown, trainer.global_step)
        self._shown_at = trainer.global_step
        self._cost = time.perf_counter() - start
        self._spent += self._cost
