"""Samplers against those of the diffusers library, step by step, and against what must hold."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from models.diffusion_process import DiffusionProcess
from models.diffusion_samplers import clip, draw, interpolate, sample, timesteps_of

COMMON = {"num_train_timesteps": 1000, "timestep_spacing": "trailing"}
KINDS = {"epsilon": "epsilon", "v": "v_prediction", "x0": "sample"}


def net(x: Tensor, t: Tensor) -> Tensor:
    """Some smooth function of both, in the place of a trained net."""
    return torch.tanh(0.7 * x + 0.1 * x.roll(1, -1)) * (0.5 + t.view(-1, 1, 1, 1) / 2000)


def seeds(count: int = 2) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(index) for index in range(count)]


def ours(process: DiffusionProcess, x: Tensor, **options: Any) -> list[Tensor]:
    return list(sample(process, net, x, **({"generators": seeds(len(x)), "clipping": "none"} | options)))


@pytest.mark.parametrize("noising", ["linear", "cosine"])
@pytest.mark.parametrize("prediction", KINDS)
@pytest.mark.parametrize("steps", [5, 20])
@pytest.mark.parametrize("sampler", ["ddim", "dpm++"])
def test_each_step_is_that_of_diffusers(noising: str, prediction: str, steps: int, sampler: str) -> None:
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler

    process = DiffusionProcess(noising, prediction)  # type: ignore[arg-type]
    betas = (1 - (process.alphas.double() ** 2)[1:] / (process.alphas.double() ** 2)[:-1]).tolist()
    betas = [float(1 - process.alphas[0].double() ** 2), *betas]
    options = COMMON | {"trained_betas": betas, "prediction_type": KINDS[prediction]}
    scheduler: Any
    if sampler == "ddim":
        scheduler = DDIMScheduler(**options, clip_sample=False)
    else:
        scheduler = DPMSolverMultistepScheduler(**options, final_sigmas_type="zero")
    scheduler.set_timesteps(steps)
    assert scheduler.timesteps.tolist() == timesteps_of(steps, 1000)[:-1]
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    theirs, expected = x, []
    for t in scheduler.timesteps:
        theirs = scheduler.step(net(theirs, t.expand(2)), t, theirs).prev_sample
        expected.append(theirs)
    found = ours(process, x, sampler=sampler, steps=steps)
    scale = max(float(step.abs().max()) for step in expected)
    assert_close([step / scale for step in found], [step / scale for step in expected], atol=1e-5, rtol=1e-5)


def test_ancestral_steps_are_those_of_diffusers_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import DDPMScheduler
    from diffusers.schedulers import scheduling_ddpm

    process = DiffusionProcess("linear", "epsilon")
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    noises = seeds()
    monkeypatch.setattr(scheduling_ddpm, "randn_tensor", lambda *args, **kwargs: draw(noises, x.shape[1:], "cpu"))
    scheduler = DDPMScheduler(**COMMON, beta_start=1e-4, beta_end=0.02, clip_sample=True)
    scheduler.set_timesteps(50)
    theirs, expected = x, []
    for t in scheduler.timesteps:
        theirs = scheduler.step(net(theirs, t.expand(2)), t, theirs).prev_sample
        expected.append(theirs)
    assert_close(ours(process, x, sampler="ddpm", steps=50, clipping="static"), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prediction", KINDS)
def test_dpm_with_chance_is_that_of_diffusers_with_the_same_noise(
    prediction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import DPMSolverMultistepScheduler
    from diffusers.schedulers import scheduling_dpmsolver_multistep as module

    process = DiffusionProcess("linear", prediction)  # type: ignore[arg-type]
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    noises = seeds()
    monkeypatch.setattr(module, "randn_tensor", lambda *args, **kwargs: draw(noises, x.shape[1:], "cpu"))
    options = COMMON | {"prediction_type": KINDS[prediction], "final_sigmas_type": "zero"}
    scheduler = DPMSolverMultistepScheduler(**options, beta_end=0.02, beta_start=1e-4, algorithm_type="sde-dpmsolver++")
    scheduler.set_timesteps(20)
    theirs, expected = x, []
    for t in scheduler.timesteps:
        theirs = scheduler.step(net(theirs, t.expand(2)), t, theirs).prev_sample
        expected.append(theirs)
    found = ours(process, x, sampler="dpm++", steps=20, eta=1.0)
    scale = max(float(step.abs().max()) for step in expected)
    assert_close([step / scale for step in found], [step / scale for step in expected], atol=1e-5, rtol=1e-5)


def test_heun_is_that_of_diffusers() -> None:
    from diffusers import FlowMatchHeunDiscreteScheduler

    process, steps = DiffusionProcess(prediction="flow"), 8
    scheduler = FlowMatchHeunDiscreteScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(steps)
    # the same places on the way: theirs are spaced differently
    sigmas = torch.tensor([(t + 1) / 1000 for t in timesteps_of(steps, 1000)])
    scheduler.sigmas = torch.cat([sigmas[:1], sigmas[1:-1].repeat_interleave(2), sigmas[-1:]])
    scheduler.timesteps = torch.cat([scheduler.sigmas[:1], scheduler.sigmas[1:-1]]) * 1000
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    theirs = x
    for t in scheduler.timesteps:
        theirs = scheduler.step(net(theirs, (t - 1).expand(2)), t, theirs).prev_sample
    assert_close(ours(process, x, sampler="heun", steps=steps)[-1], theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"sampler": "ddpm"}, {"sampler": "ddim", "eta": 0.7}, {"sampler": "dpm++", "eta": 0.5}]
)
def test_an_image_follows_from_its_seed_whatever_the_batch(options: dict[str, Any]) -> None:
    process = DiffusionProcess("cosine", "v")

    def make(numbers: list[int]) -> Tensor:
        generators = [torch.Generator().manual_seed(number) for number in numbers]
        x = draw(generators, (1, 4, 4), "cpu")
        return list(sample(process, net, x, steps=6, generators=generators, **options))[-1]

    assert_close(make([5]), make([3, 4, 5])[2:])


def test_ddim_with_eta_one_spreads_like_ddpm() -> None:
    process, count = DiffusionProcess("linear", "x0"), 4000
    x = draw(seeds(count), (1, 1, 1), "cpu")

    def predict(x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(x)

    spread = [
        list(sample(process, predict, x, sampler=name, steps=10, eta=1.0, generators=seeds(count)))[-2].var()
        for name in ("ddpm", "ddim")
    ]
    assert float(spread[0]) == pytest.approx(float(spread[1]), rel=1e-3)


def test_clipping() -> None:
    images = torch.tensor([[-3.0, 0.5, 1.0, 2.0], [0.1, -0.2, 0.3, 0.9]]).view(2, 1, 2, 2)
    assert torch.equal(clip(images, "none"), images)
    assert float(clip(images, "static").abs().max()) == 1
    dynamic = clip(images, "dynamic")
    limit = images[0].abs().flatten().quantile(0.995)
    assert_close(dynamic[0], images[0].clamp(-limit, limit) / limit)
    assert torch.equal(dynamic[1], images[1])  # within the range already


def test_interpolation_keeps_the_length_of_noise() -> None:
    first, second = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0)).unbind()
    between = interpolate(first, second, 5)
    assert_close(between[0], first, atol=1e-5, rtol=1e-5)
    assert_close(between[-1], second, atol=1e-5, rtol=1e-5)
    lengths = between.flatten(1).norm(dim=1)
    assert float(lengths.min()) > 0.95 * float(torch.stack([first.norm(), second.norm()]).min())


@pytest.mark.parametrize(
    ("prediction", "options", "message"),
    [
        ("v", {"sampler": "heun"}, "heun does not fit a net that predicts v: use ddpm, ddim or dpm"),
        ("flow", {"sampler": "ddim"}, "ddim does not fit a net that predicts flow: use heun"),
        ("v", {"sampler": "euler"}, "sampler .'euler'. must be one of"),
        ("v", {"sampler": "ddim", "steps": 0}, r"steps \(0\) must be within 1"),
        ("v", {"sampler": "ddim", "steps": 1001}, r"steps \(1001\) must be within 1 and .*\(1000\)"),
        ("v", {"sampler": "ddim", "eta": 2.0}, r"eta \(2.0\)"),
        ("v", {"sampler": "ddim", "clipping": "soft"}, "clipping .'soft'. must be one of"),
    ],
)
def test_wrong_options_are_refused(prediction: Any, options: dict[str, Any], message: str) -> None:
    process = DiffusionProcess(prediction=prediction)
    with pytest.raises(ValueError, match=message):
        ours(process, torch.zeros(1, 1, 2, 2), **({"steps": 5} | options))
