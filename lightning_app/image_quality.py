"""How good generated images are: FID, KID, precision and recall on the features of one of our own classifiers.

A score depends on the network that gives the features, so that the report names it by its hash: compare like with like.
"""

import hashlib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_app.checkpoints import load_task
from models import VisionClassifier

# N images, C channels, H height, W width, F features, K classes

NEIGHBOURS = 3


class ClassifierFeatures:
    """Images (N, C, H, W) in [0, 1] to what the last linear layer of a vision classifier sees, (N, F).

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
        self.name = f"{Path(path)}, sha256 {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"

    @torch.inference_mode()
    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, F) and probabilities (N, K)."""
        mean, std = (torch.tensor(figures).view(-1, 1, 1) for figures in (self.task.mean, self.task.std))
        if images.shape[1] != len(mean):
            raise ValueError(f"images have {images.shape[1]} channels and the classifier knows {len(mean)}")
        seen: list[Tensor] = []
        hook = self.last.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
        try:
            logits = self.task((images - mean) / std)
        finally:
            hook.remove()
        return seen[0].flatten(1), logits.softmax(-1)


class Given(nn.Module):
    """Hands features through, for metrics that expect a net."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def compare(real: Tensor, made: Tensor) -> dict[str, float]:
    """Scores of features (N, F) of generated images against those of real ones.

    FID (Heusel et al., arXiv 1706.08500) and KID (Binkowski et al., arXiv 1801.01401) by torchmetrics; precision and
    recall by `precision_and_recall`.
    """
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.kid import KernelInceptionDistance

    subset = min(100, len(real), len(made))
    fid: Any = FrechetInceptionDistance(feature=Given(real.shape[1]), input_img_size=(1, 1, 1))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*will save all extracted features")  # which are here already
        kid: Any = KernelInceptionDistance(feature=Given(real.shape[1]), subsets=50, subset_size=subset)
    for metric in (fid, kid):
        metric.update(real, real=True)
        metric.update(made, real=False)
    precision, recall = precision_and_recall(real, made)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # KID draws its subsets
        distance = float(kid.compute()[0])
    return {"fid": float(fid.compute()), "kid": distance, "precision": precision, "recall": recall}


def precision_and_recall(real: Tensor, made: Tensor) -> tuple[float, float]:
    """Share of generated features near a real one, and of real ones near a generated one, near being within the reach
    of its third neighbour (Kynkäänniemi et al., arXiv 1904.06991).
    """

    def covered(points: Tensor, centres: Tensor) -> float:
        among = torch.cdist(centres, centres).fill_diagonal_(torch.inf)
        reach = among.kthvalue(min(NEIGHBOURS, len(centres) - 1), dim=1).values
        return float((torch.cdist(points, centres) <= reach).any(1).float().mean())

    real, made = real.double(), made.double()
    return covered(made, real), covered(real, made)


def look_at_all(features: ClassifierFeatures, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Features (N, F) and predicted classes (N,) of batches of images."""
    seen = [features.look(images) for images in batches]
    return torch.cat([part for part, _ in seen]), torch.cat([part.argmax(1) for _, part in seen])


def training_images(checkpoint: str | Path) -> list[Tensor]:
    """Batches (N, C, H, W) in [0, 1] of what a run was trained on, by the configuration that it left, not augmented.

    Raises:
        ValueError: The configuration is not where the run left it.
    """
    from lightning_app.cli import build

    config = Path(checkpoint).resolve().parents[1] / "config.yaml"
    if not config.exists():
        raise ValueError(f"--evaluate reads the data's configuration from {config}, which is not there")
    data: Any = build(["validate", "--config", str(config), "--trainer.logger=false"]).datamodule
    data.setup("fit")
    dataset = data.datasets["train"]
    dataset.transform = data.eval_transform()
    mean, std = (torch.tensor(figures).view(-1, 1, 1) for figures in (data.mean, data.std))
    loader = DataLoader(dataset, batch_size=256, collate_fn=data.collate_fn)
    return [images * std + mean for images, _ in loader]
