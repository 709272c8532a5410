"""Diffusion models: the denoiser; the sampler is around it."""

from typing import Any

import torch
from torch import Tensor

from callbacks.export.deliverable import Deliverable, Inputs, Positional, TensorSpec
from lightning_app.deliverables.base import describe
from models import DiffusionModel
from models.nets.unet import SpatialAttention, TimeAndClass

# B batch, C channels, H height, W width


@describe.register
def describe_diffusion(task: DiffusionModel, data: Any) -> list[Deliverable]:
    """Noisy images, times and classes to a prediction: one step; the sampler is around it."""
    shape, classes = task.image_shape, task.num_classes
    inputs = [
        TensorSpec("x", "float32", ("batch", *shape), "noisy images, the clean ones within -1 to 1"),
        TensorSpec("time", "float32", ("batch",), "0, the image, to 1,000, noise alone"),
    ]
    if classes:
        inputs.append(TensorSpec("labels", "int64", ("batch",), f"classes; {classes} is no class"))

    def to_inputs(batch: Any) -> Inputs:
        images, labels = task.to_inside(batch[0], check=False), batch[1]
        t, noise = noise_of(images, task.process.timesteps)
        made = {"x": task.process.add_noise(images, noise, t), "time": (t + 1) * (1000 / task.process.timesteps)}
        return made | ({"labels": labels} if classes else {})

    def score(outputs: list[Tensor], batches: list[Any]) -> float:
        total, count = 0.0, 0
        for output, batch in zip(outputs, batches, strict=True):
            images = task.to_inside(batch[0], check=False)
            t, noise = noise_of(images, task.process.timesteps)
            total += float((output - task.process.target(images, noise, t)).square().mean()) * len(images)
            count += len(images)
        return total / count

    process: dict[str, Any] = {"prediction": task.process.prediction, "timesteps": task.process.timesteps}
    process |= {"noising": task.hparams.get("noising", "cosine"), "label_dropout": task.label_dropout}
    given = Deliverable(
        task="diffusion",
        net=Positional(task.net),
        inputs=inputs,
        outputs=[TensorSpec("prediction", "float32", ("batch", *shape), f"the predicted {task.process.prediction}")],
        facts={"class_names": task.class_names if classes else [], "image_shape": list(shape), "process": process},
        to_inputs=to_inputs,
        metric="denoising loss",
        score=score,
        higher_is_better=False,
        opaque=(TimeAndClass, SpatialAttention),
    )
    return [given]


def noise_of(images: Tensor, timesteps: int) -> tuple[Tensor, Tensor]:
    """Times (B,) and noise for images, the same each time."""
    generator = torch.Generator().manual_seed(len(images))
    t = torch.randint(timesteps, (len(images),), generator=generator)
    return t, torch.randn(images.shape, generator=generator)
