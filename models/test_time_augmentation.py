"""Views of an image batch whose predictions are averaged at test time."""

from typing import Literal

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

Views = Literal["none", "flip", "five_crop", "ten_crop"]


def make_views(images: Tensor, kind: Views) -> list[Tensor]:
    """Views, each shaped like `images` (B, C, H, W).

    `flip` adds the mirror image; `five_crop` takes the corners and the centre at 7/8 of the size, enlarged again;
    `ten_crop` takes those and their mirror images (Krizhevsky et al., 2012, section 4.1).
    """
    if kind == "none":
        return [images]
    if kind == "flip":
        return [images, images.flip(-1)]
    height, width = images.shape[-2:]
    crops = F.five_crop(images, [height * 7 // 8, width * 7 // 8])
    views = [F.resize(crop, [height, width], antialias=True) for crop in crops]
    return views if kind == "five_crop" else views + [view.flip(-1) for view in views]


def mean_probabilities(logits: list[Tensor]) -> Tensor:
    """Probabilities (B, K) averaged over the views' logits (B, K), in float32."""
    return torch.stack([view.float().softmax(-1) for view in logits]).mean(0)
