"""The benchmarks run; what they measure is not asserted here, on machines that differ."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callbacks.export.gate import Verdict
from lightning_app import export
from lightning_app.cli import run
from scripts.benchmark import main


def test_overhead_prints_a_table_and_writes_json(tmp_path: Path, root: Path) -> None:
    argv = [sys.executable, str(root / "scripts/benchmark.py"), "overhead", "--rounds", "1", "--epochs", "1"]
    done = subprocess.run(
        [*argv, "--config", "configs/vision.yaml", "--json", "out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert "| added (ms/step) |" in done.stdout
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["net"] for row in rows] == ["the recipe's net", "a linear layer"]
    assert all(row["Lightning (ms/step)"] > 0 for row in rows)


def rows_of(monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[dict[str, Any]]:
    """What a benchmark writes, run in this process."""
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *argv, "--json", "out.json"])
    main()
    return json.loads(Path("out.json").read_text())["rows"]


def test_attention_has_a_row_for_each_kernel(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(monkeypatch, "attention", "--lengths", "512", "--masks", "causal", "--rounds", "1")
    assert [(row["T"], row["kernel"]) for row in rows] == [(512, "naive"), (512, "sdpa")]
    assert rows[0]["MiB"] > 4 * 4 * 512 * 512 / 2**20  # the scores of 4 heads, in float32
    assert rows[0]["naive's memory / its"] == 1
    assert rows[1]["MiB"] > 0


def test_generation_compares_each_shape(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(monkeypatch, "generation", "--shapes", "1x32", "--new_tokens", "4", "--rounds", "1")
    assert [(row["blocks x width"], row["prompts"]) for row in rows] == [("1x32", 1), ("1x32", 8)]
    assert all(row["times as fast"] == pytest.approx(row["tokens/s with the cache"] / row["without"]) for row in rows)


def test_language_trains_both_nets(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.txt").write_text("the quick brown fox jumps over a lazy dog. " * 200)
    argv = ["--paths", "a.txt", "--steps", "4", "--every", "2", "--target", "100"]
    plain, ours = rows_of(monkeypatch, "language", *argv)
    assert (plain["net"], ours["net"]) == ("plain GPT", "recipe")
    assert ours["steps to 100.0"] == 2
    assert float(ours["validation loss"]) > 0


def test_samplers_are_scored_for_each_run(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    quick = ["--trainer.max_steps=6", "--trainer.limit_val_batches=1", "--test_after_fit=false"]
    checks = ["--trainer.check_val_every_n_epoch=null", "--trainer.val_check_interval=6"]
    learn = ["--model.optimizer.lr=0.1", "--model.schedule.warmup=0"]  # far in a few steps: raw differs from averaged
    assert run(["fit", "--config=configs/diffusion.yaml", "--model.net.widths=[8,16]", *learn, *quick, *checks]) == 0
    net = ["--model.net=ResNet9", "--model.net.widths=[4,8]"]
    assert run(["fit", "--config=configs/vision.yaml", *net, *quick]) == 0
    argv = ["--ckpts", "logs/diffusion/version_0/checkpoints/last.ckpt"]
    argv += ["--judge", "logs/vision/version_0/checkpoints/last.ckpt", "--num", "12", "--batch_size", "5", "--raw"]
    rows = rows_of(monkeypatch, "samplers", *argv, "--samplers", "dpm++:2", "ddpm:4")
    assert [(row["weights"], row["sampler"]) for row in rows] == [
        ("averaged", "dpm++:2"),
        ("averaged", "ddpm:4"),
        ("raw", "dpm++:2"),
    ]
    assert len({row["FID"] for row in rows}) == 3
    assert all(row["prediction, noising"] == "v, cosine" for row in rows)


def test_the_unet_is_compared_at_equal_parameters(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("denoising_diffusion_pytorch", reason="the extra `benchmark` is not installed")
    rows = rows_of(monkeypatch, "unet", "--rounds", "1", "--batch_size", "2", "--image_size", "16")
    theirs, *ours = (row["parameters (M)"] for row in rows)
    assert ours == pytest.approx([theirs, theirs], rel=0.05)


def test_an_export_has_its_ratios_in_a_cell(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    quick = ["--trainer.max_steps=6", "--test_after_fit=false"]
    assert run(["fit", "--config=configs/vision.yaml", "--model.net=ResNet9", "--model.net.widths=[4,8]", *quick]) == 0
    argv = ["--ckpt", "logs/vision/version_0/checkpoints/last.ckpt", "--formats", "torchscript"]
    (row,) = rows_of(monkeypatch, "export", *argv)
    assert row["run, artifact"] == "vision, model"
    assert re.fullmatch(r"\d+\.\dx, \d+\.\dx", row["torchscript"])


def test_int8_is_held_against_eager_and_its_own_format(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Verdict("onnx", "model.onnx", "accuracy", 1e-4, megabytes=4)
    int8 = replace(plain, file="model.int8.onnx", kind="static", megabytes=1, score=0.95, artifact_score=0.9)
    int8.milliseconds = {1: (6.0, 2.0, 3.0), 8: None}
    monkeypatch.setattr(export, "deliver", lambda *args, **options: [plain, int8])
    (row,) = rows_of(monkeypatch, "quantization", "--static", "logs/vision/version_0/checkpoints/last.ckpt")
    assert row["run, artifact"] == "vision, model"
    assert (row["times eager"], row["times float32"], row["smaller"]) == ("3.0x, not timed", "1.5x, not timed", "4.0x")
    assert (row["score"], row["verdict"]) == ("accuracy 0.9500 -> 0.9000", "passed")
