"""From a recipe to a text, as a user does it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_app.cli import run


@pytest.fixture
def checkpoint(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (in_tmp / "a.txt").write_text("the quick brown fox jumps over a lazy dog. " * 60)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    argv = ["--config=configs/language_shakespeare.yaml", "--data.paths=['a.txt']", "--data.max_length=32"]
    small = [
        "--model.net.depth=1",
        "--model.net.embed_dim=32",
        "--trainer.max_steps=60",
        "--trainer.val_check_interval=30",
    ]
    assert run(["fit", *argv, *small, "--trainer.enable_progress_bar=false"]) == 0
    return in_tmp / "logs/language_shakespeare/version_0/checkpoints/best.ckpt"


def generate(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts/generate.py"), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_checkpoint_is_all_it_takes(checkpoint: Path, root: Path, in_tmp: Path) -> None:
    for path in [*in_tmp.glob("data/**/*.*"), in_tmp / "a.txt"]:
        path.unlink(missing_ok=True) if path.is_file() else None
    argv = ["--ckpt", str(checkpoint), "--prompt", "the quick ", "--max_new_tokens", "40", "--seed", "1"]
    done = generate(root, *argv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the quick ")
    made = done.stdout.removeprefix("the quick ").removesuffix("\n").replace("<unk>", "?")  # the net is hardly trained
    assert len(made) == 40
    stopped = generate(root, *argv, "--temperature", "0", "--stop", " ")
    assert " " not in stopped.stdout.removeprefix("the quick ").rstrip("\n")
    full = generate(root, *argv, "--when_full", "error")
    assert full.returncode == 2
    assert "10 tokens and 40 new ones are more than the net was trained for (32)" in full.stderr
    assert (
        generate(root, "--ckpt", "gone.ckpt").stderr.strip() == "generate.py: error: there is no checkpoint gone.ckpt"
    )
