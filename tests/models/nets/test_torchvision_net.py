from typing import Any

import pytest
import torch
from torch import nn

from models.nets.torchvision_net import TorchvisionNet

HEAVY = [pytest.param(name, 32, marks=pytest.mark.slow) for name in ("vgg11_bn", "vit_b_16", "alexnet")]
HEAVY[-1] = pytest.param("alexnet", 64, marks=pytest.mark.slow)
FAMILIES = [
    ("resnet18", 32),
    ("efficientnet_v2_s", 32),
    ("mobilenet_v3_small", 32),
    ("convnext_tiny", 32),
    ("swin_t", 32),
    ("densenet121", 32),
    ("regnet_y_400mf", 32),
    ("shufflenet_v2_x0_5", 32),
    ("squeezenet1_1", 32),
    ("googlenet", 32),
    ("inception_v3", 75),
    ("mnasnet0_5", 32),
]
UNREPEATED = {"vgg11_bn", "alexnet"}  # bare layers, no blocks


def build(name: str = "resnet18", **options: Any) -> TorchvisionNet:
    return TorchvisionNet(**({"name": name, "num_classes": 5, "in_channels": 3, "image_size": 32} | options))


# --- Every family


@pytest.mark.parametrize(("name", "size"), [*FAMILIES, *HEAVY])
def test_family(name: str, size: int) -> None:
    torch.manual_seed(0)
    net = build(name, image_size=size)
    logits = net(torch.randn(2, 3, size, size))
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    missing = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    assert not missing

    staged = [id(parameter) for stage in net.stages for module in stage for parameter in module.parameters()]
    assert len(staged) == len(set(staged)), "stages share parameters"
    known = {id(parameter): name for name, parameter in net.backbone.named_parameters()}
    left = {name for key, name in known.items() if key not in set(staged)}
    assert left <= {"class_token", "encoder.pos_embedding"}
    assert set(staged) <= known.keys()
    order = [list(known).index(key) for key in staged]
    assert order == sorted(order), "stages are not in the order of the net"
    assert 2 <= len(net.stages) <= 20

    assert bool(net.BLOCKS) == (name not in UNREPEATED)
    for block in net.BLOCKS:
        found = [module for module in net.modules() if type(module) is block]
        assert len(found) > 1
        assert any(len([m for m in b.modules() if isinstance(m, nn.Conv2d | nn.Linear)]) > 1 for b in found)


@pytest.mark.parametrize(("name", "size"), [*FAMILIES, *HEAVY])
def test_family_takes_grey_images(name: str, size: int) -> None:
    with torch.no_grad():
        assert build(name, image_size=size, in_channels=1).eval()(torch.randn(2, 1, size, size)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("resnet18", {"BasicBlock"}),
        ("efficientnet_v2_s", {"FusedMBConv", "MBConv"}),
        ("convnext_tiny", {"CNBlock"}),
        ("swin_t", {"SwinTransformerBlock"}),
        ("densenet121", {"_DenseLayer"}),
        ("regnet_y_400mf", {"ResBottleneckBlock"}),
        ("googlenet", {"Inception"}),
    ],
)
def test_blocks_are_the_repeated_ones_and_no_layer_or_container(name: str, blocks: set[str]) -> None:
    assert {block.__name__ for block in build(name).BLOCKS} == blocks


def test_resnet_stages_by_name() -> None:
    net = build("resnet18")
    names = {id(module): name for name, module in net.backbone.named_modules()}
    assert [[names[id(module)] for module in stage] for stage in net.stages] == [
        ["conv1", "bn1"],
        ["layer1"],
        ["layer2"],
        ["layer3"],
        ["layer4.0"],
        ["layer4.1"],
    ]


def test_head_is_linear_relu_dropout_linear() -> None:
    head = build(head_dim=7, dropout=0.3, num_classes=4).head
    assert [type(layer) for layer in head] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert (head[0].in_features, head[0].out_features, head[2].p, head[3].out_features) == (512, 7, 0.3, 4)


# --- The stem


@pytest.mark.parametrize("in_channels", [1, 3])
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "efficientnet_v2_s", "googlenet", "squeezenet1_1"])
def test_small_stem_keeps_the_resolution(name: str, in_channels: int) -> None:
    sizes: dict[bool, tuple[int, int]] = {}
    for small in (True, False):
        net = build(name, small_stem=small, in_channels=in_channels).eval()
        layers = [m for m in net.backbone.modules() if isinstance(m, nn.Conv2d)][:2]
        seen: list[int] = []
        for layer in layers:
            layer.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output.shape[-1]))
        with torch.no_grad():
            net(torch.randn(1, in_channels, 32, 32))
        sizes[small] = (seen[0], seen[1])
        assert layers[0].kernel_size == ((3, 3) if small else {"resnet18": (7, 7)}.get(name, layers[0].kernel_size))
    assert sizes[True][0] == 32
    assert sizes[False][0] < 32
    if name != "efficientnet_v2_s":  # no pool behind it, but a second strided convolution
        assert sizes[True][1] == 32


@pytest.mark.parametrize(("size", "stride"), [(64, 1), (65, 2)])
def test_small_stem_is_for_64_pixels_and_less(size: int, stride: int) -> None:
    net = build(image_size=size)
    assert net.backbone.conv1.stride == (stride, stride)
    assert isinstance(net.backbone.maxpool, nn.Identity if stride == 1 else nn.MaxPool2d)


@pytest.mark.parametrize("name", ["convnext_tiny", "swin_t"])
def test_patch_embeddings_keep_their_stride(name: str) -> None:
    first = next(m for m in build(name, small_stem=True).modules() if isinstance(m, nn.Conv2d))
    assert first.stride == first.kernel_size == (4, 4)


def test_in_channels_is_one_or_three() -> None:
    with pytest.raises(ValueError, match=r"in_channels \(4\) must be 1 or 3"):
        build(in_channels=4)
