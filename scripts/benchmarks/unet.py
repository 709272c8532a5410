"""A training step of our U-Net against one of the package denoising-diffusion-pytorch's, at about equal parameters.

All take turns in one process on the same images, unconditional, with the same optimizer. The package's net attends at
every resolution (in linear time at all but the last), ours in the middle only unless told otherwise: in the last row it
attends at every resolution too. `python -m pip install -c constraints.txt -e ".[benchmark]"` brings the package.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from models.nets.unet import UNet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--image_size", type=int, default=32, help="pixels, a multiple of 4")
    parser.add_argument("--batch_size", type=int, default=16, help="images of a step")
    parser.add_argument("--dim", type=int, default=32, help="channels at the first resolution; twice, 4 times after")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each that count")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each net."""
    try:
        from denoising_diffusion_pytorch import Unet
    except ImportError as error:
        raise SystemExit(f'{error}: python -m pip install -c constraints.txt -e ".[benchmark]"') from error
    torch.manual_seed(0)
    dim, size = args.dim, args.image_size
    everywhere = [size, size // 2, size // 4]
    facts: dict[str, Any] = {"in_channels": 1, "image_size": size, "num_classes": 0, "blocks": 2}
    nets = {
        "denoising-diffusion-pytorch": Unet(dim=dim, dim_mults=(1, 2, 4), channels=1, flash_attn=True),
        "ours": UNet(**facts, widths=[dim, 2 * dim, 3 * dim]),
        "ours, attention everywhere": UNet(
            **facts, widths=[dim, 2 * dim, 11 * dim // 4], head_dim=44, attention_at=everywhere
        ),
    }
    optimizers = {name: torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True) for name, net in nets.items()}
    images, t = torch.randn(args.batch_size, 1, size, size), torch.randint(1000, (args.batch_size,))
    seconds: dict[str, list[float]] = {name: [] for name in nets}
    for round_number in range(args.rounds + 1):  # the first warms up
        for name, net in nets.items():
            start = time.perf_counter()
            step(net, optimizers[name], images, t)
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    theirs = next(iter(medians.values()))
    return [
        {
            "net": name,
            "parameters (M)": sum(parameter.numel() for parameter in net.parameters()) / 1e6,
            "step (ms)": 1000 * medians[name],
            "images/s": args.batch_size / medians[name],
            "times the package's throughput": theirs / medians[name],
        }
        for name, net in nets.items()
    ]


def step(net: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, t: Tensor) -> None:
    """Forward, backward, update."""
    (net(images, t) - images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
