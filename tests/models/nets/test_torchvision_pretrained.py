"""Pretrained weights: files of torchvision, checkpoints of ours, names."""

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import nn

from models.nets.pretrained import without_pretrained_weights
from models.nets.torchvision_net import TorchvisionNet, build_backbone


def build(name: str = "resnet18", **options: Any) -> TorchvisionNet:
    return TorchvisionNet(**({"name": name, "num_classes": 5, "in_channels": 3, "image_size": 32} | options))


def published(path: Path, name: str = "resnet18", **options: Any) -> nn.Module:
    """A torchvision net with moved statistics, and its state dict in `path`."""
    torch.manual_seed(1)
    net = torchvision.models.get_model(name, **options)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    torch.save(net.state_dict(), path)
    return net.eval()


def features(net: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What torchvision's own net feeds to its last layer."""
    *_, last = (module for module in net.modules() if isinstance(module, nn.Linear))
    caught = []
    handle = last.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        net.eval()(images)
    handle.remove()
    return caught[0]


# --- Pretrained: torchvision's files


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 65),
        ("efficientnet_b0", 65),
        ("mobilenet_v3_small", 65),
        ("convnext_tiny", 32),
        ("swin_t", 32),
        ("densenet121", 65),
        ("shufflenet_v2_x0_5", 65),
        ("mnasnet0_5", 65),
        ("googlenet", 65),
        ("inception_v3", 75),
    ],
)
def test_a_file_of_torchvision_gives_torchvision_features(name: str, size: int, tmp_path: Path) -> None:
    auxiliary = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}  # quicker, and has aux heads
    oracle = published(tmp_path / "net.pth", name, **auxiliary)
    if auxiliary:
        oracle.transform_input = True  # as torchvision sets it for its weights
    net = build(name, image_size=size, small_stem=False, pretrained=str(tmp_path / "net.pth")).eval()
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(net.backbone(images), features(oracle, images))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 65),
        ("efficientnet_b0", 65),
        ("convnext_tiny", 32),
        ("swin_t", 32),
        ("squeezenet1_1", 65),  # its first convolution has no padding
    ],
)
def test_grey_sees_what_colour_saw_in_a_grey_image(name: str, size: int, tmp_path: Path) -> None:
    published(tmp_path / "net.pth", name)
    options = {"image_size": size, "small_stem": False, "pretrained": str(tmp_path / "net.pth")}
    colour, grey = build(name, **options).eval(), build(name, in_channels=1, **options).eval()
    images = torch.randn(2, 1, size, size)
    with torch.no_grad():
        expected = colour.backbone(images.expand(-1, 3, -1, -1))
        torch.testing.assert_close(grey.backbone(images), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("in_channels", [1, 3])
def test_small_stem_shrinks_a_pretrained_kernel_as_the_picture_is(in_channels: int, tmp_path: Path) -> None:
    oracle = published(tmp_path / "net.pth")
    smooth = nn.functional.interpolate(torch.randn(63, 3, 3, 3), size=(7, 7), mode="bilinear")  # as trained ones are
    oracle.conv1.weight.data = torch.cat([torch.ones(1, 3, 7, 7), smooth])
    torch.save(oracle.state_dict(), tmp_path / "net.pth")
    net = build(in_channels=in_channels, pretrained=str(tmp_path / "net.pth"))
    kernel = net.backbone.conv1.weight.detach()
    assert kernel.shape == (64, in_channels, 3, 3)
    torch.testing.assert_close(kernel[0], torch.full_like(kernel[0], 49 / 9 * (3 if in_channels == 1 else 1)))
    # it answers to a grey picture as the wide one does to the same picture, enlarged
    x = torch.linspace(-1, 1, 31)
    picture = torch.exp(-8 * (x[:, None] ** 2 + (x[None] - 0.2) ** 2))[None, None].expand(1, 3, -1, -1)
    large = nn.functional.interpolate(picture, scale_factor=7 / 3, mode="bilinear")
    wide = nn.functional.conv2d(large, oracle.conv1.weight.detach(), padding=3)
    wide = nn.functional.interpolate(wide, size=(31, 31), mode="bilinear", antialias=True)
    narrow = nn.functional.conv2d(picture[:, :in_channels], kernel, padding=1)
    assert torch.corrcoef(torch.stack([wide.flatten(), narrow.flatten()]))[0, 1] > 0.98
    assert (narrow.std() / wide.std()).item() == pytest.approx(1, abs=0.1)
    assert torch.equal(net.backbone.layer1[0].conv1.weight, oracle.layer1[0].conv1.weight)


def test_older_files_are_known(tmp_path: Path) -> None:
    # ResNet's published file predates BatchNorm's counter, DenseNet's has dots in its names
    oracle = published(tmp_path / "net.pth")
    old = OrderedDict((k, v) for k, v in oracle.state_dict().items() if "num_batches_tracked" not in k)
    torch.save(old, tmp_path / "old.pth")
    net = build(pretrained=str(tmp_path / "old.pth"))
    assert torch.equal(net.backbone.layer4[1].bn2.running_var, oracle.layer4[1].bn2.running_var)

    oracle = published(tmp_path / "net.pth", "densenet121")
    state = oracle.state_dict()
    old = OrderedDict((re.sub(r"(denselayer\d+\.\w+)([12])\.", r"\1.\2.", k), v) for k, v in state.items())
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "old.pth")
    net = build("densenet121", pretrained=str(tmp_path / "old.pth"))
    block = "denseblock4.denselayer16.conv2.weight"
    assert torch.equal(net.backbone.features.get_submodule(block[:-7]).weight, state["features." + block])


@pytest.mark.slow
def test_older_files_of_vit_are_known(tmp_path: Path) -> None:
    state = published(tmp_path / "net.pth", "vit_b_16", image_size=32).state_dict()
    metadata = state._metadata
    old = OrderedDict(
        (k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."), v) for k, v in state.items()
    )
    assert len(old.keys() - state.keys()) == 48
    old._metadata = OrderedDict((k, v | {"version": 1} if k.endswith("mlp") else v) for k, v in metadata.items())
    torch.save(old, tmp_path / "old.pth")
    net = build("vit_b_16", pretrained=str(tmp_path / "old.pth"))
    assert torch.equal(
        net.backbone.encoder.layers[11].mlp[3].weight, state["encoder.layers.encoder_layer_11.mlp.3.weight"]
    )


def test_a_file_of_another_net_is_refused(tmp_path: Path) -> None:
    published(tmp_path / "net.pth", "resnet34")
    with pytest.raises(ValueError, match=r"net\.pth does not fit: .*layer1\.2\.conv1\.weight"):
        build("resnet18", pretrained=str(tmp_path / "net.pth"))


def test_a_file_with_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18(num_classes=7).state_dict(), tmp_path / "net.pth")
    with pytest.raises(ValueError, match=r"net\.pth does not fit: .*fc\.weight"):
        build("resnet18", pretrained=str(tmp_path / "net.pth"))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    published(path, "shufflenet_v2_x0_5")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"net\.pth is not a readable checkpoint"):
        build("shufflenet_v2_x0_5", pretrained=str(path))


# --- Pretrained: checkpoints of ours


def checkpoint_of(net: nn.Module, path: Path) -> str:
    torch.save({"state_dict": {f"net.{name}": value for name, value in net.state_dict().items()}, "epoch": 3}, path)
    return str(path)


SMALL = {"name": "shufflenet_v2_x0_5", "in_channels": 1}


def test_a_checkpoint_of_ours_with_other_classes(tmp_path: Path) -> None:
    source = build(**SMALL, num_classes=5)
    with torch.no_grad():
        source.train()(torch.randn(4, 1, 32, 32))
    path = checkpoint_of(source, tmp_path / "best.ckpt")
    with pytest.warns(UserWarning, match=r"best\.ckpt: the backbone is loaded; .*: head\.3\.weight, head\.3\.bias$"):
        net = build(**SMALL, num_classes=7, pretrained=path)
    for name, value in net.state_dict().items():
        if not name.startswith("head.3"):
            assert torch.equal(value, source.state_dict()[name]), name
    assert net.head[3].weight.shape == (7, 256)


def test_a_checkpoint_of_ours_with_the_same_classes_is_loaded_whole(tmp_path: Path) -> None:
    source = build(**SMALL)
    path = checkpoint_of(source, tmp_path / "best.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = build(**SMALL, pretrained=path)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in net.state_dict().items())


def test_any_other_mismatch_of_a_checkpoint_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = checkpoint_of(build(**SMALL), tmp_path / "best.ckpt")
    with pytest.raises(ValueError, match=r"conv1\.0\.weight is \(24, 1, 3, 3\) in the file and \(24, 3, 3, 3\) in the"):
        build(**(SMALL | {"in_channels": 3}), pretrained=path)
    with pytest.raises(ValueError, match=r"do not fit TorchvisionNet: .* is not in the net"):
        build("mobilenet_v3_small", in_channels=1, pretrained=path)


@pytest.mark.parametrize("name", ["resnet18", "googlenet"])
def test_a_net_is_built_alike_with_and_without_its_pretrained_weights(name: str, tmp_path: Path) -> None:
    # or else the checkpoint of a pretrained net could not be loaded
    published(tmp_path / "net.pth", name, **({"init_weights": False} if name == "googlenet" else {}))
    for in_channels in (1, 3):
        options = {"in_channels": in_channels, "pretrained": str(tmp_path / "net.pth")}
        trained = build(name, **options).eval()
        with without_pretrained_weights():
            again = build(name, **options).eval()
        again.load_state_dict(trained.state_dict())
        images = torch.randn(2, in_channels, 32, 32)
        with torch.no_grad():
            assert torch.equal(again(images), trained(images))
        # and may itself be what another run starts from
        net = build(name, in_channels=in_channels, pretrained=checkpoint_of(trained, tmp_path / "ours.ckpt"))
        assert torch.equal(net.state_dict()["head.0.weight"], trained.head[0].weight)


# --- Pretrained: names


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replaces the download by a function; returns the list of the addresses that are asked for."""
    asked: list[str] = []

    def install(answer: Callable[[], Any]) -> list[str]:
        def fetch(url: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(url)
            return answer()

        monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", fetch)
        return asked

    return install


@pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1", "ResNet18_Weights.IMAGENET1K_V1"])
def test_weights_by_name(weights: str, tmp_path: Path, download: Callable[..., list[str]]) -> None:
    oracle = published(tmp_path / "net.pth")
    asked = download(lambda: torch.load(tmp_path / "net.pth"))
    net = build(image_size=65, pretrained=weights).eval()
    assert asked == [torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url]
    images = torch.randn(2, 3, 65, 65)
    with torch.no_grad():
        torch.testing.assert_close(net.backbone(images), features(oracle, images))


@pytest.mark.parametrize("weights", ["DEFAULT", "ResNet18_Weights.IMAGENET1K_V1"])
@pytest.mark.parametrize("error", [URLError("no network"), ConnectionResetError("reset"), TimeoutError("slow")])
def test_without_a_network_the_error_says_what_to_do(
    weights: str, error: Exception, download: Callable[..., list[str]]
) -> None:
    def fail() -> None:
        raise error

    download(fail)
    url = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url
    with pytest.raises(
        ValueError, match=f"could not be downloaded .*Fetch {url} .*--model.net.pretrained FILE, or .*null"
    ):
        build(pretrained=weights)


def test_the_suggested_file_loads(tmp_path: Path, download: Callable[..., list[str]]) -> None:
    # what the error above sends the user for: the file as torchvision publishes it
    oracle = published(tmp_path / "resnet18-f37072fd.pth")
    net = build(pretrained=str(tmp_path / "resnet18-f37072fd.pth"))
    assert torch.equal(net.backbone.layer1[0].conv1.weight, oracle.layer1[0].conv1.weight)


def test_without_pretrained_weights_nothing_is_fetched(tmp_path: Path, download: Callable[..., list[str]]) -> None:
    asked = download(lambda: pytest.fail("fetched"))
    with without_pretrained_weights():
        for weights in ("DEFAULT", "BOGUS", str(tmp_path / "gone.pth")):
            assert build(pretrained=weights)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    assert asked == []


@pytest.mark.parametrize("weights", ["IMAGENET1K_V2", "default", "ResNet50_Weights.DEFAULT"])
def test_weights_that_do_not_exist_are_refused_with_those_that_do(weights: str) -> None:
    with pytest.raises(ValueError, match=rf"resnet18 has no weights '{weights}'; it has \['IMAGENET1K_V1'\]"):
        build(pretrained=weights)


@pytest.mark.parametrize(("name", "hint"), [("resnet81", "; did you mean 'resnet18'?"), ("efficientnet_v2s", "_v2_s'")])
def test_a_misspelled_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"'{name}' is not a torchvision classifier; did you mean")
    ) as caught:
        build(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "fcn_resnet50", "r3d_18", "quantized_resnet18", "xyz"])
def test_what_is_no_classifier_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not a torchvision classifier"):
        build(name)


@pytest.mark.parametrize(
    ("name", "size", "weights", "reason"),
    [
        ("vit_b_16", 40, None, "indivisible by patch size"),
        ("vit_b_16", 32, "DEFAULT", "expected value 224 but got 32"),
        ("maxvit_t", 32, None, "not divisible by partition size 7"),
    ],
)
def test_a_net_of_fixed_image_sizes_says_so_before_a_download(
    name: str, size: int, weights: str | None, reason: str, download: Callable[..., list[str]]
) -> None:
    asked = download(lambda: pytest.fail("fetched"))
    with pytest.raises(ValueError, match=rf"{name} refuses image_size \({size}\): .*{reason}"):
        build(name, image_size=size, pretrained=weights)
    assert asked == []


def test_auxiliary_heads_are_dropped() -> None:
    for name in ("googlenet", "inception_v3"):
        backbone = build_backbone(name, image_size=75)
        assert not [key for key in backbone.state_dict() if key.lower().startswith("aux")]
        assert isinstance(backbone.train()(torch.zeros(2, 3, 75, 75)), torch.Tensor)
