"""What is written, when, and that it reads as the model wrote it."""

from typing import Any

import pytest

from callbacks.text_samples import TextSamples


def task(tiny: Any) -> Any:
    class Writer(tiny.Task):
        def generate_texts(self, prompts: list[str], **options: Any) -> list[str]:
            self.asked = options
            return [f"{prompt} <b> & {self.global_step}\n\tx" for prompt in prompts]

    return Writer()


def texts(read_events: Any, trainer: Any) -> dict[int, str]:
    events = read_events(trainer.log_dir)
    found = events.Tensors("val/samples/text_summary")
    return {event.step: event.tensor_proto.string_val[0].decode() for event in found}


def test_samples_of_the_last_step_are_always_shown(tiny: Any, read_events: Any) -> None:
    writer = task(tiny)
    samples = TextSamples(prompts=["def ", "a<b"], max_new_tokens=7, temperature=0.5)
    samples.BUDGET = 0.0
    trainer = tiny.trainer(callbacks=[samples], max_epochs=3)
    trainer.fit(writer, tiny.loader(), tiny.loader())
    shown = texts(read_events, trainer)
    assert max(shown) == 9
    assert writer.asked == {"max_new_tokens": 7, "temperature": 0.5, "seed": 0}
    from html import unescape

    from tensorboard.plugin_util import markdown_to_safe_html

    page = unescape(markdown_to_safe_html(shown[9]))
    for prompt in ("def ", "a<b"):
        assert f"<code>{prompt}{prompt} <b> & 9\n    x" in page


def test_validate_shows_samples_and_the_sanity_check_does_not(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(callbacks=[TextSamples()])
    trainer.validate(task(tiny), tiny.loader(), verbose=False)
    assert list(texts(read_events, trainer)) == [0]


def test_other_tasks_are_left_alone(tiny: Any) -> None:
    tiny.trainer(callbacks=[TextSamples()]).fit(tiny.Task(), tiny.loader(), tiny.loader())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": []}, "prompts must have at least one text"),
        ({"max_new_tokens": 0}, r"max_new_tokens \(0\) must be at least 1"),
        ({"temperature": -1.0}, r"temperature \(-1.0\) must not be negative"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextSamples(**options)
