"""Image classifiers."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from callbacks.export.deliverable import Deliverable, FromPixels, Inputs, Positional, TensorSpec
from lightning_app.deliverables.base import accuracy, describe
from models import VisionClassifier

# B batch, C channels, H height, W width, K classes


@describe.register
def describe_vision(task: VisionClassifier, data: Any) -> list[Deliverable]:
    """Normalised images to logits."""
    example: Any = task.example_input_array
    _, channels, height, width = example.shape
    task.test_time_augmentation = "none"  # a file sees an image once
    net = task.net.to(memory_format=torch.contiguous_format)
    given = Deliverable(
        task="vision",
        net=Positional(net),
        inputs=[TensorSpec("images", "float32", ("batch", channels, height, width), "(pixels / 255 - mean) / std")],
        outputs=[TensorSpec("logits", "float32", ("batch", len(task.class_names)), "before the softmax")],
        facts={"class_names": task.class_names, "image_size": height, "mean": task.mean, "std": task.std},
        to_inputs=lambda batch: {"images": batch[0].contiguous()},
        metric="accuracy",
        score=lambda outputs, batches: accuracy(outputs, [batch[1] for batch in batches]),
        raw_samples=partial(files, data),
    )
    given.with_preprocessing = partial(from_pixels_to_probabilities, task, given)
    return [given]


def from_pixels_to_probabilities(task: VisionClassifier, given: Deliverable) -> Deliverable:
    """A vision classifier with normalisation and softmax inside."""
    (images,), mean, std = given.inputs, torch.tensor(task.mean).view(-1, 1, 1), torch.tensor(task.std).view(-1, 1, 1)

    def to_inputs(batch: Any) -> Inputs:
        return {"pixels": ((batch[0] * std + mean) * 255).round().clamp(0, 255).to(torch.uint8).contiguous()}

    return replace(
        given,
        net=Positional(FromPixels(task.net, list(task.mean), list(task.std))),
        inputs=[TensorSpec("pixels", "uint8", images.shape, "0 to 255")],
        outputs=[TensorSpec("probabilities", "float32", ("batch", len(task.class_names)), "of the classes")],
        to_inputs=to_inputs,
    )


def files(data: Any, folder: Path, most: int) -> tuple[list[str], Any]:
    """Images of the validation split as files, and as a normalised batch."""
    dataset = data.datasets["val"]
    indices = list(range(min(most, len(dataset))))
    if hasattr(dataset, "paths"):
        return [dataset.paths[index] for index in indices], data.collate_fn([dataset[index] for index in indices])[0]
    from torchvision.utils import save_image

    paths = [str(folder / f"{index}.png") for index in indices]
    for path, index in zip(paths, indices, strict=True):
        save_image(dataset.images[index] / 255, path)
    return paths, dataset.__getitems__(indices)[0]
