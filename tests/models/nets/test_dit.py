"""Shapes, conditions and gradients of the diffusion transformer."""

import pytest
import torch

from models.nets.dit import DiT, grid_positions


def make(*, shaken: bool = True, **options: object) -> DiT:
    torch.manual_seed(0)
    sizes: dict = {"in_channels": 3, "image_size": 8, "num_classes": 3, "depth": 2, "embed_dim": 16, "num_heads": 2}
    net = DiT(**(sizes | options))
    if shaken:  # zero layers hide what lies behind them
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    return net


@pytest.mark.parametrize("patch_size", [1, 2, 4])
def test_the_prediction_has_the_images_shape(patch_size: int) -> None:
    x = torch.randn(2, 3, 8, 8)
    assert make(patch_size=patch_size)(x, torch.tensor([1.0, 900.0])).shape == x.shape


def test_patches_go_back_where_they_came_from() -> None:
    net = make(depth=0, patch_size=2)
    with torch.no_grad():
        net.embedding.layers[-1].weight.zero_()
        net.modulation.weight.zero_()
        net.modulation.bias.zero_()
    x = torch.randn(1, 3, 8, 8)
    changed = x.clone()
    changed[..., 2:4, 6:8] += 1
    difference = (net(changed, torch.zeros(1)) - net(x, torch.zeros(1))).abs().sum(1)[0]
    assert bool((difference[2:4, 6:8] > 0).all())
    difference[2:4, 6:8] = 0
    assert not difference.any()


def test_every_parameter_gets_a_gradient() -> None:
    net = make()
    net(torch.randn(4, 3, 8, 8), torch.rand(4) * 1000, torch.tensor([0, 1, 2, 3])).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_it_starts_by_predicting_zero_and_hears_time_and_class() -> None:
    x, time = torch.randn(1, 3, 8, 8), torch.tensor([500.0])
    assert not make(shaken=False)(x, time).any()
    net = make()
    outputs = [net(x, time, torch.tensor([label])) for label in range(4)]
    assert not torch.allclose(outputs[0], outputs[1])
    assert torch.equal(outputs[3], net(x, time))
    assert not torch.allclose(net(x, time), net(x, time / 2))


def test_positions_differ() -> None:
    positions = grid_positions(4, 16)
    assert positions.shape == (16, 16)
    assert len(positions.unique(dim=0)) == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 3}, r"image_size \(8\) must be a multiple of patch_size \(3\)"),
        ({"embed_dim": 18}, r"embed_dim \(18\) must be a multiple of 4 and of num_heads \(2\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)
