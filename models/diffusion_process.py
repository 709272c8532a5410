"""How images turn into noise, and what a net predicts of it. Plain torch.

x_t = alpha_t x_0 + sigma_t noise. For diffusion (Ho et al., arXiv 2006.11239) alpha_t^2 + sigma_t^2 = 1, t counts steps
and a schedule says how fast; for flow matching (Liu et al., arXiv 2209.03003) alpha = 1 - t / T and sigma = t / T.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

# B batch, C channels, H height, W width, T timesteps

Noising = Literal["linear", "cosine", "sigmoid"]
Prediction = Literal["epsilon", "x0", "v", "flow"]


def linear_betas(steps: int) -> Tensor:
    """Variances that each step adds, (T,) float64: 1e-4 to 0.02 over 1,000 steps (Ho et al.), more at fewer steps."""
    scale = 1000 / steps
    return torch.linspace(scale * 1e-4, scale * 0.02, steps, dtype=torch.float64).clamp(max=0.999)


def cosine_betas(steps: int, offset: float = 0.008) -> Tensor:
    """As `linear_betas`, from a squared cosine of signal (Nichol & Dhariwal, arXiv 2102.09672)."""
    return betas_of(steps, lambda x: torch.cos((x + offset) / (1 + offset) * math.pi / 2) ** 2)


def sigmoid_betas(steps: int, start: float = -3.0, end: float = 3.0) -> Tensor:
    """As `linear_betas`, from a sigmoid of signal (Jabri et al., arXiv 2212.11972)."""
    low, high = torch.tensor([start, end], dtype=torch.float64).sigmoid()
    return betas_of(steps, lambda x: (high - torch.sigmoid(x * (end - start) + start)) / (high - low))


def betas_of(steps: int, signal: Callable[[Tensor], Tensor]) -> Tensor:
    """Variances (T,) whose remaining signal alpha^2 at t / T is signal(t / T) / signal(0)."""
    remaining = signal(torch.linspace(0, 1, steps + 1, dtype=torch.float64))
    return (1 - remaining[1:] / remaining[:-1]).clamp(max=0.999)


SCHEDULES = {"linear": linear_betas, "cosine": cosine_betas, "sigmoid": sigmoid_betas}


class DiffusionProcess(nn.Module):
    """Noising, the net's target, and the way back from its prediction.

    Args:
        noising: The schedule: linear, cosine or sigmoid. Flow matching has its own.
        prediction: What the net predicts: the noise (epsilon), the image (x0), v = alpha noise - sigma x0 (Salimans &
            Ho, arXiv 2202.00512), or the flow noise - x0.
        timesteps: Steps T of a training image to noise.

    Raises:
        ValueError: An option is out of range.
    """

    alphas: Tensor
    sigmas: Tensor

    def __init__(self, noising: Noising = "cosine", prediction: Prediction = "v", timesteps: int = 1000) -> None:
        super().__init__()
        if noising not in SCHEDULES:
            raise ValueError(f"noising ({noising!r}) must be one of {list(SCHEDULES)}")
        if prediction not in get_args(Prediction):
            raise ValueError(f"prediction ({prediction!r}) must be one of {list(get_args(Prediction))}")
        if timesteps < 2:
            raise ValueError(f"timesteps ({timesteps}) must be at least 2")
        self.prediction, self.timesteps = prediction, timesteps
        if self.is_flow:
            sigmas = torch.arange(1, timesteps + 1, dtype=torch.float64) / timesteps
            alphas = 1 - sigmas
        else:
            remaining = (1 - SCHEDULES[noising](timesteps)).cumprod(0)  # alpha^2
            alphas, sigmas = remaining.sqrt(), (1 - remaining).sqrt()
        self.register_buffer("alphas", alphas.float(), persistent=False)
        self.register_buffer("sigmas", sigmas.float(), persistent=False)

    @property
    def is_flow(self) -> bool:
        """Whether the way from image to noise is a straight line."""
        return self.prediction == "flow"

    def level(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Alpha and sigma, (B, 1, 1, 1) each, of timesteps (B,) from 0 to T - 1; -1 is the image itself."""
        at = t.clamp(min=0)
        alpha = torch.where(t < 0, 1.0, self.alphas[at])
        sigma = torch.where(t < 0, 0.0, self.sigmas[at])
        return alpha.view(-1, 1, 1, 1), sigma.view(-1, 1, 1, 1)

    def add_noise(self, images: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t of images and noise (B, C, H, W) at timesteps (B,)."""
        alpha, sigma = self.level(t)
        return alpha * images + sigma * noise

    def target(self, images: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What the net is to predict, (B, C, H, W)."""
        match self.prediction:
            case "epsilon":
                return noise
            case "x0":
                return images
            case "flow":
                return noise - images
        alpha, sigma = self.level(t)
        return alpha * noise - sigma * images

    def to_image(self, x: Tensor, predicted: Tensor, t: Tensor) -> Tensor:
        """The image that a prediction at x_t amounts to, (B, C, H, W)."""
        alpha, sigma = self.level(t)
        match self.prediction:
            case "epsilon":
                return (x - sigma * predicted) / alpha
            case "x0":
                return predicted
            case "flow":
                return x - sigma * predicted
        return alpha * x - sigma * predicted

    def to_noise(self, x: Tensor, image: Tensor, t: Tensor) -> Tensor:
        """The noise that makes x_t of an image, (B, C, H, W)."""
        alpha, sigma = self.level(t)
        return (x - alpha * image) / sigma

    def loss_weight(self, t: Tensor, min_snr_gamma: float | None) -> Tensor:
        """Weights (B,) of squared errors, min-SNR (Hang et al., arXiv 2303.09556); None and flow matching: 1."""
        if min_snr_gamma is None or self.is_flow:
            return torch.ones_like(self.alphas[t])
        snr = (self.alphas[t] / self.sigmas[t]).square()
        kept = snr.clamp(max=min_snr_gamma)
        match self.prediction:
            case "epsilon":
                return kept / snr
            case "x0":
                return kept
        return kept / (snr + 1)

    def posterior(self, x: Tensor, image: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, C, H, W) and variance (B, 1, 1, 1) of x_s given x_t and x_0, for an earlier s (Ho et al., eq. 7)."""
        (alpha_t, sigma_t), (alpha_s, sigma_s) = self.level(t), self.level(s)
        ratio = alpha_t / alpha_s
        added = sigma_t.square() - ratio.square() * sigma_s.square()  # variance that the way from s to t adds
        mean = (ratio * sigma_s.square() * x + alpha_s * added * image) / sigma_t.square()
        return mean, added * sigma_s.square() / sigma_t.square()
