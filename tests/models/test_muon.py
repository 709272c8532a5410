"""MuonAdamW against torch.optim.Muon and AdamW stepped by hand."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateMonitor
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from models.muon import orthogonalise
from models.optim import (
    MuonAdamW,
    Schedule,
    build_optimizer,
    parameter_groups,
)


def gradients(net: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(parameter.shape, generator=generator) for parameter in net.parameters()]


def walk(net: nn.Module, chosen: list[Optimizer], steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(net.parameters(), gradients(net, step), strict=True):
            parameter.grad = gradient
        for optimizer in chosen:
            optimizer.step()


def assume_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.muon.has_bfloat16", lambda device: True)


@pytest.mark.parametrize("steps", [1, 4, 5])
def test_float32_orthogonalises_more_exactly_than_torch(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    generator, coefficients = torch.Generator().manual_seed(0), (3.4445, -4.775, 2.0315)
    stacks = [torch.randn(shape, generator=generator) for shape in [(2, 8, 8), (3, 8, 20), (1, 30, 8), (1, 5, 6)]]
    exact = []
    for stack in stacks:  # torch's own formulas, in float64
        x = stack.double().mT if stack.shape[1] > stack.shape[2] else stack.double()
        x = x / x.norm(dim=(1, 2), keepdim=True)
        for _ in range(steps):
            gram = x @ x.mT
            x = coefficients[0] * x + (coefficients[1] * gram + coefficients[2] * gram @ gram) @ x
        exact.append(x.mT if stack.shape[1] > stack.shape[2] else x)
    errors = []
    for native in (False, True):
        monkeypatch.setattr("models.muon.has_bfloat16", lambda device, native=native: native)
        found = orthogonalise(stacks, coefficients, steps, 1e-7)
        assert [x.shape for x in found] == [x.shape for x in stacks]
        errors.append(max(float((x - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True)))
    assert errors[0] < 1e-4
    assert errors[0] < errors[1] < 0.1


def test_muon_adamw_steps_as_both_stepped_by_hand(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assume_bfloat16(monkeypatch)
    ours = tiny.Net()
    reference = copy.deepcopy(ours)
    factory = functools.partial(MuonAdamW, lr=0.02, momentum=0.9, weight_decay=0.1, adamw_lr=0.01, betas=(0.8, 0.9))
    optimizer = build_optimizer(factory, parameter_groups(ours, lr_multipliers={"head": 2.0}))
    parameters = dict(reference.named_parameters())
    muon = torch.optim.Muon([parameters["body.1.1.weight"]], lr=0.02, momentum=0.9, weight_decay=0.1)
    convolution = [parameters["scale"], parameters["body.0.0.weight"]]
    vectors = [parameter for name, parameter in parameters.items() if name.startswith("body") and parameter.ndim == 1]
    adamw = AdamW(
        [
            {"params": convolution},
            {"params": vectors, "weight_decay": 0.0},
            {"params": [parameters["head.weight"]], "lr": 0.02},
            {"params": [parameters["head.bias"]], "lr": 0.02, "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.8, 0.9),
        weight_decay=0.1,
    )
    walk(ours, [optimizer], range(4))
    walk(reference, [muon, adamw], range(4))
    for name, value in ours.named_parameters():
        assert torch.equal(value, parameters[name]), name


def test_muon_adamw_takes_plain_parameters() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = MuonAdamW(net.parameters())
    kinds = ["muon" if "ns_steps" in group else "adamw" for group in optimizer.param_groups for _ in group["params"]]
    assert sorted(kinds) == ["adamw", "adamw", "muon", "muon"]


def test_muon_adamw_continues_from_its_state_dict(tiny: Any, tmp_path: Path) -> None:
    net = tiny.Net()
    optimizer = build_optimizer(MuonAdamW, parameter_groups(net))
    walk(net, [optimizer], range(3))
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    walk(net, [optimizer], range(3, 6))

    saved, again = torch.load(tmp_path / "state.pt", weights_only=True), tiny.Net()
    again.load_state_dict(saved["net"])
    optimizer = build_optimizer(functools.partial(MuonAdamW, lr=9.0, adamw_lr=9.0), parameter_groups(again))
    optimizer.load_state_dict(saved["optimizer"])
    walk(again, [optimizer], range(3, 6))
    for expected, value in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(value, expected)


def test_muon_adamw_calls_its_closure_once_with_gradients_on() -> None:
    net = nn.Linear(3, 3)
    optimizer, calls = MuonAdamW(net.parameters()), []

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).square().mean()
        loss.backward()
        calls.append(loss.item())
        return loss.item()

    before = net.weight.clone()
    assert optimizer.step(closure) == calls[0]
    assert len(calls) == 1
    assert not torch.equal(net.weight, before)


def test_muon_adamw_trains_with_clipping_and_a_rate_monitor(
    tiny: Any, trainer: Callable[..., pl.Trainer], tmp_path: Path
) -> None:
    from pytorch_lightning.loggers import CSVLogger

    net = tiny.Net()
    images, labels = tiny.data(12).tensors
    task = tiny.Task(net, optimizer=MuonAdamW, schedule=Schedule("cosine", warmup=0.1))
    logger = CSVLogger(tmp_path)
    trainer(
        max_epochs=30, gradient_clip_val=1.0, logger=logger, callbacks=[LearningRateMonitor()], log_every_n_steps=1
    ).fit(task, tiny.loader())
    assert nn.functional.cross_entropy(net(images), labels) < 0.3


def test_muon_adamw_without_a_matrix_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(ValueError, match=r"MuonAdamW needs a hidden matrix .*use torch\.optim\.AdamW"):
        build_optimizer(MuonAdamW, parameter_groups(net))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_muon_adamw_takes_a_convolution_as_the_matrix_of_its_filters(
    memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    assume_bfloat16(monkeypatch)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.Conv2d(6, 4, 3, bias=False))
    net.to(memory_format=memory_format)
    first, second = (layer.weight.detach().clone() for layer in net)
    matrix = nn.Parameter(second.flatten(1).clone())
    muon = torch.optim.Muon([matrix], lr=0.1, momentum=0.9, weight_decay=0.2)
    adamw = AdamW([nn.Parameter(first)], lr=0.01, betas=(0.9, 0.95), weight_decay=0.2)
    factory = functools.partial(MuonAdamW, lr=0.1, momentum=0.9, weight_decay=0.2, adamw_lr=0.01)
    optimizer = build_optimizer(factory, parameter_groups(net))
    for step in range(3):
        optimizer.zero_grad()
        net(torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        adamw.param_groups[0]["params"][0].grad = net[0].weight.grad.clone()
        matrix.grad = net[1].weight.grad.flatten(1).clone()
        for each in (optimizer, muon, adamw):
            each.step()
    assert net[1].weight.shape == (4, 6, 3, 3)
    assert net[1].weight.is_contiguous(memory_format=memory_format)
    # the orthogonalisation runs in bfloat16, and sums in another order for another order of the columns
    torch.testing.assert_close(net[1].weight.flatten(1), matrix, atol=2e-3, rtol=0)
    torch.testing.assert_close(net[0].weight, adamw.param_groups[0]["params"][0])
