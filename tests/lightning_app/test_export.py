"""From a run to a folder that predicts by itself, as a user does it, for every task."""

import csv
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.distributed.checkpoint
from torchvision.io import read_image

from callbacks.artifact_export import ArtifactExport
from callbacks.export.formats import FORMATS
from callbacks.export.gate import Verdict
from lightning_app import export
from lightning_app.checkpoints import load_task
from lightning_app.cli import run
from lightning_app.deliverables import describe
from lightning_app.run_folder import datamodule_of
from scripts.export import main
from scripts.sample import main as sample

BERT = "{model_type: bert, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32}"
TINY = {
    "vision": ["--model.net=ResNet9", "--model.net.widths=[4,8]"],
    "text_file": ["--data.path=reviews.csv", "--model.net.model_name=null", f"--model.net.config={BERT}"],
    "language": ["--data.paths=[a.txt]", "--data.max_length=32", "--model.net.embed_dim=32"],
    "diffusion": ["--model.net.widths=[8,16]"],
}
# Python without the packages that a machine for inference does not have
ALONE = "import sys, runpy; sys.modules |= dict.fromkeys(('torch', 'pytorch_lightning', 'torchvision', 'transformers'))"


def trained(monkeypatch: pytest.MonkeyPatch, name: str, *argv: str) -> str:
    """The checkpoint of a short run."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    few = ["--trainer.max_steps=20", "--trainer.val_check_interval=1.0", "--test_after_fit=false"]
    assert run(["fit", f"--config=configs/{name}.yaml", *TINY[name], *few, *argv]) == 0
    return f"logs/{name}/version_0/checkpoints/last.ckpt"


def exported(monkeypatch: pytest.MonkeyPatch, checkpoint: str, *formats: str, argv: Iterable[str] = ()) -> int:
    monkeypatch.setattr(sys, "argv", ["export.py", "--ckpt", checkpoint, "--formats", *formats, *argv])
    return main()


def predicted_without_torch(*argv: str) -> str:
    """What the folder's script prints where there is neither torch nor Lightning."""
    code = f"{ALONE}; sys.argv = {['predict.py', *argv]}; runpy.run_path('exported/predict.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _quick(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, tiny_tokenizer: str) -> None:
    """Something to read, and no time taken for timing."""
    Path("a.txt").write_text("the quick brown fox jumps over a lazy dog. " * 3000)  # 47 validation windows: few
    lines = [f'"{("a good film", "a bad, bad film")[i % 2]} {"," * (i % 5)} {i}",{i % 2}' for i in range(900)]
    Path("reviews.csv").write_text("\n".join(["text,label", *lines]))
    monkeypatch.setitem(TINY, "text_file", [*TINY["text_file"], f"--data.tokenizer={tiny_tokenizer}"])
    check = export.check
    monkeypatch.setattr(export, "check", lambda *args, **options: check(*args, seconds=0, **options))


def test_photos_are_told_apart_without_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = trained(monkeypatch, "vision", "--model.test_time_augmentation=flip")  # which no file repeats
    assert exported(monkeypatch, checkpoint, "onnx", "torchscript") == 0
    assert "| onnx | model.onnx |" in capsys.readouterr().out
    sidecar = json.loads(Path("exported/model.json").read_text())
    assert sidecar["inputs"][0]["shape"] == ["batch", 1, 8, 8]
    assert sidecar["artifacts"]["onnx"]["sha256"] == export.sha256(Path("exported/model.onnx"))
    assert sidecar["checkpoint"]["sha256"] == export.sha256(Path(checkpoint))
    report = json.loads(Path("exported/report.json").read_text())
    assert [row["passed"] for row in report] == [True, True]
    assert "passed" in Path("exported/report.md").read_text()

    # elsewhere, with the runtime alone
    shutil.move("exported", "elsewhere")
    task: Any = load_task(checkpoint)
    (given,) = describe(task, datamodule_of(checkpoint))
    paths, batch = given.raw_samples(Path("elsewhere"), 64)
    argv = ["predict.py", "--artifact", "elsewhere/model.onnx", *paths]
    code = f"{ALONE}; sys.argv = {argv}; runpy.run_path('elsewhere/predict.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        probabilities, labels = task.probabilities(batch).max(-1)
    rows = list(csv.reader(done.stdout.splitlines(), delimiter="\t"))
    assert [row[1] for row in rows] == [task.class_names[label] for label in labels.tolist()]
    torch.testing.assert_close(torch.tensor([float(row[2]) for row in rows]), probabilities, atol=2e-4, rtol=0)

    # a wrong normalisation is caught
    artifact = Path("elsewhere/model.onnx")
    assert export.check_folder(given, task, artifact) is None
    artifact.with_suffix(".json").write_text(json.dumps(sidecar | {"std": [-0.4]}))
    problem = export.check_folder(given, task, artifact)
    assert problem is not None
    assert "of 64 the checkpoint's label: see preprocessing in model.json" in problem

    # normalisation and softmax inside, an opset of choice
    argv = ["--from_pixels", "--opset", "20", "--out", "pixels"]
    assert exported(monkeypatch, checkpoint, "onnx", argv=argv) == 0
    assert [part.version for part in onnx.load("pixels/model.onnx").opset_import if not part.domain] == [20]
    argv = [sys.executable, "pixels/predict.py", "--artifact", "pixels/model.onnx", *paths]
    again = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    made = [row.rsplit("\t", 1) for row in again.stdout.splitlines()]
    assert [name for name, _ in made] == [name for name, _ in (row.rsplit("\t", 1) for row in done.stdout.splitlines())]
    assert [float(p) for _, p in made] == pytest.approx([float(row[2]) for row in rows], abs=2e-4)


def test_photos_are_told_apart_in_int8(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = trained(monkeypatch, "vision")
    options = ["--quantize", "static", "--max_drop", "0.1"]
    assert exported(monkeypatch, checkpoint, "onnx", argv=options) == 0
    assert "| onnx | model.int8.onnx | static int8 by ONNX Runtime |" in capsys.readouterr().out
    sidecar = json.loads(Path("exported/model.json").read_text())
    assert sidecar["artifacts"]["onnx int8"]["file"] == "model.int8.onnx"
    task: Any = load_task(checkpoint)
    (given,) = describe(task, datamodule_of(checkpoint))
    assert given.raw_samples is not None
    paths, batch = given.raw_samples(Path("exported"), 64)
    rows = predicted_without_torch("--artifact", "exported/model.int8.onnx", *paths).splitlines()
    with torch.inference_mode():
        labels = task.probabilities(batch).argmax(-1).tolist()
    agreed = [row.split("\t")[1] == task.class_names[label] for row, label in zip(rows, labels, strict=True)]
    assert sum(agreed) >= 58

    for argv, message in [
        (["--quantize", "dynamic"], "dynamic quantization is not for the task vision: use static"),
        (["--quantize", "weight_only"], "no backend makes onnx with weight_only quantization"),
        (["--quantize", "int4"], "there is no quantization 'int4'"),
    ]:
        assert exported(monkeypatch, checkpoint, "onnx", argv=argv) == 2
        assert message in capsys.readouterr().err


def test_what_int8_costs_fails_the_command_unless_it_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = "accuracy is 0.9, the checkpoint's 0.95"
    monkeypatch.setattr(export, "deliver", lambda *args, **options: [Verdict("onnx", "a", "accuracy", 0.1, cost=cost)])
    assert exported(monkeypatch, "any", "onnx", argv=["--quantize", "static"]) == 1
    assert exported(monkeypatch, "any", "onnx", argv=["--quantize", "static", "--report_only"]) == 0


def test_images_are_denoised(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = trained(monkeypatch, "diffusion")
    assert exported(monkeypatch, checkpoint, "torch_export") == 0
    sidecar = json.loads(Path("exported/model.json").read_text())
    assert [spec["name"] for spec in sidecar["inputs"]] == ["x", "time", "labels"]
    assert sidecar["process"] == {"prediction": "v", "timesteps": 1000, "noising": "cosine", "label_dropout": 0.1}
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for source in (["--ckpt", checkpoint, "--out", "a"], ["--artifact", "exported/model.pt2", "--out", "b"]):
        argv = ["sample.py", *source, "--num", "3", "--steps", "3", "--class", "2", "--guidance", "2"]
        monkeypatch.setattr(sys, "argv", argv)
        assert sample() == 0
    for name in ("00000_2.png", "00002_2.png"):
        assert (read_image(f"a/{name}").int() - read_image(f"b/{name}").int()).abs().max() <= 1
    done = subprocess.run(
        [sys.executable, "exported/predict.py", "--artifact", "exported/model.pt2", "any"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "a diffusion model makes images" in done.stderr


def test_texts_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = trained(monkeypatch, "language", "--trainer.val_check_interval=20")
    assert exported(monkeypatch, checkpoint, "onnx", "torchscript") == 0
    task: Any = load_task(checkpoint)
    (expected,) = task.generate_texts(["the quick"], max_new_tokens=8, temperature=0)
    for artifact in ("exported/model.onnx", "exported/decode.onnx"):
        made = predicted_without_torch("--artifact", artifact, "--max_new_tokens", "8", "the quick")
        assert made.rstrip("\n") == "the quick" + expected
    argv = [
        "exported/predict.py",
        "--artifact",
        "exported/decode.torchscript.pt",
        "--max_new_tokens",
        "40",
        "the quick",
    ]
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "must have at most 32 tokens" in done.stderr


def test_texts_are_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = trained(monkeypatch, "text_file", "--config=configs/overlay/lora.yaml")
    assert exported(monkeypatch, checkpoint, "torchscript_script") == 2
    assert "is of transformers, whose nets can't be scripted: use the format torchscript" in capsys.readouterr().err
    assert not Path("exported").exists()
    assert exported(monkeypatch, checkpoint, "onnx", "torchscript") == 0
    sidecar = json.loads(Path("exported/model.json").read_text())
    assert [spec["name"] for spec in sidecar["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]

    # what the gate gives predict.py is what it gives the net, though evaluation goes by length
    task: Any = load_task(checkpoint)
    assert any("lora" in name for name, _ in task.net.named_parameters())
    data = datamodule_of(checkpoint)
    given = describe(task, data)[0]
    assert given.raw_samples is not None
    samples, batch = given.raw_samples(Path(), 64)
    encoded = data.tokenizer(samples, padding=True, return_tensors="pt")
    assert torch.equal(encoded["input_ids"], batch["input_ids"])

    # the low-rank updates, which were folded in, make the difference
    texts = [f"a {word} film {number}" for word in ("good", "bad, bad") for number in range(8)]
    made = predicted_without_torch("--artifact", "exported/model.onnx", *texts)
    encoded = data.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        probabilities, labels = task.probabilities(encoded).max(-1)
    rows = list(csv.reader(made.splitlines(), delimiter="\t"))
    assert [row[:2] for row in rows] == [[t, task.class_names[label]] for t, label in zip(texts, labels, strict=True)]
    assert [float(row[2]) for row in rows] == pytest.approx(probabilities.tolist(), abs=2e-4)


def test_mistakes_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in [
        (["none.ckpt", "onnx"], "there is no checkpoint none.ckpt"),
        (["none.ckpt", "onx"], "there is no format 'onx'"),
    ]:
        assert exported(monkeypatch, *argv) == 2
        assert message in capsys.readouterr().err


def test_the_overlay_exports_when_training_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    on_fit_end = ArtifactExport.on_fit_end

    def watched(self: ArtifactExport, trainer: Any, pl_module: Any) -> None:
        for _ in range(2):
            modes = [module.training for module in pl_module.modules()]
            states.append((torch.get_rng_state(), modes, [p.requires_grad for p in pl_module.parameters()]))
            if len(states) == 1:
                on_fit_end(self, trainer, pl_module)

    monkeypatch.setattr(ArtifactExport, "on_fit_end", watched)
    overlay = "--config=configs/overlay/export.yaml"
    trained(monkeypatch, "vision", overlay, "--trainer.callbacks.formats=[torchscript]")
    assert Path("logs/vision/version_0/exported/model.torchscript.pt").exists()
    (random_before, *before), (random_after, *after) = states
    assert before == after
    assert torch.equal(random_before, random_after)


def test_one_format_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(given: Any, path: Path) -> None:
        raise ValueError("no disk is left")

    checkpoint = trained(monkeypatch, "diffusion")
    assert exported(monkeypatch, checkpoint, "torchscript_script") == 2
    assert "UNet can't be scripted" in capsys.readouterr().err
    monkeypatch.setitem(FORMATS, "torch_export", replace(FORMATS["torch_export"], export=fails))
    assert exported(monkeypatch, checkpoint, "torch_export", "torchscript") == 1
    assert "FAILED: no disk is left" in capsys.readouterr().out
    failed, traced = json.loads(Path("exported/report.json").read_text())
    assert (failed["passed"], traced["passed"]) == (False, True)
    assert failed["megabytes"] is None


@pytest.mark.parametrize("key", ["model", "state_dict"], ids=["FSDPStrategy", "ModelParallelStrategy"])
def test_a_checkpoint_of_shards_is_joined_first(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    checkpoint = trained(monkeypatch, "vision")
    content = torch.load(checkpoint, weights_only=True)
    weights = content.pop("state_dict")
    shards = Path("logs/vision/version_0/checkpoints/sharded.ckpt")
    shards.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of saving without process groups
        torch.distributed.checkpoint.save({key: weights}, checkpoint_id=shards)
    torch.save(content, shards / "meta.pt")
    assert exported(monkeypatch, str(shards), "torchscript") == 0
    joined: Any = load_task(shards)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in joined.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["--config=configs/overlay/compile.yaml"],
        ["--trainer.strategy=ddp", "--trainer.devices=2", "--trainer.accelerator=cpu"],
    ],
    ids=["compiled", "two ranks"],
)
def test_compiled_and_parallel_runs_leave_too(monkeypatch: pytest.MonkeyPatch, root: Path, argv: list[str]) -> None:
    command = [sys.executable, str(root / "scripts/train.py"), "fit", "--config=configs/vision.yaml", *TINY["vision"]]
    assert subprocess.run([*command, *argv, "--trainer.max_steps=20"], timeout=600).returncode == 0
    assert exported(monkeypatch, "logs/vision/version_0/checkpoints/best.ckpt", "onnx", "torchscript") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_task_leaves_in_every_format(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    more = {
        "vision": ["--data.in_channels=3"],  # whose arrays are not contiguous in predict.py
        "language": ["--trainer.val_check_interval=20"],
    }
    checkpoint = trained(monkeypatch, name, *more.get(name, []))
    formats = set(FORMATS) - {"torchscript_script"} | ({"torchscript_script"} if name == "vision" else set())
    assert exported(monkeypatch, checkpoint, *formats) == 0
