"""The command line in processes of its own: start-up, several ranks, signals, what is installed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.tiny_run import TINY


def train(*argv: str, cwd: Path, root: Path, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts/train.py"), *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_the_front_page_answers_at_once_and_lists_the_recipes(tmp_path: Path, root: Path) -> None:
    start = time.perf_counter()
    page = train("--help", cwd=tmp_path, root=root)
    assert time.perf_counter() - start < 1.0
    assert page.returncode == 0
    for path in (root / "configs").glob("*.yaml"):
        assert path.name == "defaults.yaml" or f"configs/{path.name}" in page.stdout
    for subcommand in ("fit", "validate", "test", "predict"):
        assert f"\n  {subcommand} " in page.stdout


def test_runs_from_any_folder_with_a_foreign_lightning_app_installed(tmp_path: Path, root: Path) -> None:
    foreign = tmp_path / "site" / "lightning_app"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("raise RuntimeError('the other distribution')\n")
    env = {**os.environ, "PYTHONPATH": str(foreign.parent)}
    argv = [sys.executable, str(root / "scripts/train.py"), "fit", *TINY]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs/vision/version_0/checkpoints/best.ckpt").is_file()


def test_two_ranks_share_a_folder_and_measure_what_one_measures(tmp_path: Path, root: Path) -> None:
    """268 digits in batches of 5 are uneven on two ranks: a padded sampler would count one twice."""
    whole = ["--trainer.limit_test_batches=null", "--data.batch_size=5", "--trainer.accelerator=cpu"]
    two = train("fit", *TINY, *whole, "--trainer.strategy=ddp", "--trainer.devices=2", cwd=tmp_path, root=root)
    assert two.returncode == 0, two.stderr
    assert [path.name for path in (tmp_path / "logs/vision").iterdir()] == ["version_0"]
    assert two.stdout.count("best checkpoint") == 1
    best = tmp_path / "logs/vision/version_0/checkpoints/best.ckpt"
    one = train(
        "test", f"--ckpt_path={best}", "--trainer.devices=1", "--trainer.strategy=auto", cwd=tmp_path, root=root
    )
    assert one.returncode == 0, one.stderr
    for metric in ("test/accuracy", "test/f1", "test/loss", "test/calibration_error"):
        figures = [_figure(done.stdout, metric) for done in (two, one)]
        assert figures[0] == pytest.approx(figures[1], abs=1e-4), metric


def test_ctrl_c_saves_and_the_printed_command_resumes(tmp_path: Path, root: Path) -> None:
    argv = [sys.executable, str(root / "scripts/train.py"), "fit", *TINY, "--trainer.max_epochs=1000"]
    argv.append("--test_after_fit=false")
    process = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = tmp_path / "logs/vision/version_0/checkpoints/last.ckpt"
    for _ in range(600):
        if last.exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    command = next(line for line in printed.splitlines() if line.startswith("To resume: "))
    words = command.removeprefix("To resume: python ").split()
    step = torch.load(last, weights_only=True)["global_step"]
    again = subprocess.run(
        [sys.executable, *words, f"--trainer.max_steps={step + 3}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 0, again.stderr
    assert f"`max_steps={step + 3}` reached" in again.stderr
    resumed = torch.load(tmp_path / "logs/vision/version_1/checkpoints/last.ckpt", weights_only=True)
    assert step < resumed["global_step"] <= step + 3  # saved where an epoch of two steps ended


def _figure(printed: str, metric: str) -> float:
    """A metric from the table that Lightning or the report prints."""
    line = next(line for line in printed.splitlines() if metric in line)
    return float(line.replace("│", " ").split()[-1])


def test_a_missing_package_is_named(tmp_path: Path, root: Path) -> None:
    blocked = tmp_path / "jsonargparse"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='jsonargparse')\n")
    argv = [sys.executable, str(root / "scripts/train.py"), "fit", *TINY]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 2
    assert "the package 'jsonargparse' is not installed: activate .venv" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
