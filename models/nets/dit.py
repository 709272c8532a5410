"""A diffusion transformer (Peebles & Xie, arXiv 2212.09748): patches as tokens, norms that time and class scale, shift
and gate. No loss.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.nets.attention import Kernel, Mask, make_kernel
from models.nets.unet import TimeAndClass

# B batch, C channels, H height, W width, P patch size, T tokens (H / P * W / P), E width


class AdaptiveBlock(nn.Module):
    """Attention and feed-forward layer, each scaled, shifted and gated by the embedding; starts as no change."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: float, dropout: float, kernel: Kernel) -> None:
        super().__init__()
        hidden_dim = int(embed_dim * mlp_ratio)
        self.num_heads, self.dropout = num_heads, dropout
        self.modulation = nn.Linear(embed_dim, 6 * embed_dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.qkv, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, hidden_dim), nn.GELU("tanh"), nn.Dropout(dropout), nn.Linear(hidden_dim, embed_dim)
        )
        self.attend = make_kernel(kernel)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        first = self.modulation(embedding)[:, None].chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = first
        width = x.shape[-1:]
        qkv = self.qkv(torch.addcmul(shift, F.layer_norm(x, width), 1 + scale))
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, T, D) each
        y = self.attend(q, k, v, Mask(), self.dropout if self.training else 0.0)
        x = torch.addcmul(x, gate, self.out(y.transpose(1, 2).flatten(2)))
        return torch.addcmul(x, mlp_gate, self.mlp(torch.addcmul(mlp_shift, F.layer_norm(x, width), 1 + mlp_scale)))


class DiT(nn.Module):
    """Noisy images (B, C, H, W), times (B,) and labels (B,) to what is predicted of them, (B, C, H, W).

    Args:
        in_channels: Channels C of the images.
        image_size: Their height and width, a multiple of `patch_size`.
        num_classes: Classes K of the data.
        conditional: Whether the net is told the class; label K stands for none.
        patch_size: Height and width P of a patch.
        depth: Blocks.
        embed_dim: Width E, a multiple of 4 and of `num_heads`.
        num_heads: Attention heads.
        mlp_ratio: Width of the feed-forward layers in E.
        dropout: Of attention weights and within feed-forward layers.
        kernel: What computes attention, see `EfficientTransformer`.

    Raises:
        ValueError: The sizes do not fit together.
    """

    BLOCKS = (AdaptiveBlock,)

    def __init__(
        self,
        *,
        in_channels: int,
        image_size: int,
        num_classes: int,
        conditional: bool = True,
        patch_size: int = 2,
        depth: int = 6,
        embed_dim: int = 128,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        kernel: Kernel = "sdpa",
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size % patch_size:
            raise ValueError(f"image_size ({image_size}) must be a multiple of patch_size ({patch_size})")
        if embed_dim % 4 or embed_dim % num_heads:
            raise ValueError(f"embed_dim ({embed_dim}) must be a multiple of 4 and of num_heads ({num_heads})")
        self.num_classes = num_classes if conditional else 0
        self.patch_size = patch_size
        self.embedding = TimeAndClass(embed_dim, self.num_classes)
        self.patches = nn.Conv2d(in_channels, embed_dim, patch_size, stride=patch_size)
        self.register_buffer("positions", grid_positions(image_size // patch_size, embed_dim), persistent=False)
        self.blocks = nn.ModuleList(
            AdaptiveBlock(embed_dim, num_heads, mlp_ratio, dropout, kernel) for _ in range(depth)
        )
        self.modulation = nn.Linear(embed_dim, 2 * embed_dim)
        self.head = nn.Linear(embed_dim, in_channels * patch_size**2)
        for layer in (self.modulation, self.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None) -> Tensor:
        """The prediction (B, C, H, W); arguments as `UNet.forward`."""
        side = x.shape[-1] // self.patch_size
        embedding = self.embedding(time, labels)
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions  # (B, T, E)
        for block in self.blocks:
            x = block(x, embedding)
        shift, scale = self.modulation(embedding)[:, None].chunk(2, dim=-1)
        x = self.head(torch.addcmul(shift, F.layer_norm(x, x.shape[-1:]), 1 + scale))  # (B, T, C * P * P)
        return F.pixel_shuffle(x.transpose(1, 2).unflatten(2, (side, side)), self.patch_size)

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Patches and embedding, then each block; the last norm's modulation is in none."""
        return [[self.patches, self.embedding], *([block] for block in self.blocks)]


def grid_positions(side: int, embed_dim: int) -> Tensor:
    """Sines and cosines of rows and columns, (side * side, E)."""
    frequencies = torch.exp(-math.log(10_000) * torch.arange(embed_dim // 4) / (embed_dim // 4))
    angles = torch.arange(side)[:, None] * frequencies  # (side, E / 4)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # (side, E / 2)
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)
