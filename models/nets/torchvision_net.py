"""Any torchvision classification backbone with a head of our own.

The backbone keeps its published layers; its last linear layer gives way to Linear, ReLU, Dropout, Linear. Detection,
segmentation, video and quantized models are not covered. Auxiliary heads (GoogLeNet, Inception) are dropped.
"""

import difflib
import re
import textwrap
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import GoogLeNet, Inception3

from models.nets.pretrained import load_matching, pretrained_weights_wanted, read_state_dict

SMALL_IMAGE = 64


class TorchvisionNet(nn.Module):
    """Images (B, C, H, W) to logits (B, num_classes).

    Args:
        name: Backbone as torchvision names it, e.g. `resnet18`, `efficientnet_v2_s`, `vit_b_16`, `convnext_tiny`.
        num_classes: Number of classes K.
        in_channels: 1 or 3. A pretrained first layer is summed over its colours for 1.
        image_size: Height and width in pixels.
        pretrained: Weights to start from: a torchvision name (`DEFAULT`, `IMAGENET1K_V1`, downloaded once), or a file:
            torchvision's .pth, or a checkpoint of ours, whose head may have other classes. None: random weights.
        head_dim: Width of the head's hidden layer.
        dropout: Dropout of the head.
        small_stem: Keep the resolution in the first layer: stride 1, a 3x3 kernel (a wider pretrained one is shrunk),
            and no max-pool behind it. None: for inputs of 64 px and less.

    Raises:
        ValueError: Where `name` is no torchvision classifier, or the weights can't be had; it says what to do.
    """

    def __init__(
        self,
        *,
        name: str = "resnet18",
        num_classes: int,
        in_channels: int,
        image_size: int,
        pretrained: str | None = None,
        head_dim: int = 256,
        dropout: float = 0.2,
        small_stem: bool | None = None,
    ) -> None:
        super().__init__()
        if in_channels not in (1, 3):
            raise ValueError(f"in_channels ({in_channels}) must be 1 or 3")
        published, state = None, None
        if pretrained and pretrained_weights_wanted():
            if Path(pretrained).suffix and "_Weights." not in pretrained:
                state = read_state_dict(pretrained)
            else:
                published = pretrained
        ours = state is not None and any(key.startswith("backbone.") for key in state)
        self.backbone = build_backbone(name, image_size=image_size, weights=published)
        if state is not None and not ours:
            load_published(self.backbone, state, source=str(pretrained))
        self.BLOCKS = repeated_blocks(self.backbone)
        feature_dim = replace_last_layer(self.backbone)
        adapt_stem(
            self.backbone,
            in_channels=in_channels,
            small=image_size <= SMALL_IMAGE if small_stem is None else small_stem,
            keep_weights=published is not None or (state is not None and not ours),
        )
        self.head = nn.Sequential(
            nn.Linear(feature_dim, head_dim),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(head_dim, num_classes),
        )
        if state is not None and ours:
            fresh = load_matching(self, state)
            if fresh:
                warnings.warn(
                    f"{pretrained}: the backbone is loaded; freshly initialised: {', '.join(fresh)}",
                    stacklevel=2,
                )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        return self.head(self.backbone(images))

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Groups of the backbone's modules from input to output; a bare layer goes with the one before it."""
        children = list(self.backbone.children())
        largest = max(children, key=_num_parameters)
        if _num_parameters(largest) > 0.6 * _num_parameters(self.backbone) and len(list(largest.children())) > 1:
            children = [part for child in children for part in (_expand(child) if child is largest else [child])]
        stages: list[list[nn.Module]] = []
        previous_is_bare = False
        for child in children:
            if not _num_parameters(child):
                continue
            bare = not list(child.children())
            if stages and bare and previous_is_bare:
                stages[-1].append(child)
            else:
                stages.append([child])
            previous_is_bare = bare
        return stages


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _expand(module: nn.Module) -> list[nn.Module]:
    """A module's children; one more level where a single child holds nearly all (a ViT's encoder and its layers)."""
    parts = []
    for child in module.children():
        if _num_parameters(child) > 0.9 * _num_parameters(module) and isinstance(child, nn.Sequential):
            parts += list(child.children())
        else:
            parts.append(child)
    return parts


def build_backbone(name: str, *, image_size: int, weights: str | None = None) -> nn.Module:
    """A torchvision classifier by name, with published weights where asked for, without auxiliary heads."""
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name!r} is not a torchvision classifier{hint} (all: torchvision.models.list_models())")
    options: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = weights is None
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name.startswith("maxvit_"):
        options["input_size"] = (image_size, image_size)
    try:
        backbone = torchvision.models.get_model(name, weights=weights, **options)
    except KeyError as error:
        enum = torchvision.models.get_model_weights(name)
        raise ValueError(f"{name} has no weights {weights!r}; it has {[w.name for w in enum]}") from error
    except (URLError, OSError) as error:
        url = torchvision.models.get_model_weights(name)[str(weights).rpartition(".")[2]].url
        raise ValueError(
            f"the weights {weights!r} of {name} could not be downloaded ({error}). Fetch {url} on a machine with a "
            "network and pass it as --model.net.pretrained FILE, or train from scratch: --model.net.pretrained null"
        ) from error
    except (AssertionError, ValueError) as error:  # nets of a fixed image size, before anything is downloaded
        raise ValueError(f"{name} refuses image_size ({image_size}): {str(error).splitlines()[0]}") from error
    if hasattr(backbone, "aux_logits"):
        backbone.aux_logits = False
        for head in ("AuxLogits", "aux1", "aux2"):
            if hasattr(backbone, head):
                setattr(backbone, head, None)
    return backbone


def load_published(backbone: nn.Module, state: dict[str, Tensor], *, source: str) -> None:
    """Load a torchvision state dict into an untouched backbone, as torchvision would: auxiliary heads are left out, and
    the names of older files (DenseNet, ViT, a BatchNorm without its counter) are known.

    Raises:
        ValueError: Where names or shapes differ; `source` and the first of them are named.
    """
    for key in list(state):  # in place, since `state` carries the version of the format
        if key.startswith(("AuxLogits.", "aux1.", "aux2.")):
            del state[key]
        elif (renamed := re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", key)) != key:
            state[renamed] = state.pop(key)
    try:
        backbone.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{source} does not fit: {textwrap.shorten(str(error), 400)}") from error


def repeated_blocks(backbone: nn.Module) -> tuple[type[nn.Module], ...]:
    """Outermost torchvision classes that occur more than once: BasicBlock, MBConv, EncoderBlock, ..."""
    classes = Counter(type(module) for module in backbone.modules() if _is_block(module))
    repeated = {cls for cls, count in classes.items() if count > 1}
    outermost: list[type[nn.Module]] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if type(child) not in repeated:
                visit(child)
            elif type(child) not in outermost:
                outermost.append(type(child))

    visit(backbone)
    return tuple(outermost)


def _is_block(module: nn.Module) -> bool:
    # a layer with its norm (BasicConv2d, PatchMerging) is no block, nor are containers of blocks, which repeat too
    layers = sum(isinstance(part, nn.Conv2d | nn.Linear) for part in module.modules())
    is_container = type(module).__name__ in ("AnyStage", "_DenseBlock")
    return type(module).__module__.startswith("torchvision.models") and layers > 1 and not is_container


def replace_last_layer(backbone: nn.Module) -> int:
    """Take off the layer that makes the classes; returns the width F of the features (B, F) that are left."""
    if isinstance(backbone, torchvision.models.SqueezeNet):  # a convolution makes the classes here
        backbone.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return 512
    name, last = [(name, module) for name, module in backbone.named_modules() if isinstance(module, nn.Linear)][-1]
    backbone.set_submodule(name, nn.Identity())
    return last.in_features


def adapt_stem(backbone: nn.Module, *, in_channels: int, small: bool, keep_weights: bool) -> None:
    """Fit the first convolution to the channels, and where `small` to images that can't afford to lose resolution.

    A strided first convolution of up to 7x7 becomes 3x3 with stride 1, and the max-pool right behind it goes. Patch
    embeddings (ViT, Swin, ConvNeXt), whose stride is their kernel, keep theirs. What is built depends on no weights, so
    that a checkpoint fits whether its net was pretrained or not; `keep_weights` says that they are worth adapting.
    """
    name, conv = next((name, m) for name, m in backbone.named_modules() if isinstance(m, nn.Conv2d))
    kernel, stride, padding = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    if small and 1 < stride < kernel <= 7:
        kernel, stride, padding = 3, 1, 1
        if (pool := _pool_behind(backbone, name)) is not None:
            backbone.set_submodule(pool, nn.Identity())
    if isinstance(backbone, GoogLeNet | Inception3):  # they rescale colours from ImageNet's figures to their own
        backbone.transform_input = in_channels == 3
    if in_channels == conv.in_channels and (kernel, stride) == (conv.kernel_size[0], conv.stride[0]):
        return
    fitted = nn.Conv2d(
        in_channels, conv.out_channels, kernel, stride=stride, padding=padding, bias=conv.bias is not None
    )
    if kernel == conv.kernel_size[0] or keep_weights:
        weight = conv.weight.data
        if in_channels == 1:  # a grey image shown to three summed colour filters gives what the colour net saw in it
            weight = weight.sum(dim=1, keepdim=True)
        if kernel != conv.kernel_size[0]:  # resized as the image is, its sum kept
            scale = (conv.kernel_size[0] / kernel) ** 2
            weight = F.interpolate(weight, size=(kernel, kernel), mode="bilinear", antialias=True) * scale
        fitted.weight.data.copy_(weight)
        if fitted.bias is not None and conv.bias is not None:
            fitted.bias.data.copy_(conv.bias.data)
    else:
        nn.init.kaiming_normal_(fitted.weight, mode="fan_out", nonlinearity="relu")
    backbone.set_submodule(name, fitted)


def _pool_behind(backbone: nn.Module, first: str) -> str | None:
    """Name of the max-pool between the convolution `first` and the next one."""
    names = dict(backbone.named_modules())
    for name in list(names)[list(names).index(first) + 1 :]:
        if isinstance(names[name], nn.Conv2d):
            return None
        if isinstance(names[name], nn.MaxPool2d):
            return name
    return None
