"""Schedules, noising and its reverse, against closed forms and moments."""

import pytest
import torch
from torch.testing import assert_close

from models.diffusion_process import SCHEDULES, DiffusionProcess, linear_betas

PREDICTIONS = ["epsilon", "x0", "v", "flow"]


@pytest.mark.parametrize("noising", SCHEDULES)
@pytest.mark.parametrize("steps", [10, 250, 1000])
def test_a_schedule_is_finite_at_both_ends(noising: str, steps: int) -> None:
    betas = SCHEDULES[noising](steps)
    assert betas.dtype == torch.float64
    assert len(betas) == steps
    assert bool(((betas > 0) & (betas < 1)).all())
    process = DiffusionProcess(noising, "epsilon", steps)  # type: ignore[arg-type]
    for x in (process.alphas, process.sigmas, process.alphas / process.sigmas, process.sigmas / process.alphas):
        assert x.dtype == torch.float32
        assert bool((x.isfinite() & (x > 0)).all())
    assert bool((process.alphas.diff() < 0).all())
    assert_close(process.alphas.double() ** 2 + process.sigmas.double() ** 2, torch.ones(steps).double())
    assert process.alphas[0] > 0.7
    assert process.alphas[-1] < 0.05


def test_linear_is_the_papers_at_1000_steps() -> None:
    betas = linear_betas(1000)
    assert betas[0] == pytest.approx(1e-4)
    assert betas[-1] == pytest.approx(0.02)
    assert_close(betas.diff(), torch.full((999,), (0.02 - 1e-4) / 999).double())


def test_noised_images_have_the_moments_of_the_closed_form() -> None:
    process = DiffusionProcess("linear", "epsilon", 1000)
    generator = torch.Generator().manual_seed(0)
    image = torch.tensor([-0.7, 0.2, 0.9]).view(1, 1, 1, 3).expand(40_000, 1, 1, 3)
    x, signal = image.clone(), 1.0
    for t in range(300):  # one small step after the other, as the process is defined
        beta = float(linear_betas(1000)[t])
        x = (1 - beta) ** 0.5 * x + beta**0.5 * torch.randn(x.shape, generator=generator)
        signal *= (1 - beta) ** 0.5
    at_once = process.add_noise(image, torch.randn(x.shape, generator=generator), torch.full((40_000,), 299))
    for sample in (x, at_once):
        assert_close(sample.mean(0), signal * image[0], atol=0.02, rtol=0)
        assert_close(sample.var(0), torch.full((1, 1, 3), 1 - signal**2), atol=0.02, rtol=0)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_target_leads_back_to_image_and_noise(prediction: str) -> None:
    process = DiffusionProcess("cosine", prediction, 100)  # type: ignore[arg-type]
    images, noise = torch.randn(2, 3, 1, 4, 4).unbind()
    t = torch.tensor([0, 50, 90])
    x = process.add_noise(images, noise, t)
    image = process.to_image(x, process.target(images, noise, t), t)
    assert_close(image, images, atol=1e-4, rtol=1e-4)
    assert_close(process.to_noise(x, images, t), noise, atol=1e-4, rtol=1e-4)
    untouched = process.add_noise(images, noise, torch.full((3,), -1))
    assert torch.equal(untouched, images)


def test_min_snr_weighs_the_image_alike_for_every_prediction() -> None:
    t = torch.tensor([5, 100, 500, 900])
    weights = {
        prediction: DiffusionProcess("linear", prediction).loss_weight(t, 5.0)  # type: ignore[arg-type]
        for prediction in PREDICTIONS
    }
    process = DiffusionProcess("linear", "x0")
    snr = (process.alphas[t] / process.sigmas[t]).square()
    assert_close(weights["x0"], torch.minimum(snr, torch.tensor(5.0)))
    assert_close(weights["epsilon"] * snr, weights["x0"])  # an error of the noise is snr times one of the image
    assert_close(weights["v"] * (snr + 1), weights["x0"])
    assert_close(weights["flow"], torch.ones(4))
    assert_close(process.loss_weight(t, None), torch.ones(4))


def test_one_reverse_step_is_the_papers_closed_form() -> None:
    process, betas = DiffusionProcess("linear", "epsilon"), linear_betas(1000)
    remaining = (1 - betas).cumprod(0)
    image, noise = torch.randn(2, 1, 1, 2, 2).unbind()
    for t in (1, 500, 999):
        x = process.add_noise(image, noise, torch.tensor([t]))
        mean, variance = process.posterior(x, image, torch.tensor([t]), torch.tensor([t - 1]))
        from_image = remaining[t - 1].sqrt() * betas[t] / (1 - remaining[t])
        from_x = (1 - betas[t]).sqrt() * (1 - remaining[t - 1]) / (1 - remaining[t])
        assert_close(mean, (from_image * image + from_x * x).float(), atol=1e-3, rtol=1e-3)
        expected = betas[t] * (1 - remaining[t - 1]) / (1 - remaining[t])
        assert float(variance) == pytest.approx(float(expected), rel=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noising": "quadratic"}, "noising .'quadratic'. must be one of"),
        ({"prediction": "score"}, "prediction .'score'. must be one of"),
        ({"timesteps": 1}, r"timesteps \(1\) must be at least 2"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiffusionProcess(**options)
