"""Text that a language model writes, on the dashboard after validations."""

from collections.abc import Sequence
from typing import Any

from callbacks.samples import Samples


class TextSamples(Samples):
    """Continues prompts after a validation and writes them to the Text tab as `val/samples`.

    The same random numbers each time, so that samples of different steps differ by what was learned. See `Samples` for
    when.

    Args:
        prompts: What to continue.
        max_new_tokens: Tokens to make for each.
        temperature: Below 1 is more cautious.

    Raises:
        ValueError: No prompt, or an option is out of range.
    """

    NEEDS = "generate_texts"

    def __init__(
        self, *, prompts: Sequence[str] = ("\n",), max_new_tokens: int = 200, temperature: float = 0.8
    ) -> None:
        super().__init__()
        if not prompts:
            raise ValueError("prompts must have at least one text")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens ({max_new_tokens}) must be at least 1")
        if temperature < 0:
            raise ValueError(f"temperature ({temperature}) must not be negative")
        self.prompts, self.max_new_tokens, self.temperature = list(prompts), max_new_tokens, temperature

    def show(self, task: Any, boards: list[Any], step: int) -> None:
        """Write the texts."""
        options = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": 0}
        texts = task.generate_texts(self.prompts, **options)
        # four spaces make it code, which Markdown leaves as it is
        shown = "\n\n---\n\n".join(
            "\n".join(f"    {line}" for line in f"{prompt}{text}".expandtabs(4).splitlines())
            for prompt, text in zip(self.prompts, texts, strict=True)
        )
        for board in boards:
            board.add_text("val/samples", shown, step)
