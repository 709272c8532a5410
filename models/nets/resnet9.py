"""A compact residual net for small images, after the nine-layer ResNet of DAWNBench (Page, "How to train your ResNet",
2018). Two poolings: the input must be at least 4 pixels wide. No loss.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn


class ConvNormAct(nn.Sequential):
    """3x3 convolution, optional 2x2 max-pool, batch norm, ReLU: (B, C, H, W) to (B, C', H or H/2, W or W/2)."""

    def __init__(self, in_channels: int, out_channels: int, *, pool: bool = False) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            # ahead of the norm, which then has a quarter of the work
            nn.MaxPool2d(2) if pool else nn.Identity(),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class Residual(nn.Module):
    """Two convolutions around a skip connection: (B, C, H, W) to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(ConvNormAct(channels, channels), ConvNormAct(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class ResNet9(nn.Module):
    """Images (B, C, H, W) to logits (B, num_classes).

    Args:
        num_classes: Number of classes K.
        in_channels: Channels C of the images.
        widths: Channels of the stem, and of each stage: a convolution with a pool and a residual block.
        dropout: Dropout ahead of the last layer.
    """

    BLOCKS = (Residual,)

    def __init__(
        self,
        *,
        num_classes: int,
        in_channels: int,
        widths: tuple[int, ...] = (32, 64, 128),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(widths) < 2:
            raise ValueError(f"widths {widths} must name the stem and at least one stage")
        self.stem = ConvNormAct(in_channels, widths[0])
        self.body = nn.ModuleList(
            nn.Sequential(ConvNormAct(before, width, pool=True), Residual(width)) for before, width in pairwise(widths)
        )
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * widths[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        x = self.stem(images)
        for stage in self.body:
            x = stage(x)
        features = torch.cat([x.amax((2, 3)), x.mean((2, 3))], dim=1)  # (B, 2 * C)
        return self.head(features)

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Stem, then each stage."""
        return [[self.stem], *([stage] for stage in self.body)]
