import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.nets.resnet9 import ConvNormAct, Residual, ResNet9


def naive(net: ResNet9, images: Tensor) -> Tensor:
    """The net of Page's article written out, from the net's own layers."""

    def block(layer: ConvNormAct, x: Tensor, *, pool: bool) -> Tensor:
        convolution, _, norm, _ = layer
        x = F.conv2d(x, convolution.weight, padding=1)
        x = F.max_pool2d(x, 2) if pool else x
        return F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias))

    x = block(net.stem, images, pool=False)
    for reduce, residual in net.body:
        x = block(reduce, x, pool=True)
        x = x + block(residual.branch[1], block(residual.branch[0], x, pool=False), pool=False)
    features = torch.cat([F.adaptive_max_pool2d(x, 1), F.adaptive_avg_pool2d(x, 1)], dim=1).flatten(1)
    return F.linear(features, net.head[-1].weight, net.head[-1].bias)


@pytest.mark.parametrize("in_channels", [1, 3])
@pytest.mark.parametrize("widths", [(4, 8), (4, 8, 6)])
def test_matches_the_net_written_out(in_channels: int, widths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = ResNet9(num_classes=5, in_channels=in_channels, widths=widths)
    images = torch.randn(3, in_channels, 12, 12)
    net(images)  # moves the norms' statistics
    net.eval()
    logits = net(images)
    assert logits.shape == (3, 5)
    torch.testing.assert_close(logits, naive(net, images))


def test_number_of_layers() -> None:
    net = ResNet9(num_classes=10, in_channels=1, widths=(8, 16, 16, 16))
    layers = [module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) == 11  # the stem, three stages of three layers, the head
    net = ResNet9(num_classes=10, in_channels=1)
    assert len([module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]) == 8


def test_every_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    net = ResNet9(num_classes=5, in_channels=1, widths=(4, 8, 8), dropout=0.1)
    net(torch.randn(4, 1, 9, 9)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("size", [4, 8, 28, 33])
def test_takes_images_of_four_pixels_and_more(size: int) -> None:
    assert ResNet9(num_classes=2, in_channels=3, widths=(4, 4, 4))(torch.zeros(2, 3, size, size)).shape == (2, 2)


def test_stages_cover_all_but_the_head_in_order() -> None:
    net = ResNet9(num_classes=5, in_channels=1, widths=(4, 8, 8, 8))
    assert len(net.stages) == 4
    staged = [parameter for stage in net.stages for module in stage for parameter in module.parameters()]
    assert [id(p) for p in [*staged, *net.head.parameters()]] == [id(p) for p in net.parameters()]


def test_blocks_are_the_residual_ones() -> None:
    net = ResNet9(num_classes=5, in_channels=1, widths=(4, 8, 8))
    assert (Residual,) == net.BLOCKS
    assert sum(isinstance(module, net.BLOCKS) for module in net.modules()) == 2


def test_dropout_is_in_the_head() -> None:
    torch.manual_seed(0)
    net, images = ResNet9(num_classes=5, in_channels=1, widths=(4, 8), dropout=0.5), torch.randn(4, 1, 8, 8)
    assert not torch.equal(net.train()(images), net(images))
    assert torch.equal(net.eval()(images), net(images))


def test_widths_name_a_stage() -> None:
    with pytest.raises(ValueError, match=r"widths \(8,\) must name the stem and at least one stage"):
        ResNet9(num_classes=5, in_channels=1, widths=(8,))
