import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from callbacks.interruption import GracefulInterruption, RunInterrupted, resume_command

ROOT = Path(__file__).resolve().parents[2]


def test_resume_command_names_what_the_run_saved(tmp_path: Path) -> None:
    log_dir = tmp_path / "my logs" / "version_0"
    checkpoint = log_dir / "checkpoints" / "last.ckpt"
    log_dir.mkdir(parents=True)
    options: dict[str, Any] = {"script": "scripts/train.py", "cwd": tmp_path}
    shown = "'my logs/version_0/checkpoints/last.ckpt'"
    assert resume_command(checkpoint, log_dir, **options) == f"add --ckpt_path {shown}"
    (log_dir / "config.yaml").touch()
    expected = f"python scripts/train.py fit --config 'my logs/version_0/config.yaml' --ckpt_path {shown}"
    assert resume_command(checkpoint, log_dir, **options) == expected
    relative = Path("my logs/version_0")
    assert resume_command(relative / "checkpoints/last.ckpt", relative, **options) == expected
    assert str(checkpoint) in resume_command(checkpoint, log_dir, script="t.py", cwd=tmp_path / "elsewhere")


class SignalAt(pl.Callback):
    """Sends this process a signal within a hook."""

    def __init__(self, signum: int, hook: str, when: int, *, times: int = 1) -> None:
        self.signum, self.when, self.times = signum, when, times
        self.calls = 0
        setattr(self, hook, self._send)

    def _send(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.sanity_checking:
            return
        self.calls += 1
        if self.calls == self.when:
            for _time in range(self.times):
                os.kill(os.getpid(), self.signum)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def fit(tiny: Any, folder: Path, *extra: pl.Callback, ckpt_path: str | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    task = tiny.Task()
    saver = ModelCheckpoint(folder / "checkpoints", monitor="val/accuracy", mode="max")
    callbacks = [GracefulInterruption(), *extra, saver]
    trainer = tiny.trainer(callbacks=callbacks, enable_checkpointing=True, max_epochs=3, **options)
    try:
        trainer.fit(task, tiny.loader(count=16), tiny.loader(count=12), ckpt_path=ckpt_path)
    except RunInterrupted as interrupted:
        return trainer, task, interrupted.code
    return trainer, task, None


HOOKS = [
    # signal, hook, call, step of the checkpoint
    (signal.SIGINT, "on_train_batch_start", 6, 6),
    (signal.SIGTERM, "on_train_batch_start", 6, 6),
    (signal.SIGINT, "on_train_batch_start", 8, 8),  # the last batch of an epoch
    (signal.SIGINT, "on_validation_batch_start", 2, 5),
    (signal.SIGTERM, "on_validation_batch_start", 2, 4),
]


@pytest.mark.parametrize(("signum", "hook", "when", "step"), HOOKS)
def test_an_interrupted_run_resumes_to_the_same_weights(
    tiny: Any, tmp_path: Path, capsys: Any, signum: int, hook: str, when: int, step: int
) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    _, _, code = fit(tiny, tmp_path, SignalAt(signum, hook, when))
    assert code == 128 + signum
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == step
    assert f"To resume: add --ckpt_path {last}" in capsys.readouterr().out
    if hook == "on_validation_batch_start" and signum == signal.SIGINT:
        assert len(list(last.parent.iterdir())) == 2  # the validation ended first, and its best was saved

    resumed, task, _ = fit(tiny, tmp_path, ckpt_path=str(last))
    whole, expected, _ = fit(tiny, tmp_path / "whole")
    assert resumed.global_step == whole.global_step == 12
    if step % 4 == 0:  # in mid-epoch a loader without state begins anew
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(task.state_dict()[name], value, msg=name)
    # Lightning puts back the handlers that it found, ours among them: it passes on what comes after the fit.
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_stops_at_once(tiny: Any, tmp_path: Path) -> None:
    trainer, _, code = fit(tiny, tmp_path, SignalAt(signal.SIGINT, "on_train_batch_start", 6, times=2))
    assert code == 130
    assert trainer.global_step == 5
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()


def test_a_signal_after_the_last_step_stops_what_follows(tiny: Any, tmp_path: Path, capsys: Any) -> None:
    _, _, code = fit(tiny, tmp_path, SignalAt(signal.SIGINT, "on_train_end", 1))
    assert code == 130
    assert "training is complete" in capsys.readouterr().out


def test_gradients_are_not_lost_in_mid_accumulation(tiny: Any, tmp_path: Path) -> None:
    fit(tiny, tmp_path, SignalAt(signal.SIGINT, "on_train_batch_start", 1), accumulate_grad_batches=2)
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["global_step"] == 1
    assert state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"] == 2


def test_the_checkpoint_holds_what_later_callbacks_did_in_the_step(tiny: Any, tmp_path: Path) -> None:
    class Counting(pl.Callback):
        count = 0

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

    fit(tiny, tmp_path, SignalAt(signal.SIGINT, "on_train_batch_start", 3), Counting())
    callbacks = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
    assert [state for key, state in callbacks.items() if key.endswith("Counting")] == [{"count": 3}]


SCRIPT = """
    import os, sys
    sys.path[:0] = {paths!r}
    import pytorch_lightning as pl, torch
    from callbacks.interruption import GracefulInterruption
    from pytorch_lightning.callbacks import ModelCheckpoint
    from pytorch_lightning.loggers import CSVLogger
    from conftest import TinyTask, make_data

    class Ready(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 4 and trainer.is_global_zero:
                print("ready", flush=True)

    torch.set_num_threads(1)
    logger = CSVLogger("logs", name="run", version=0)
    trainer = pl.Trainer(
        accelerator="cpu", devices={devices}, strategy="{strategy}", logger=logger, max_epochs=100_000,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, log_every_n_steps=4,
        callbacks=[GracefulInterruption(), ModelCheckpoint(), Ready()],
    )
    loader = torch.utils.data.DataLoader(make_data(), batch_size=2, num_workers=1)
    if trainer.is_global_zero:
        os.makedirs(logger.log_dir)
        open(logger.log_dir + "/config.yaml", "w").close()
    trainer.fit(TinyTask(), loader)
"""


@pytest.mark.parametrize(("signum", "devices"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_a_process_ends_with_the_signals_status(tmp_path: Path, signum: int, devices: int) -> None:
    """Ctrl-C reaches the whole group (ranks and data loader workers), SIGTERM the main process alone."""
    paths, strategy = [str(ROOT), str(Path(__file__).parent)], "auto" if devices == 1 else "ddp"
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(paths=paths, devices=devices, strategy=strategy))
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line == "ready\n":
                os.killpg(process.pid, signum) if signum == signal.SIGINT else process.send_signal(signum)
        assert process.wait(60) == 128 + signum, "".join(lines)
    finally:
        process.kill()
    output = "".join(lines)
    command = "To resume: python train.py fit --config logs/run/version_0/config.yaml --ckpt_path logs/run/"
    assert command in output
    assert "Traceback" not in output
    (last,) = (tmp_path / "logs").rglob("last.ckpt")
    state = torch.load(last, weights_only=True)
    assert state["global_step"] >= 4
    assert not any(key.startswith("module.") for key in state["state_dict"])
