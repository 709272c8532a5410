"""Exported denoisers, as diffusion models that sample."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from callbacks.export.formats import MOBILE_BATCH, format_of
from callbacks.export.runtimes import load
from models import DiffusionModel


class ArtifactNet(nn.Module):
    """An artifact in the place of the net that it was made from.

    Args:
        path: The artifact.
        num_classes: Classes that the net knows; 0: none.
    """

    def __init__(self, path: Path, num_classes: int) -> None:
        super().__init__()
        name = format_of(path)
        self.run, self.num_classes = load(name, path), num_classes
        self.most = MOBILE_BATCH if name == "executorch" else None

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None) -> Tensor:
        """The prediction (B, C, H, W), as of the net."""
        inputs = {"x": x, "time": time}
        if self.num_classes:
            nothing = torch.full((len(x),), self.num_classes)
            inputs["labels"] = nothing if labels is None else labels
        parts = {name: tensor.split(self.most or len(x)) for name, tensor in inputs.items()}
        made = [self.run(dict(zip(parts, part, strict=True)))[0] for part in zip(*parts.values(), strict=True)]
        return torch.cat(made)


def load_diffusion_artifact(path: str | Path) -> DiffusionModel:
    """A diffusion model around an artifact that scripts/export.py made.

    Raises:
        ValueError: The artifact or its facts are missing, or it is of another task.
    """
    artifact = Path(path)
    file = artifact.parent / f"{artifact.name.split('.')[0]}.json"
    if not artifact.exists() or not file.exists():
        raise ValueError(f"{artifact} and {file} must both be there: the folder that scripts/export.py wrote")
    facts: dict[str, Any] = json.loads(file.read_text())
    if facts["task"] != "diffusion":
        raise ValueError(f"{artifact} is of the task {facts['task']}, which makes no images: use predict.py")
    channels, size, _ = facts["image_shape"]
    return DiffusionModel(
        ArtifactNet(artifact, len(facts["class_names"])),
        class_names=facts["class_names"],
        image_size=size,
        mean=[0.0] * channels,
        std=[1.0] * channels,
        **facts["process"],
    ).eval()
