"""The U-Net of diffusion models (Ho et al., arXiv 2006.11239; Dhariwal & Nichol, arXiv 2105.05233): residual blocks
that know the time and the class, attention at chosen resolutions, a way up that mirrors the way down. No loss.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.nets.attention import Kernel, Mask, make_kernel

# B batch, C channels, H height, W width, E width of the embedding of time and class


class TimeAndClass(nn.Module):
    """Times (B,) from 0 to 1,000 and labels (B,) to one embedding (B, E); no labels, or label K, is no class.

    Args:
        embed_dim: Width E.
        num_classes: Classes K. 0: none are told apart.
    """

    def __init__(self, embed_dim: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.embed_dim = embed_dim
        self.layers = nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.SiLU(), nn.Linear(embed_dim, embed_dim))
        self.classes = nn.Embedding(num_classes + 1, embed_dim) if num_classes else None

    def forward(self, time: Tensor, labels: Tensor | None) -> Tensor:
        half = self.embed_dim // 2
        frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, device=time.device))
        angles = time.float()[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        x = self.layers(waves.to(next(self.layers.parameters()).dtype))
        if self.classes is not None:
            if labels is None:
                labels = torch.full_like(time, self.num_classes, dtype=torch.int64)
            x = x + self.classes(labels)
        return F.silu(x)


class ResidualBlock(nn.Module):
    """Two convolutions around a skip connection, the second norm scaled and shifted by the embedding."""

    def __init__(self, in_channels: int, out_channels: int, embed_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = group_norm(in_channels)
        self.convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.scale_and_shift = nn.Linear(embed_dim, 2 * out_channels)
        self.second_norm = group_norm(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.out = zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = self.scale_and_shift(embedding)[:, :, None, None].chunk(2, dim=1)
        y = self.convolution(F.silu(self.norm(x)))
        y = torch.addcmul(shift, self.second_norm(y), 1 + scale)
        return self.skip(x) + self.out(self.dropout(F.silu(y)))


class SpatialAttention(nn.Module):
    """Every pixel attends to every other: (B, C, H, W) to the same."""

    def __init__(self, channels: int, head_dim: int, kernel: Kernel) -> None:
        super().__init__()
        self.num_heads = max(1, channels // head_dim)
        if channels % self.num_heads:
            raise ValueError(f"{channels} channels do not divide into {self.num_heads} heads of head_dim ({head_dim})")
        self.norm = group_norm(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = zeroed(nn.Conv2d(channels, channels, 1))
        self.attend = make_kernel(kernel)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.num_heads, -1)).transpose(-1, -2)
        q, k, v = qkv.unbind(1)  # (B, heads, H * W, D) each
        y = self.attend(q, k, v, Mask())
        return x + self.out(y.transpose(-1, -2).reshape(batch, channels, height, width))


class Level(nn.Module):
    """One residual block, and attention if this resolution has it."""

    def __init__(self, block: ResidualBlock, attention: SpatialAttention | None) -> None:
        super().__init__()
        self.block, self.attention = block, attention

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        x = self.block(x, embedding)
        return x if self.attention is None else self.attention(x)


class Down(nn.Module):
    """The blocks of one resolution, then half of it, if there is a next."""

    def __init__(self, levels: Sequence[Level], channels: int, *, last: bool) -> None:
        super().__init__()
        self.levels = nn.ModuleList(levels)
        self.smaller = None if last else nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor, embedding: Tensor) -> list[Tensor]:
        """What each layer makes, which the way up takes in."""
        made = []
        for level in self.levels:
            x = level(x, embedding)
            made.append(x)
        return made if self.smaller is None else [*made, self.smaller(x)]


class Up(nn.Module):
    """The blocks of one resolution, each with a skip connection from the way down, then the next resolution's size."""

    def __init__(self, levels: Sequence[Level], channels: int, *, last: bool) -> None:
        super().__init__()
        self.levels = nn.ModuleList(levels)
        self.larger = None if last else nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, embedding: Tensor, skips: list[Tensor]) -> Tensor:
        """Takes from the end of `skips`."""
        for level in self.levels:
            x = level(torch.cat([x, skips.pop()], dim=1), embedding)
        if self.larger is None:
            return x
        return self.larger(F.interpolate(x, size=skips[-1].shape[-2:], mode="nearest"))


class UNet(nn.Module):
    """Noisy images (B, C, H, W), times (B,) and labels (B,) to what is predicted of them, (B, C, H, W).

    Args:
        in_channels: Channels C of the images.
        image_size: Their height and width, which `attention_at` refers to.
        num_classes: Classes K of the data.
        conditional: Whether the net is told the class; label K stands for none.
        widths: Channels at each resolution; each halves the one before.
        blocks: Residual blocks at each resolution, one more on the way up.
        patch_size: Side P of the patches whose pixels become channels (Hoogeboom et al., arXiv 2301.11093): the first
            resolution is `image_size` / P, at a fraction of the time.
        attention_at: Resolutions (heights) with attention; the middle always has it.
        head_dim: Channels of an attention head.
        dropout: Dropout within residual blocks.
        kernel: What computes attention, see `EfficientTransformer`.

    Raises:
        ValueError: An option is out of range.
    """

    BLOCKS = (Level,)

    def __init__(
        self,
        *,
        in_channels: int,
        image_size: int,
        num_classes: int,
        conditional: bool = True,
        widths: Sequence[int] = (32, 64),
        blocks: int = 2,
        patch_size: int = 1,
        attention_at: Sequence[int] = (),
        head_dim: int = 32,
        dropout: float = 0.0,
        kernel: Kernel = "sdpa",
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size % patch_size:
            raise ValueError(f"image_size ({image_size}) must be a multiple of patch_size ({patch_size})")
        sizes = [-(-image_size // patch_size // 2**index) for index in range(len(widths))]
        if not widths or min(widths) < 1 or blocks < 1:
            raise ValueError(f"widths ({list(widths)}) and blocks ({blocks}) must be above 0")
        if sizes[-1] < 2:
            raise ValueError(f"{len(widths)} widths halve {sizes[0]} pixels too often: give fewer")
        if unknown := set(attention_at) - set(sizes):
            raise ValueError(f"attention_at {sorted(unknown)} are none of the resolutions {sizes}")
        self.num_classes = num_classes if conditional else 0
        embed_dim = 4 * widths[0]
        self.embedding = TimeAndClass(embed_dim, self.num_classes)
        self.patch_size = patch_size
        self.stem = nn.Conv2d(in_channels * patch_size**2, widths[0], 3, padding=1)

        def level(before: int, after: int, attends: bool) -> Level:
            attention = SpatialAttention(after, head_dim, kernel) if attends else None
            return Level(ResidualBlock(before, after, embed_dim, dropout), attention)

        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, width = [widths[0]], widths[0]
        for index, (size, after) in enumerate(zip(sizes, widths, strict=True)):
            last = index == len(widths) - 1
            levels = [level(before, after, size in attention_at) for before in [width] + [after] * (blocks - 1)]
            self.down.append(Down(levels, after, last=last))
            skips += [after] * (blocks + (not last))
            width = after
        self.middle = nn.ModuleList([level(width, width, True), level(width, width, False)])
        for index, (size, after) in reversed(list(enumerate(zip(sizes, widths, strict=True)))):
            levels = [level(before + skips.pop(), after, size in attention_at) for before in [width] + [after] * blocks]
            self.up.append(Up(levels, after, last=index == 0))
            width = after
        self.norm = group_norm(width)
        self.head = zeroed(nn.Conv2d(width, in_channels * patch_size**2, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None) -> Tensor:
        """The prediction (B, C, H, W).

        Args:
            x: Noisy images.
            time: From 0, the image, to 1,000, noise alone, (B,).
            labels: Classes (B,); K, or None, is no class.
        """
        embedding = self.embedding(time, labels)
        x = self.stem(F.pixel_unshuffle(x, self.patch_size))
        skips = [x]
        for down in self.down:
            skips += down(skips[-1], embedding)
        x = skips[-1]
        for level in self.middle:
            x = level(x, embedding)
        for up in self.up:
            x = up(x, embedding, skips)
        return F.pixel_shuffle(self.head(F.silu(self.norm(x))), self.patch_size)

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Stem and embedding, the ways down, the middle, the ways up with the last norm."""
        return [[self.stem, self.embedding], *([x] for x in self.down), [self.middle], *([x] for x in self.up)]


def group_norm(channels: int) -> nn.GroupNorm:
    """Groups of 8 channels, or all in one where they do not divide so."""
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)


def zeroed(layer: nn.Conv2d) -> nn.Conv2d:
    """A layer that starts as zero, so that what it adds to starts unchanged."""
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
