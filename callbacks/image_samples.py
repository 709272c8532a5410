"""Images that a diffusion model makes, on the dashboard after validations."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from callbacks.samples import Samples


class ImageSamples(Samples):
    """Makes a grid of images after a validation and writes it to the Images tab as `val/samples`.

    From the same noise each time, so that the grids of a run show its progress; a column a class, if the net knows
    classes. See `Samples` for when.

    Args:
        columns: Images in a row, and classes shown.
        rows: Rows of the grid.
        steps: Steps of the sampler.
        guidance: Classifier-free guidance; 1 is none.

    Raises:
        ValueError: An option is out of range.
    """

    NEEDS = "generate_images"

    def __init__(self, *, columns: int = 10, rows: int = 4, steps: int = 20, guidance: float = 1.0) -> None:
        super().__init__()
        if min(columns, rows, steps) < 1:
            raise ValueError(f"columns ({columns}), rows ({rows}) and steps ({steps}) must be at least 1")
        self.columns, self.rows, self.steps, self.guidance = columns, rows, steps, guidance

    def show(self, task: Any, boards: list[Any], step: int) -> None:
        """Write the grid."""
        count, classes = self.columns * self.rows, task.num_classes
        columns = min(self.columns, classes) if classes else self.columns
        labels = [index % columns for index in range(columns * self.rows)] if classes else None
        guidance = self.guidance if classes else 1.0
        images = task.generate_images(labels, num=count, steps=self.steps, guidance=guidance)
        for board in boards:
            board.add_image("val/samples", make_picture(images, columns), step)


def make_picture(images: Tensor, columns: int, least: int = 48) -> Tensor:
    """Images (N, C, H, W) in [0, 1] as a grid, (3, height, width); small ones enlarged to `least` pixels, no blur."""
    from torchvision.utils import make_grid

    factor = max(1, -(-least // images.shape[-1]))
    enlarged = F.interpolate(images.float(), scale_factor=factor, mode="nearest") if factor > 1 else images.float()
    return make_grid(torch.nan_to_num(enlarged.cpu()), nrow=columns, padding=2, pad_value=1.0)
