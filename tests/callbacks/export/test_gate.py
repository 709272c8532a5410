"""The gate lets a true export pass, and catches those that are wrong in the ways that exports go wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from callbacks.export import formats, torchscript
from callbacks.export.deliverable import Deliverable, Positional, TensorSpec
from callbacks.export.gate import Verdict, check, collect
from callbacks.export.torchscript import deprecated
from models.nets.sequence_classifier import SequenceClassifier
from models.nets.torchvision_net import TorchvisionNet


def images() -> tuple[Deliverable, list[Any]]:
    """A net of images with BatchNorm and dropout, and batches of 80 images."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3)
    )
    net(torch.randn(64, 1, 8, 8) * 3 + 1)  # statistics that differ from a batch's own
    given = Deliverable(
        task="vision",
        net=Positional(net).eval().requires_grad_(False),
        inputs=[TensorSpec("images", "float32", ("batch", 1, 8, 8), "")],
        outputs=[TensorSpec("logits", "float32", ("batch", 3), "")],
        facts={},
        to_inputs=lambda batch: {"images": batch[0]},
        metric="accuracy",
        score=lambda outputs, batches: float((torch.cat(outputs).argmax(-1) == 0).float().mean()),
    )
    return given, [(torch.randn(40, 1, 8, 8), torch.zeros(40, dtype=torch.int64)) for _ in range(2)]


def texts() -> tuple[Deliverable, list[Any]]:
    """A net of tokens and masks, and batches of 80 padded rows of several lengths."""
    torch.manual_seed(0)
    net = SequenceClassifier(vocab_size=9, num_classes=3, max_length=32, depth=1, embed_dim=16, num_heads=2)
    for parameter in net.parameters():  # blocks start as no change
        nn.init.normal_(parameter, std=0.3)
    names = ["input_ids", "attention_mask"]
    given = Deliverable(
        task="text",
        net=Positional(net).eval().requires_grad_(False),
        inputs=[TensorSpec(name, "int64", ("batch", "length"), "") for name in names],
        outputs=[TensorSpec("logits", "float32", ("batch", 3), "")],
        facts={},
        to_inputs=lambda batch: {name: batch[name] for name in names},
        metric="accuracy",
        score=lambda outputs, batches: float((torch.cat(outputs).argmax(-1) == 0).float().mean()),
        limits={"length": 32},
    )
    batches = []
    for length in (12, 30):
        mask = (torch.arange(length) < torch.randint(1, length + 1, (40, 1))).long()
        tokens = torch.randint(1, 9, (40, length)) * mask
        batches.append({"input_ids": tokens, "attention_mask": mask, "labels": torch.zeros(40, dtype=torch.int64)})
    return given, batches


def judged(given: Deliverable, batches: list[Any], name: str, path: Path, *, seconds: float = 0) -> Verdict:
    return check(given, name, path, collect(given, batches), seconds=seconds)


@pytest.mark.parametrize("make", [images, texts])
@pytest.mark.parametrize("name", ["onnx", "torchscript"])
def test_a_true_export_passes(make: Any, name: str, tmp_path: Path) -> None:
    given, batches = make()
    before = {key: tensor.clone() for key, tensor in given.net.state_dict().items()}
    formats.FORMATS[name].export(given, tmp_path / "model")
    verdict = judged(given, batches, name, tmp_path / "model", seconds=0.01)
    assert verdict.problem is None
    assert verdict.samples == 64
    assert verdict.difference < verdict.tolerance
    assert verdict.score == verdict.artifact_score
    assert all(times is not None and min(times) > 0 for times in verdict.milliseconds.values())
    assert verdict.as_dict()["passed"]
    assert all(torch.equal(before[key], tensor) for key, tensor in given.net.state_dict().items())


def test_a_net_that_was_left_in_train_mode_is_caught(tmp_path: Path) -> None:
    given, batches = images()
    with deprecated():
        torch.jit.save(torch.jit.trace(given.net.train(), torch.randn(2, 1, 8, 8), check_trace=False), tmp_path / "a")
    given.net.eval()
    problem = judged(given, batches, "torchscript", tmp_path / "a").problem
    assert problem is not None
    assert problem.startswith("differs by ")


def test_a_batch_size_that_was_baked_in_is_caught(tmp_path: Path) -> None:
    given, batches = images()
    torch.export.save(torch.export.export(given.net, (torch.zeros(8, 1, 8, 8),)), tmp_path / "a.pt2")
    problem = judged(given, batches, "torch_export", tmp_path / "a.pt2").problem
    assert problem is not None
    assert problem.startswith("fails for images (3, 1, 8, 8): ")


def test_inputs_in_the_wrong_order_are_caught(tmp_path: Path) -> None:
    given, batches = texts()

    class Swapped(nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return given.net(attention_mask, input_ids)

    swapped = Deliverable(**(vars(given) | {"net": Swapped().eval()}))
    formats.export_torchscript(swapped, tmp_path / "a")
    problem = judged(given, batches, "torchscript", tmp_path / "a").problem
    assert problem is not None
    assert problem.startswith("differs by ")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    given, batches = images()
    (tmp_path / "a.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"a\.onnx can't be loaded by its runtime"):
        judged(given, batches, "onnx", tmp_path / "a.onnx")


def test_too_few_samples_are_refused(tmp_path: Path) -> None:
    given, batches = images()
    with pytest.raises(ValueError, match="has 40 samples for the gate; an export is checked on 64"):
        judged(given, batches[:1], "onnx", tmp_path / "a")


def test_formats_that_cannot_be_made_are_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    formats.check_formats(["torchscript", "torch_export"])
    with pytest.raises(ValueError, match="there is no format 'onx': choose from onnx"):
        formats.check_formats(["onx"])
    monkeypatch.setattr(formats.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"onnx needs the package onnx: python -m pip install .*\[export\]"):
        formats.check_formats(["onnx"])
    monkeypatch.setattr(formats.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=r"aotinductor needs a C\+\+ compiler"):
        formats.check_formats(["aotinductor"])


def test_backbones_of_torchvision_are_scripted(tmp_path: Path) -> None:
    net = TorchvisionNet(name="resnet18", num_classes=3, in_channels=1, image_size=16).eval()
    torchscript.script(net, tmp_path / "a")
    images = torch.rand(2, 1, 16, 16)
    assert_close(torchscript.load(tmp_path / "a")(images), net(images))
    assert len(net.stages) > 1


def test_a_net_that_cannot_be_scripted_says_what_to_do(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor, **more: Tensor) -> Tensor:
            return x

    given, _ = images()
    formats.export_torchscript_script(given, tmp_path / "a")
    given.net.net = Odd().eval()
    with pytest.raises(ValueError, match=r"Odd can't be scripted .*use the format torchscript, which traces"):
        formats.export_torchscript_script(given, tmp_path / "a")
