"""Networks whose features images are compared by: one of our own classifiers, or InceptionV3."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightning_app.checkpoints import load_task
from models import VisionClassifier

# N images, C channels, H height, W width, F features

INCEPTION = "inception"


class Features(Protocol):
    """What looks at images.

    Attributes:
        name: The network, with the hash of its weights: scores of two networks do not compare.
        channels: Channels C that it sees; None: 1 or 3.
        class_names: Names of the classes that it recognises, if any.
    """

    name: str
    channels: int | None
    class_names: list[str]

    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, F) and classes (N,) of images (N, C, H, W) in [0, 1]; class -1 where it recognises none."""


class ClassifierFeatures:
    """What the last linear layer of a vision classifier sees; see `Features`.

    Args:
        path: A checkpoint of a VisionClassifier.

    Raises:
        ValueError: It is of another task, or the net ends in no linear layer.
    """

    def __init__(self, path: str | Path) -> None:
        task: Any = load_task(path)
        if not isinstance(task, VisionClassifier):
            raise ValueError(f"{path} is of a {type(task).__name__}: features come from a vision classifier")
        self.task = task
        layers = [module for module in task.net.modules() if isinstance(module, nn.Linear)]
        if not layers:
            raise ValueError(f"the net of {path} has no linear layer to take features from")
        self.last = layers[-1]
        self.name = f"{Path(path)}, sha256 {sha256(path)}"
        self.channels: int | None = len(task.mean)
        self.class_names = list(task.class_names)

    @torch.inference_mode()
    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(figures).view(-1, 1, 1) for figures in (self.task.mean, self.task.std))
        if images.shape[1] != len(mean):
            raise ValueError(f"images have {images.shape[1]} channels and the classifier knows {len(mean)}")
        seen: list[Tensor] = []
        hook = self.last.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
        try:
            logits = self.task((images - mean) / std)
        finally:
            hook.remove()
        return seen[0].flatten(1), logits.argmax(1)


class InceptionFeatures:
    """What FID was defined by (Heusel et al., arXiv 1706.08500): the last pooling of InceptionV3, 2,048 features, by
    torchmetrics and torch-fidelity; see `Features`.

    Args:
        path: A file of torch-fidelity's weights. None: downloaded, or as downloaded before.

    Raises:
        ValueError: A package is missing, or the weights cannot be had.
    """

    channels: int | None = None
    class_names: list[str] = []  # noqa: RUF012 (never changed)

    def __init__(self, path: str | Path | None = None) -> None:
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3
            from torchmetrics.image.fid import NoTrainInceptionV3
        except ImportError as error:
            raise ValueError(
                "InceptionV3's features need torch-fidelity: python -m pip install -e '.[quality]'"
            ) from error
        file = Path(path or Path(torch.hub.get_dir()) / "checkpoints" / Path(URL_INCEPTION_V3).name)
        try:
            if not file.exists() and path is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                torch.hub.download_url_to_file(URL_INCEPTION_V3, str(file), hash_prefix="6726825d")
            torch.load(file, weights_only=True, mmap=False)  # which torch-fidelity reads without this caution
            self.net = NoTrainInceptionV3("inception-v3-compat", ["2048"], str(file))
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"InceptionV3's weights cannot be had from {file} ({reason}): fetch {URL_INCEPTION_V3} where there is "
                "a network and put it there, or compare by a classifier's features: --evaluate CLASSIFIER.ckpt"
            ) from error
        self.name = f"InceptionV3, sha256 {sha256(file)}"

    @torch.inference_mode()
    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = (images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
        parts = [self.net(part) for part in pixels.split(32)]  # a picture is enlarged to 299 pixels: much memory
        return torch.cat(parts), torch.full((len(images),), -1)


def load_features(path: str) -> Features:
    """The network that `path` names: `inception`, a file of its weights (.pth), or a classifier's checkpoint.

    Raises:
        ValueError: It cannot be had.
    """
    if path == INCEPTION or path.endswith(".pth"):
        return InceptionFeatures(None if path == INCEPTION else path)
    return ClassifierFeatures(path)


def look_at_all(features: Features, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Features (N, F) and classes (N,) of batches of images."""
    seen = [features.look(images) for images in batches]
    return torch.cat([part for part, _ in seen]), torch.cat([classes for _, classes in seen])


def sha256(path: str | Path) -> str:
    """The first digits of a file's hash."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
