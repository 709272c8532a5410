"""From noise to images: DDPM, DDIM, DPM-Solver++(2M), and Heun for flow matching. Plain torch.

All go through the same timesteps, evenly spaced from the last one down (Lin et al., arXiv 2305.08891). Chance comes
from one generator an image, so that an image follows from its seed whatever the batch.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from models.diffusion_process import DiffusionProcess

# B batch, C channels, H height, W width

Sampler = Literal["ddpm", "ddim", "dpm++", "heun"]
Clipping = Literal["none", "static", "dynamic"]
Predict = Callable[[Tensor, Tensor], Tensor]  # x (B, C, H, W) and timesteps (B,) to the net's prediction


def timesteps_of(steps: int, total: int) -> list[int]:
    """`steps` timesteps from `total` - 1 down, evenly spaced, and -1, the image.

    Raises:
        ValueError: There are not that many.
    """
    if not 1 <= steps <= total:
        raise ValueError(f"steps ({steps}) must be within 1 and the process's timesteps ({total})")
    return [round(total * (steps - index) / steps) - 1 for index in range(steps)] + [-1]


def clip(images: Tensor, clipping: Clipping) -> Tensor:
    """Predicted images within [-1, 1]: cut off (static), or scaled by their 99.5 % quantile first (dynamic, Saharia et
    al., arXiv 2205.11487).
    """
    if clipping == "none":
        return images
    if clipping == "static":
        return images.clamp(-1, 1)
    limit = images.flatten(1).abs().float().quantile(0.995, dim=1).clamp(min=1).view(-1, 1, 1, 1).to(images.dtype)
    return images.clamp(-limit, limit) / limit


def draw(generators: Sequence[torch.Generator], shape: Sequence[int], device: torch.device | str) -> Tensor:
    """Normal noise (B, *shape), each image's from its own generator."""
    return torch.stack([torch.randn(*shape, generator=generator) for generator in generators]).to(device)


def sample(
    process: DiffusionProcess,
    predict: Predict,
    x: Tensor,
    *,
    sampler: Sampler,
    steps: int,
    generators: Sequence[torch.Generator],
    eta: float = 0.0,
    clipping: Clipping = "static",
) -> Iterator[Tensor]:
    """The images (B, C, H, W) after each step; the last is the sample.

    Args:
        process: How images turn into noise.
        predict: The net's prediction.
        x: The noise to start from.
        sampler: The method.
        steps: Steps; Heun asks the net twice in each but the last.
        generators: Chance, one an image; DDPM, and the others with eta, draw from them.
        eta: Share of chance in DDIM, 1 for DDPM's, and in DPM-Solver++, 1 for its SDE.
        clipping: How predicted images are kept within [-1, 1].

    Raises:
        ValueError: The sampler is of the other kind of process, or an option is out of range.
    """
    if sampler not in get_args(Sampler):
        raise ValueError(f"sampler ({sampler!r}) must be one of {list(get_args(Sampler))}")
    if process.is_flow != (sampler == "heun"):
        fitting = "heun" if process.is_flow else "ddpm, ddim or dpm++"
        raise ValueError(f"sampler {sampler} does not fit a net that predicts {process.prediction}: use {fitting}")
    if not 0 <= eta <= 1:
        raise ValueError(f"eta ({eta}) must be within [0, 1]")
    if clipping not in get_args(Clipping):
        raise ValueError(f"clipping ({clipping!r}) must be one of {list(get_args(Clipping))}")
    times = timesteps_of(steps, process.timesteps)

    def fill(t: int) -> Tensor:
        return torch.full((len(x),), t, device=x.device)

    def image_at(x: Tensor, t: Tensor) -> Tensor:
        return clip(process.to_image(x, predict(x, t), t), clipping)

    before: tuple[Tensor, Tensor] | None = None  # the image predicted one step ago, and the step's length in log SNR
    for now, following in pairwise(times):
        t, s = fill(now), fill(following)
        if sampler == "heun":
            x = heun_step(process, image_at, x, t, s)
        elif sampler == "dpm++":
            image = image_at(x, t)
            noise = draw(generators, x.shape[1:], x.device).to(x) if eta else torch.zeros_like(x)
            x, length = dpm_step(process, image, x, t, s, before, eta, noise)
            before = image, length
        else:
            image = image_at(x, t)
            noise = draw(generators, x.shape[1:], x.device).to(x) if sampler == "ddpm" or eta else torch.zeros_like(x)
            if following < 0:
                x = image
            elif sampler == "ddpm":
                mean, variance = process.posterior(x, image, t, s)
                x = mean + variance.sqrt() * noise
            else:
                x = ddim_step(process, image, x, t, s, eta, noise)
        yield x


def ddim_step(
    process: DiffusionProcess, image: Tensor, x: Tensor, t: Tensor, s: Tensor, eta: float, noise: Tensor
) -> Tensor:
    """x_s of x_t (Song et al., arXiv 2010.02502, eq. 12)."""
    alpha, sigma = process.level(s)
    random = eta * process.posterior(x, image, t, s)[1].sqrt()
    direction = (sigma.square() - random.square()).clamp(min=0).sqrt()
    return alpha * image + direction * process.to_noise(x, image, t) + random * noise


def dpm_step(
    process: DiffusionProcess,
    image: Tensor,
    x: Tensor,
    t: Tensor,
    s: Tensor,
    before: tuple[Tensor, Tensor] | None,
    eta: float,
    noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """x_s of x_t, and the step's length in log SNR (Lu et al., arXiv 2211.01095; with an eta of 1 its
    SDE-DPM-Solver++(2M)); first order at the ends.
    """
    (alpha_t, sigma_t), (alpha_s, sigma_s) = process.level(t), process.level(s)
    length = (alpha_s / sigma_s).log() - (alpha_t / sigma_t).log()  # without end at the image itself
    if before is not None and bool((s >= 0).all()):
        ratio = before[1] / length
        image = image + (image - before[0]) / (2 * ratio)
    kept = sigma_s / sigma_t * torch.exp(-eta * length) if eta else sigma_s / sigma_t
    random = sigma_s * torch.sqrt(-torch.expm1(-2 * eta * length)) if eta else torch.zeros_like(sigma_s)
    return kept * x - alpha_s * torch.expm1(-(1 + eta) * length) * image + random * noise, length


def heun_step(
    process: DiffusionProcess, image_at: Callable[[Tensor, Tensor], Tensor], x: Tensor, t: Tensor, s: Tensor
) -> Tensor:
    """x_s of x_t along the flow: Heun's rule, Euler's for the last step."""
    sigma_t, sigma_s = process.level(t)[1], process.level(s)[1]
    slope = (x - image_at(x, t)) / sigma_t
    ahead = x + (sigma_s - sigma_t) * slope
    if bool((s < 0).all()):
        return ahead
    slope_ahead = (ahead - image_at(ahead, s)) / sigma_s
    return x + (sigma_s - sigma_t) * (slope + slope_ahead) / 2


def interpolate(first: Tensor, second: Tensor, count: int) -> Tensor:
    """`count` noises (count, C, H, W) on the arc from one noise (C, H, W) to another, both included."""
    shares = torch.linspace(0, 1, count, dtype=first.dtype, device=first.device).view(-1, 1, 1, 1)
    cosine = torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0)
    angle = cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos()
    return (torch.sin((1 - shares) * angle) * first + torch.sin(shares * angle) * second) / torch.sin(angle)
