"""How good generated images are: FID, KID, precision and recall, against what the run was trained on."""

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from lightning_app.image_features import Features, look_at_all
from lightning_app.run_folder import datamodule_of, folder_of

# N images, C channels, H height, W width, F features

NEIGHBOURS = 3


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
        nearest = min(NEIGHBOURS, len(centres) - 1) + 1  # the first is itself
        reach = torch.cat([torch.cdist(part, centres).kthvalue(nearest, dim=1).values for part in centres.split(1024)])
        within = [(torch.cdist(part, centres) <= reach).any(1) for part in points.split(1024)]
        return float(torch.cat(within).float().mean())

    real, made = real.double(), made.double()
    return covered(made, real), covered(real, made)


def reference_features(features: Features, checkpoint: str | Path, most: int = 10_000) -> Tensor:
    """Features (N, F) of what a run was trained on, kept in the run's folder so that the next comparison has them.

    Args:
        features: The network.
        checkpoint: A checkpoint of the run, whose configuration tells the data.
        most: Images N, evenly spaced among all if there are more.

    Raises:
        ValueError: The configuration is not where the run left it.
    """
    data, file = datamodule_of(checkpoint), folder_of(checkpoint) / "reference_features.pt"
    dataset = data.plain("train")
    known = f"{features.name}; {len(dataset)} images, at most {most}"
    if file.exists():
        kept = torch.load(file, weights_only=True)
        if kept["of"] == known:
            return kept["features"]
    step = max(1, math.ceil(len(dataset) / most))
    chosen = Subset(dataset, range(0, len(dataset), step))
    loader = DataLoader(chosen, batch_size=256, collate_fn=data.collate_fn)
    mean, std = (torch.tensor(figures).view(-1, 1, 1) for figures in (data.mean, data.std))
    progress = tqdm(loader, desc="training images", unit="batch", file=sys.stderr)
    seen, _ = look_at_all(features, (images * std + mean for images, _ in progress))
    torch.save({"of": known, "features": seen}, file)
    return seen
