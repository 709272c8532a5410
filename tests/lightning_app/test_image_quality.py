"""Scores against closed forms and naive versions, on features and on images."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from lightning_app.cli import run
from lightning_app.image_features import ClassifierFeatures, InceptionFeatures, load_features, look_at_all
from lightning_app.image_quality import compare, precision_and_recall
from models import VisionClassifier
from models.nets.resnet9 import ResNet9


def cloud(count: int, shift: float = 0.0, scale: float = 1.0, seed: int = 0) -> Tensor:
    return shift + scale * torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def test_fid_is_the_closed_form_of_the_features_gaussians() -> None:
    real, made = cloud(500), cloud(400, shift=0.5, scale=1.5, seed=1)
    a, b = (np.cov(x.double().numpy(), rowvar=False) for x in (real, made))
    gap = real.double().mean(0) - made.double().mean(0)
    expected = float(gap @ gap) + np.trace(a + b - 2 * scipy.linalg.sqrtm(a @ b).real)
    assert compare(real, made)["fid"] == pytest.approx(expected, rel=1e-3)


def test_better_samples_score_better() -> None:
    real = cloud(400)
    near, far = compare(real, cloud(400, seed=1)), compare(real, cloud(400, shift=2.0, seed=1))
    assert near["fid"] < far["fid"]
    assert near["kid"] < far["kid"]
    assert near == compare(real, cloud(400, seed=1))
    same = compare(real, real)
    assert same["fid"] == pytest.approx(0, abs=1e-3)
    assert (same["precision"], same["recall"]) == (1.0, 1.0)


def test_precision_and_recall_are_the_naive_ones() -> None:
    real, made = cloud(40), cloud(30, shift=0.8, scale=0.6, seed=1)

    def naive(points: Tensor, centres: Tensor) -> float:
        hits = 0
        for point in points.double():
            for centre in centres.double():
                others = sorted(float((centre - other).norm()) for other in centres.double())
                if float((point - centre).norm()) <= others[3]:  # the first is itself
                    hits += 1
                    break
        return hits / len(points)

    precision, recall = precision_and_recall(real, made)
    assert precision == pytest.approx(naive(made, real))
    assert recall == pytest.approx(naive(real, made))
    assert precision > recall  # the made ones cover a smaller part


def test_features_are_what_the_last_layer_sees(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    quick = ["--model.net=ResNet9", "--model.net.widths=[4,8]", "--trainer.max_steps=1", "--test_after_fit=false"]
    assert run(["fit", "--config=configs/vision.yaml", *quick]) == 0
    features = ClassifierFeatures("logs/vision/version_0/checkpoints/last.ckpt")
    images = torch.rand(5, 1, 8, 8)
    task = features.task
    assert isinstance(task, VisionClassifier)
    assert isinstance(task.net, ResNet9)
    seen, found = features.look(images)
    with torch.inference_mode():
        logits = task((images - 0.3053) / 0.3759)
        torch.testing.assert_close(task.net.head[1](seen), logits)
        assert torch.equal(found, logits.argmax(1))
    assert seen.shape == (5, features.last.in_features)
    assert "last.ckpt, sha256 " in features.name
    together, classes = look_at_all(features, [images[:2], images[2:]])
    torch.testing.assert_close(together, seen)
    assert torch.equal(classes, found)
    with pytest.raises(ValueError, match="images have 3 channels and the classifier knows 1"):
        features.look(torch.rand(1, 3, 8, 8))


def test_inception_is_the_one_of_fid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    torch.manual_seed(0)
    weights: dict[str, Tensor] = {}
    with monkeypatch.context() as patch:  # random weights in the place of those that it downloads
        patch.setattr(FeatureExtractorInceptionV3, "load_state_dict", lambda self, _: weights.update(self.state_dict()))
        torch.save({}, tmp_path / "none.pth")
        FeatureExtractorInceptionV3("any", ["2048"], str(tmp_path / "none.pth"))
    torch.save(weights, tmp_path / "inception.pth")
    features = load_features(str(tmp_path / "inception.pth"))
    assert isinstance(features, InceptionFeatures)
    assert features.name.startswith("InceptionV3, sha256 ")
    images = torch.rand(2, 1, 299, 299)  # of the size that the net wants, so that nothing is resized
    seen, classes = features.look(images)
    oracle = FeatureExtractorInceptionV3("any", ["2048"], str(tmp_path / "inception.pth"))
    expected = oracle((images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1))[0]
    torch.testing.assert_close(seen, expected)
    assert classes.tolist() == [-1, -1]
    with pytest.raises(ValueError, match=r"weights cannot be had from .*none.pth .*--evaluate CLASSIFIER"):
        load_features(str(tmp_path / "none.pth"))
