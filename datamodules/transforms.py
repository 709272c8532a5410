"""Image transforms on whole uint8 batches, with different random draws for every image of the batch.

Torchvision's random transforms draw once per call, so a batch would get one crop; called per image they cost
time that a small net doesn't have. Here crop, flip and erasing are vectorised: the functions take the draws
as arguments and are deterministic; ImageTransform draws from torch's global generator, which DataLoader seeds
per worker and per epoch.

Shapes: B batch, C channels, H height, W width.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

Augment = Literal["none", "crop", "crop_flip", "trivial", "rand"]
Fill = Literal["zero", "reflect"]


def to_channels(images: Tensor, channels: int) -> Tensor:
    """Grey (B, 1, H, W) to RGB by repetition, RGB to grey by luma; unchanged where the channels match."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    return F.rgb_to_grayscale(images)


def shift_images(images: Tensor, down: Tensor, right: Tensor, *, fill: Fill) -> Tensor:
    """Moves each image (B, C, H, W) by its own whole number of pixels: the pad-and-crop augmentation.

    Args:
        images: Any dtype.
        down: Rows, (B,) int64; negative moves up. Less than H in size.
        right: Columns, (B,) int64; negative moves left. Less than W in size.
        fill: What comes in from outside: zeros, or the image mirrored at its border.
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height) - down[:, None]  # (B, H): the source row of each row
    columns = torch.arange(width) - right[:, None]  # (B, W)
    source_rows, source_columns = _mirror(rows, height), _mirror(columns, width)
    batch = torch.arange(len(images))[:, None, None]
    moved = images[batch, :, source_rows[:, :, None], source_columns[:, None, :]]  # (B, H, W, C)
    moved = moved.permute(0, 3, 1, 2)
    if fill == "zero":
        outside = (rows != source_rows)[:, :, None] | (columns != source_columns)[:, None, :]  # (B, H, W)
        moved = moved.masked_fill(outside[:, None], 0)
    return moved.contiguous()


def _mirror(index: Tensor, size: int) -> Tensor:
    last = size - 1
    return last - (last - index.abs()).abs()


def flip_images(images: Tensor, flips: Tensor) -> Tensor:
    """Mirrors the images (B, C, H, W) where flips (B,) bool is set, left to right."""
    return torch.where(flips[:, None, None, None], images.flip(-1), images)


def erase_boxes(images: Tensor, boxes: Tensor) -> Tensor:
    """Zeroes one box per image (B, C, H, W); boxes (B, 4) int64 are top, left, height, width."""
    top, left, height, width = boxes[:, :, None].unbind(1)  # each (B, 1)
    rows, columns = torch.arange(images.shape[-2]), torch.arange(images.shape[-1])
    in_rows = (rows >= top) & (rows < top + height)  # (B, H)
    in_columns = (columns >= left) & (columns < left + width)  # (B, W)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0)


def draw_boxes(count: int, height: int, width: int, probability: float) -> Tensor:
    """Random boxes (count, 4) for erase_boxes, after Random Erasing (arXiv 1708.04896).

    2 % to 33 % of the area, sides in the ratio 0.3 to 3.3, cut to the image's; else (1 - probability) 0 x 0.
    """
    area = torch.empty(count).uniform_(0.02, 0.33) * height * width
    ratio = torch.empty(count).uniform_(math.log(0.3), math.log(3.3)).exp()
    tall = (area * ratio).sqrt().round().clamp(1, height).long()
    wide = (area / ratio).sqrt().round().clamp(1, width).long()
    top = (torch.rand(count) * (height - tall + 1)).long()
    left = (torch.rand(count) * (width - wide + 1)).long()
    chosen = (torch.rand(count) < probability)[:, None]
    return torch.stack([top, left, tall, wide], dim=1) * chosen


class ImageTransform:
    """A uint8 batch (B, 1 or 3, any H, any W) to a normalised float batch (B, channels, size, size).

    Args:
        size: Height and width of the result; the stored images are resized where they differ.
        channels: 1 or 3.
        mean: Per channel, of images in 0 to 1.
        std: Per channel.
        shift: Largest random shift in pixels, each way.
        fill: What a shift brings in.
        flip: Mirror each image with probability 0.5.
        policy: A random transform of one uint8 image (C, H, W), applied to each image on its own.
        erasing: Probability of Random Erasing, by the mean colour.
    """

    def __init__(
        self,
        *,
        size: int,
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        shift: int = 0,
        fill: Fill = "zero",
        flip: bool = False,
        policy: Callable[[Tensor], Tensor] | None = None,
        erasing: float = 0.0,
    ) -> None:
        self.size, self.channels = size, channels
        self.shift, self.fill, self.flip = shift, fill, flip
        self.policy, self.erasing = policy, erasing
        # (x / 255 - mean) / std as one product and one sum
        self.scale = 1 / (255 * torch.tensor(std)).view(-1, 1, 1)
        self.offset = -(torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Transforms a batch; see the class."""
        count = len(images)
        images = to_channels(images, self.channels)
        if images.shape[-2:] != (self.size, self.size):
            images = F.resize(images, [self.size, self.size], antialias=True)
        if self.shift:
            down, right = torch.randint(-self.shift, self.shift + 1, (2, count))
            images = shift_images(images, down, right, fill=self.fill)
        if self.flip:
            images = flip_images(images, torch.rand(count) < 0.5)
        if self.policy is not None:
            images = torch.stack([self.policy(image) for image in images])
        images = images.float().mul_(self.scale).add_(self.offset)
        if self.erasing:
            images = erase_boxes(images, draw_boxes(count, self.size, self.size, self.erasing))
        return images


def make_policy(augment: Augment) -> Callable[[Tensor], Tensor] | None:
    """The policy of an augmentation: TrivialAugment (arXiv 2103.10158) or RandAugment (arXiv 1909.13719)."""
    if augment == "trivial":
        return v2.TrivialAugmentWide()
    if augment == "rand":
        return v2.RandAugment()
    return None
