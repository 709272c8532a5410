"""Grids of samples: what is drawn, when, and with which weights."""

from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging
from torch import Tensor

from callbacks.image_samples import ImageSamples, make_picture


def task(tiny: Any, classes: int) -> Any:
    class Painter(tiny.Task):
        num_classes = classes

        def generate_images(self, labels: list[int] | None, **options: Any) -> Tensor:
            self.asked = labels, options
            self.weights = [parameter.detach().clone() for parameter in self.parameters()]
            return torch.rand(options["num"], 1, 8, 8)

    return Painter()


def test_a_column_a_class_from_the_same_noise(tiny: Any, read_events: Any) -> None:
    painter, samples = task(tiny, 3), ImageSamples(columns=10, rows=2, steps=7, guidance=2.0)
    samples.BUDGET = 0.0
    trainer = tiny.trainer(callbacks=[samples])
    trainer.fit(painter, tiny.loader(), tiny.loader())
    assert painter.asked[0] == [0, 1, 2, 0, 1, 2]
    assert painter.asked[1] == {"num": 20, "steps": 7, "guidance": 2.0}
    (image,) = read_events(trainer.log_dir).Images("val/samples")[-1:]
    assert image.step == 3


def test_without_classes_there_are_no_labels_and_no_guidance(tiny: Any) -> None:
    painter = task(tiny, 0)
    tiny.trainer(callbacks=[ImageSamples(guidance=2.0)]).validate(painter, tiny.loader(), verbose=False)
    assert painter.asked[0] is None
    assert painter.asked[1]["guidance"] == 1.0


def test_averaged_weights_make_the_samples_of_a_validation(tiny: Any) -> None:
    painter, samples = task(tiny, 2), ImageSamples()
    samples.BUDGET = 1e9
    seen: list[bool] = []

    class Watch(EMAWeightAveraging):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking and self._average_model is not None:
                now = [parameter.detach().clone() for parameter in pl_module.parameters()]
                seen.append(all(map(torch.equal, now, painter.weights)))
            super().on_validation_epoch_end(trainer, pl_module)

    trainer = tiny.trainer(callbacks=[Watch(decay=0.9), samples], max_epochs=2)
    trainer.fit(painter, tiny.loader(), tiny.loader())
    assert seen == [True, True]


@pytest.mark.parametrize("average_first", [True, False])
def test_the_end_shows_the_average_wherever_its_callback_stands(tiny: Any, average_first: bool) -> None:
    painter, samples = task(tiny, 2), ImageSamples()
    samples.BUDGET = -1.0  # the end alone
    callbacks = [EMAWeightAveraging(decay=0.9), samples]
    trainer = tiny.trainer(callbacks=callbacks if average_first else callbacks[::-1], max_epochs=2)
    trainer.fit(painter, tiny.loader(), tiny.loader())
    assert all(map(torch.equal, painter.weights, painter.parameters()))  # which are the averaged ones now


def test_small_images_are_enlarged_without_blur() -> None:
    images = torch.zeros(3, 1, 8, 8)
    images[1, 0, 0, 0] = 1.0
    picture = make_picture(images, columns=2)
    assert picture.shape == (3, 2 * 50 + 2, 2 * 50 + 2)
    cell = picture[0, 2:50, 52:100]
    assert bool((cell[:6, :6] == 1).all())
    assert float(cell.sum()) == 36
    assert make_picture(torch.full((1, 3, 64, 64), torch.nan), 1).isfinite().all()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"columns \(0\), rows"):
        ImageSamples(columns=0)
