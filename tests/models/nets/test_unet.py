"""Shapes, conditions and gradients of the U-Net."""

import pytest
import torch

from models.nets.unet import SpatialAttention, UNet


def make(**options: object) -> UNet:
    torch.manual_seed(0)
    sizes: dict = {"in_channels": 1, "image_size": 8, "num_classes": 3, "widths": (8, 16), "blocks": 1}
    net = UNet(**(sizes | options))
    for parameter in net.parameters():  # zero layers hide what lies behind them
        torch.nn.init.normal_(parameter, std=0.1)
    return net


@pytest.mark.parametrize("size", [7, 8, 28, 33])
@pytest.mark.parametrize("widths", [(8,), (8, 16), (8, 8, 24)])
def test_the_prediction_has_the_images_shape(size: int, widths: tuple[int, ...]) -> None:
    net = make(image_size=size, widths=widths, in_channels=3)
    x = torch.randn(2, 3, size, size)
    assert net(x, torch.tensor([1.0, 900.0])).shape == x.shape


def test_patches_make_the_first_resolution_smaller() -> None:
    x, time = torch.randn(2, 3, 8, 8), torch.tensor([1.0, 900.0])
    whole, patches = make(in_channels=3), make(in_channels=3, patch_size=2, widths=(8,))
    assert patches(x, time).shape == whole(x, time).shape == x.shape
    seen = []
    patches.stem.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    patches(x, time)
    assert torch.equal(seen[0][0][:, :4, 1, 2], x[:, 0, 2:4, 4:6].flatten(1))  # a patch's pixels are channels
    assert seen[0][1].shape == (2, 8, 4, 4)


def test_every_parameter_gets_a_gradient() -> None:
    net = make(attention_at=[4], patch_size=2)
    net(torch.randn(4, 1, 8, 8), torch.rand(4) * 1000, torch.tensor([0, 1, 2, 3])).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_it_starts_by_predicting_zero() -> None:
    torch.manual_seed(0)
    net = UNet(in_channels=1, image_size=8, num_classes=3)
    assert not net(torch.randn(2, 1, 8, 8), torch.tensor([0.0, 999.0])).any()


def test_time_and_class_count_and_no_class_is_the_last_label() -> None:
    net, x, time = make(), torch.randn(1, 1, 8, 8), torch.tensor([500.0])
    outputs = [net(x, time, torch.tensor([label])) for label in range(4)]
    assert not torch.allclose(outputs[0], outputs[1])
    assert torch.equal(outputs[3], net(x, time))
    assert not torch.allclose(net(x, time), net(x, time / 2))
    unconditional = make(conditional=False)
    assert unconditional.num_classes == 0
    assert torch.equal(unconditional(x, time, torch.tensor([1])), unconditional(x, time))


def test_attention_stands_where_it_was_asked_for() -> None:
    def count(**options: object) -> int:
        return sum(isinstance(module, SpatialAttention) for module in make(**options).modules())

    assert count() == 1  # the middle
    assert count(attention_at=[4]) == 1 + (1 + 2)
    assert count(attention_at=[8, 4]) == 1 + 2 * (1 + 2)


def test_kernels_agree() -> None:
    x, time = torch.randn(2, 1, 8, 8), torch.tensor([3.0, 700.0])
    outputs = [make(kernel=kernel, attention_at=[8])(x, time) for kernel in ("naive", "sdpa")]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ()}, "must be above 0"),
        ({"blocks": 0}, "must be above 0"),
        ({"patch_size": 3}, r"image_size \(8\) must be a multiple of patch_size \(3\)"),
        ({"widths": (8, 8, 8, 8)}, "4 widths halve 8 pixels too often"),
        ({"widths": (8, 40), "head_dim": 13}, r"40 channels do not divide into 3 heads of head_dim \(13\)"),
        ({"attention_at": [5]}, r"attention_at \[5\] are none of the resolutions \[8, 4\]"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)
