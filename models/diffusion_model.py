"""Generation of images by denoising, with any net that predicts noise, image, velocity or flow."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.base import Task
from models.diffusion_process import DiffusionProcess, Noising, Prediction
from models.diffusion_samplers import Clipping, Sampler, draw, sample

# B batch, N samples, C channels, H height, W width

Batch = tuple[Tensor, Tensor]
QUARTERS = 4


class DiffusionModel(Task):
    """Learns to denoise images, and makes new ones.

    Images are in [-1, 1] inside, and in [0, 1] where they come out. The loss is the mean squared error of the
    prediction, each image at a random time; validation draws the same times and noises each time.

    Args:
        net: Maps noisy images (B, C, H, W), times (B,) within 0 to 1,000 and labels (B,) to a prediction (B, C, H, W);
            `net.num_classes` is its classes, 0 for none.
        class_names: Names of the classes.
        image_size: Height and width of the images in pixels.
        mean: What normalisation subtracted, one figure a channel.
        std: What normalisation divided by, one figure a channel.
        noising: The schedule, see `DiffusionProcess`.
        prediction: What the net predicts, see `DiffusionProcess`.
        timesteps: Steps T of a training image to noise.
        min_snr_gamma: Weighs easy times down (Hang et al., arXiv 2303.09556). None: all count the same.
        label_dropout: Share of training images whose class is kept from the net, for classifier-free guidance (Ho &
            Salimans, arXiv 2207.12598).
        **kwargs: Optimizer and schedule, see `Task`.

    Raises:
        ValueError: An option is out of range.
    """

    mean: Tensor
    std: Tensor
    process: DiffusionProcess

    def __init__(
        self,
        net: nn.Module,
        *,
        class_names: Sequence[str],
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        noising: Noising = "cosine",
        prediction: Prediction = "v",
        timesteps: int = 1000,
        min_snr_gamma: float | None = None,
        label_dropout: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(net, **kwargs)
        if not 0 <= label_dropout < 1:
            raise ValueError(f"label_dropout ({label_dropout}) must be within [0, 1)")
        if min_snr_gamma is not None and min_snr_gamma <= 0:
            raise ValueError(f"min_snr_gamma ({min_snr_gamma}) must be above 0")
        self.process = DiffusionProcess(noising, prediction, timesteps)
        self.class_names = list(class_names)
        self.image_shape = (len(mean), image_size, image_size)
        self.min_snr_gamma, self.label_dropout = min_snr_gamma, label_dropout
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.example_input_array = torch.zeros(2, *self.image_shape), torch.tensor([0, timesteps - 1])

    @property
    def num_classes(self) -> int:
        """Classes that the net tells apart; 0: none."""
        return int(getattr(self.net, "num_classes", 0))

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """The prediction (B, C, H, W) at x_t and timesteps (B,)."""
        time = (t + 1) * (1000 / self.process.timesteps)
        return self.net(x, time, labels if self.num_classes else None)

    def to_inside(self, images: Tensor, *, check: bool = True) -> Tensor:
        """Normalised images (B, C, H, W) of a datamodule, in [-1, 1].

        Args:
            images: The images.
            check: Look at their range, for which a GPU must be waited for.

        Raises:
            ValueError: They are of another range.
        """
        images = images * self.std + self.mean
        low, high = (float(edge) for edge in images.aminmax()) if check else (0.0, 1.0)
        if low < -0.01 or high > 1.01:
            raise ValueError(
                f"images reach from {low:.3g} to {high:.3g} once normalisation is undone, and must lie within 0 to 1: "
                "see that the datamodule's mean and std are what its images were normalised by"
            )
        return images * 2 - 1

    def losses(self, images: Tensor, labels: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Mean squared errors (B,) of the prediction, not weighted."""
        predicted = self(self.process.add_noise(images, noise, t), t, labels)
        return (predicted - self.process.target(images, noise, t)).square().flatten(1).mean(1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = self.to_inside(batch[0], check=batch_idx == 0), batch[1]
        t = spread_times(len(images), self.process.timesteps, device=images.device)
        if self.num_classes:
            hidden = torch.rand(len(labels), device=labels.device) < self.label_dropout
            labels = labels.masked_fill(hidden, self.num_classes)
        losses = self.losses(images, labels, t, torch.randn_like(images))
        loss = (losses * self.process.loss_weight(t, self.min_snr_gamma)).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {self.global_step}: the last checkpoint holds the state before; "
                "lower the learning rate, or set --trainer.gradient_clip_val 1"
            )
        if self.is_logging_step:
            self.log("train/loss", loss, prog_bar=True)
            for quarter, value in self.by_quarter(losses.detach(), t):
                self.log(f"train/loss_quarter_{quarter}", value)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch, batch_idx, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch, batch_idx, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        raise ValueError("a diffusion model makes images: python scripts/sample.py --ckpt CHECKPOINT")

    def evaluate(self, batch: Batch, batch_idx: int, split: str) -> None:
        """Log the loss, whole and by quarter of the times; times and noises depend on `batch_idx` alone."""
        images, labels = self.to_inside(batch[0], check=batch_idx == 0), batch[1]
        generator = torch.Generator().manual_seed(batch_idx)
        t = spread_times(len(images), self.process.timesteps, generator=generator).to(images.device)
        noise = torch.randn(images.shape, generator=generator).to(images)
        losses = self.losses(images, labels, t, noise)
        self.log(f"{split}/loss", losses.mean(), batch_size=len(images), prog_bar=True, sync_dist=True)
        for quarter, value in self.by_quarter(losses, t):
            self.log(f"{split}/loss_quarter_{quarter}", value, batch_size=len(images), sync_dist=True)

    def by_quarter(self, losses: Tensor, t: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Mean losses of times in the first quarter (least noise) to the fourth, those that occur."""
        quarters = t * QUARTERS // self.process.timesteps
        for quarter in range(QUARTERS):
            if bool((quarters == quarter).any()):
                yield quarter + 1, losses[quarters == quarter].mean()

    @torch.no_grad()
    def stream_images(
        self,
        labels: Sequence[int] | None = None,
        *,
        num: int = 16,
        sampler: Sampler | None = None,
        steps: int = 20,
        guidance: float = 1.0,
        eta: float = 0.0,
        clipping: Clipping = "static",
        seed: int = 0,
        first: int = 0,
        noise: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """New images (N, C, H, W) in [0, 1], after each step of the sampler; the last are the samples.

        Args:
            labels: A class for each image. None: the net is told none.
            num: Images N, where there are no labels.
            sampler: See `models.diffusion_samplers`. None: dpm++, or heun for flow matching.
            steps: Steps of the sampler.
            guidance: How far to go from what the net would make without a class; 1 is no guidance.
            eta: Share of chance in ddim and dpm++, see `models.diffusion_samplers`.
            clipping: How predicted images are kept within [-1, 1]: none, static, dynamic.
            seed: Image number i follows from seed and i, whatever the others.
            first: Number of the first image.
            noise: What to start from, (N, C, H, W). None: drawn.

        Raises:
            ValueError: An option is out of range, or asks for classes that the net does not know.
        """
        if labels is not None and not self.num_classes:
            raise ValueError("this net was not told classes in training: leave the class out")
        if labels is not None and not all(0 <= label < self.num_classes for label in labels):
            raise ValueError(f"classes must be within 0 and {self.num_classes - 1}")
        if guidance != 1 and labels is None:
            raise ValueError(f"guidance ({guidance}) needs a class to be guided to")
        if guidance != 1 and self.label_dropout == 0:
            raise ValueError(f"guidance ({guidance}) needs a net trained with label_dropout above 0")
        count = num if labels is None else len(labels)
        device = self.mean.device
        generators = generators_of(seed, first, count)
        start = draw(generators, self.image_shape, device)
        x = start if noise is None else noise.to(device)
        classes = None if labels is None else torch.tensor(labels, device=device)

        def predict(x: Tensor, t: Tensor) -> Tensor:
            if classes is None or guidance == 1:
                return self(x, t, classes)
            nothing = torch.full_like(classes, self.num_classes)
            both = self(torch.cat([x, x]), torch.cat([t, t]), torch.cat([classes, nothing]))
            guided, plain = both.chunk(2)
            return plain + guidance * (guided - plain)

        chosen: Sampler = sampler or ("heun" if self.process.is_flow else "dpm++")
        options: dict[str, Any] = {"eta": eta, "clipping": clipping, "generators": generators}
        was_training = self.training
        self.eval()
        try:
            for images in sample(self.process, predict, x, sampler=chosen, steps=steps, **options):
                yield (images.clamp(-1, 1) + 1) / 2
        finally:
            self.train(was_training)

    def starting_noise(self, num: int, *, seed: int = 0, first: int = 0) -> Tensor:
        """What `stream_images` starts from, (N, C, H, W)."""
        return draw(generators_of(seed, first, num), self.image_shape, self.mean.device)

    def generate_images(self, labels: Sequence[int] | None = None, **options: Any) -> Tensor:
        """New images (N, C, H, W) in [0, 1]; options as `stream_images`."""
        *_, images = self.stream_images(labels, **options)
        return images


def spread_times(
    count: int, total: int, *, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """`count` random timesteps (count,), one from each of as many equal parts, shuffled: less noise in the loss than
    independent ones (as in Kingma et al., arXiv 2107.00630, with a random place in each part).
    """
    places = (torch.arange(count) + torch.rand(count, generator=generator)) / count
    order = torch.randperm(count, generator=generator)
    return (places * total).long().clamp(max=total - 1)[order].to(device)


def generators_of(seed: int, first: int, count: int) -> list[torch.Generator]:
    """A generator for each image, that follows from the seed and the image's number."""
    seeds = [(seed * 1_000_003 + (first + index) * 7_919) % 2**63 for index in range(count)]
    return [torch.Generator().manual_seed(seed) for seed in seeds]
