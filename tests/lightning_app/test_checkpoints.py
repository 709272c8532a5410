"""Checkpoints are self-describing, load without running code, and survive a kill while they are written."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lightning_app.checkpoints import describe_differences, load_task, newest_checkpoint, read_checkpoint
from lightning_app.cli import build, run
from models import VisionClassifier
from models.nets.resnet9 import ResNet9
from tests.tiny_run import TINY


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])


def fit(*extra: str) -> Path:
    assert run(["fit", *TINY, "--test_after_fit=false", *extra]) == 0
    return newest_checkpoint("last", Path("logs/vision"))


def test_a_checkpoint_is_a_task_in_a_fresh_process(in_tmp: Path, root: Path) -> None:
    path = fit()
    task = load_task(path)
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = task(images)
    assert not task.training
    code = (
        "import sys, torch\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "from lightning_app.checkpoints import load_task\n"
        f"task = load_task({str(path)!r})\n"
        "images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))\n"
        "torch.save([task(images).detach(), task.class_names, task.mean], 'out.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    logits, class_names, mean = torch.load("out.pt", weights_only=True)
    torch.testing.assert_close(logits, expected)
    assert class_names == [str(digit) for digit in range(10)]
    assert mean == [0.3053]


def test_a_task_built_in_python_is_loaded_with_its_net(in_tmp: Path) -> None:
    cli = build(["fit", *TINY])
    task = VisionClassifier(
        ResNet9(num_classes=10, in_channels=1, widths=(4, 8)),
        class_names=[str(digit) for digit in range(10)],
        image_size=8,
        mean=[0.3],
        std=[0.4],
    )
    cli.trainer.fit(task, datamodule=cli.datamodule)
    path = newest_checkpoint("last", Path("logs/vision"))
    with pytest.raises(ValueError, match=r"load_task\(path, net=net\)"):
        load_task(path)
    loaded = load_task(path, net=ResNet9(num_classes=10, in_channels=1, widths=(4, 8)))
    for name, value in task.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_ema_checkpoints_hold_both_weights_exactly(in_tmp: Path) -> None:
    """The averaged weights are loaded for use, the raw ones are resumed from, and counters are copied."""
    argv = ["fit", *TINY, "--config=configs/overlay/ema.yaml", "--trainer.limit_train_batches=6"]
    cli = build(argv)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    path = newest_checkpoint("last", Path("logs/vision"))
    content = read_checkpoint(path)
    raw = content["current_model_state"]
    for name, value in cli.model.state_dict().items():  # after fit Lightning leaves the average in the model
        assert torch.equal(content["state_dict"][name], value), name
    assert any(not torch.equal(raw[name], content["state_dict"][name]) for name in raw if name.endswith("weight"))
    counters = [name for name in raw if name.endswith("num_batches_tracked")]
    assert counters
    for name in counters:
        assert content["state_dict"][name].dtype == torch.int64
    assert torch.equal(load_task(path).net.head[1].weight, content["state_dict"]["net.head.1.weight"])

    resumed = build([*argv, "--trainer.max_epochs=2"])
    seen: dict[str, torch.Tensor] = {}
    resumed.model.on_train_batch_start = lambda batch, index: (
        seen or seen.update({name: value.clone() for name, value in resumed.model.state_dict().items()})
    )
    resumed.trainer.fit(resumed.model, datamodule=resumed.datamodule, ckpt_path=str(path))
    for name, value in raw.items():
        assert torch.equal(seen[name], value), name


def test_compiled_and_plain_checkpoints_are_interchangeable(in_tmp: Path) -> None:
    plain = fit()
    compiled = fit("--config=configs/overlay/compile.yaml", "--trainer.callbacks.backend=eager")
    keys = [set(read_checkpoint(path)["state_dict"]) for path in (plain, compiled)]
    assert keys[0] == keys[1]
    fit(f"--ckpt_path={compiled}", "--trainer.max_epochs=2")


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("the_trap_was_sprung",))


def test_code_in_a_checkpoint_is_never_run(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {}, "trap": Trap()}, "trap.ckpt")
    with pytest.raises(ValueError, match=r"trap\.ckpt is damaged or not a checkpoint"):
        read_checkpoint("trap.ckpt")
    Path("pickle.ckpt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"pickle\.ckpt"):
        load_task("pickle.ckpt")
    assert run(["fit", *TINY, "--ckpt_path=trap.ckpt"]) == 2
    assert not Path("the_trap_was_sprung").exists()


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_a_damaged_file_is_named(in_tmp: Path, content: bytes | None) -> None:
    path = fit()
    whole = path.read_bytes()
    path.write_bytes(whole[:-200] if content is None else content)
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged"):
        load_task(path)


def test_a_missing_file_is_named(in_tmp: Path) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint nowhere\.ckpt"):
        load_task("nowhere.ckpt")


def test_a_kill_while_saving_leaves_the_earlier_checkpoint(in_tmp: Path, root: Path) -> None:
    """SIGKILL at twelve moments of a process that does nothing but save over one path."""
    path = fit()
    code = (
        "import sys, torch\n"
        "from lightning_fabric.plugins.io import TorchCheckpointIO\n"
        f"content = torch.load({str(path)!r}, weights_only=True)\n"
        "content['ballast'] = torch.zeros(3_000_000)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        f"    TorchCheckpointIO().save_checkpoint(content, {str(path)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    time.sleep(0.3)
    for _ in range(12):  # stopped, it is as if killed here: what lies on the disk is what a kill would leave
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        read_checkpoint(path)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.017)
    process.kill()
    process.wait()
    load_task(path)


def test_differences_are_told_by_their_command_line_names() -> None:
    old = {
        "_class_path": "models.A",
        "net": {"class_path": "N", "init_args": {"dropout": 0.1, "widths": (1, 2)}},
        "a": 1,
    }
    new = {
        "class_path": "models.A",
        "init_args": {"net": {"class_path": "M", "init_args": {"dropout": 0.2}}, "a": None},
    }
    assert describe_differences(old, new, ignore=["a"]) == ["net: N -> M", "net.dropout: 0.1 -> 0.2"]


def test_the_test_after_an_ema_fit_is_of_the_averaged_weights(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fit", *TINY, "--config=configs/overlay/ema.yaml", "--model.optimizer.lr=2.0", "--trainer.max_epochs=3"]
    argv.append("--model.test_time_augmentation=none")
    assert run([*argv, "--trainer.limit_test_batches=null"]) == 0
    tested = _metric(capsys.readouterr().out, "test/loss")
    best = newest_checkpoint("best", Path("logs/vision"))
    assert run(["test", f"--ckpt_path={best}", "--trainer.limit_test_batches=null"]) == 0
    assert _metric(capsys.readouterr().out, "test/loss") == pytest.approx(tested, abs=1e-3)

    cli = build([*argv, "--trainer.logger=false"])
    cli.datamodule.setup("test")
    losses = []
    for weights in ("state_dict", "current_model_state"):
        task = load_task(best)
        task.load_state_dict(read_checkpoint(best)[weights])
        with torch.no_grad():
            batches = [(task(images), labels) for images, labels in cli.datamodule.test_dataloader()]
        logits, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        losses.append(float(torch.nn.functional.cross_entropy(logits, labels)))
    averaged, raw = losses
    assert averaged != pytest.approx(raw, rel=0.01)  # or this test could not tell them apart
    assert tested == pytest.approx(averaged, rel=0.02)


def _metric(printed: str, name: str) -> float:
    """A figure in the table that Lightning or the report prints."""
    line = next(line for line in printed.splitlines() if name in line)
    return float(next(word for word in line.replace("│", " ").split() if word[0].isdigit() or word[0] == "-"))
