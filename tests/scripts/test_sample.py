"""From the recipe to pictures, as a user does it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision.io import read_image

from lightning_app.cli import run
from scripts.sample import main


@pytest.fixture
def checkpoint(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    argv = ["--config=configs/diffusion.yaml", "--config=configs/overlay/debug.yaml", "--model.net.widths=[8,16]"]
    assert run(["fit", *argv]) == 0
    assert "python scripts/sample.py --ckpt logs/diffusion/" in capsys.readouterr().out
    return "logs/diffusion/version_0/checkpoints/best.ckpt"


def sample(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sample.py", *argv])
    return main()


def test_one_file_an_image_and_a_grid(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [sys.executable, str(root / "scripts/sample.py"), "--ckpt", checkpoint]
    argv += ["--num", "5", "--steps", "3", "--class", "3", "--guidance", "2", "--sampler", "dpm++", "--out", "a"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "5 images in" in done.stdout
    files = sorted(path.name for path in Path("a").iterdir())
    assert files == [*(f"{index:05d}_3.png" for index in range(5)), "grid.png", "steps.png"]
    assert read_image("a/00000_3.png").shape[1:] == (8, 8)
    assert read_image("a/steps.png").shape[1:] == (4 * 50 + 2, 3 * 50 + 2)  # four images after each of three steps
    # the same images one by one, here
    assert sample(monkeypatch, *argv[2:-1], "b", "--batch_size", "1") == 0
    for name in files[:-2]:
        assert (read_image(f"a/{name}").int() - read_image(f"b/{name}").int()).abs().max() <= 1
    capsys.readouterr()

    # on the features of a classifier, against the images that the run was trained on
    quick = ["--model.net=ResNet9", "--model.net.widths=[4,8]", "--trainer.max_steps=1", "--test_after_fit=false"]
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert run(["fit", "--config=configs/vision.yaml", *quick]) == 0
    classifier = "logs/vision/version_0/checkpoints/last.ckpt"
    assert sample(monkeypatch, "--ckpt", checkpoint, "--num", "12", "--steps", "1", "--evaluate", classifier) == 0
    scores = json.loads(Path("samples/quality.json").read_text())
    assert (scores["real"], scores["samples"]) == (1259, 12)
    assert scores["fid"] > 0
    assert 0 <= scores["recognised"] <= 1
    assert "fid" in capsys.readouterr().out
    kept = Path("logs/diffusion/version_0/reference_features.pt")
    first = kept.stat().st_mtime_ns
    assert sample(monkeypatch, "--ckpt", checkpoint, "--num", "12", "--steps", "1", "--evaluate", classifier) == 0
    assert json.loads(Path("samples/quality.json").read_text())["fid"] == pytest.approx(scores["fid"], rel=1e-3)
    assert kept.stat().st_mtime_ns == first  # looked at once

    # from the first image's noise to the second's
    ends = ["--num", "2", "--steps", "2", "--class", "3", "--out", "ends"]
    assert sample(monkeypatch, "--ckpt", checkpoint, *ends) == 0
    assert sample(monkeypatch, "--ckpt", checkpoint, "--interpolate", *ends[2:-1], "way", "--num", "5") == 0
    for end, place in (("00000_3", "00000_3"), ("00001_3", "00004_3")):
        apart = read_image(f"ends/{end}.png").int() - read_image(f"way/{place}.png").int()
        assert apart.abs().max() <= 1

    for wrong, message in [
        (["--class", "eleven"], "--class eleven: the classes are 0, 1, 2"),
        (["--steps", "0"], "steps (0) must be within 1"),
        (["--sampler", "heun"], "sampler heun does not fit a net that predicts v"),
        (["--num", "0"], "--num (0)"),
        (["--interpolate"], "--interpolate goes between images of one class: give --class"),
        (["--interpolate", "--class", "1", "--sampler", "ddpm"], "--interpolate needs a sampler without chance"),
        (["--ckpt", "none.ckpt"], "there is no checkpoint none.ckpt"),
        (["--evaluate", checkpoint], "is of a DiffusionModel: features come from a vision classifier"),
    ]:
        assert sample(monkeypatch, "--ckpt", checkpoint, *wrong) == 2
        assert message in capsys.readouterr().err
