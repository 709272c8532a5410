"""What callbacks do across ranks, in one run of two real processes (gloo)."""

import csv
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
    import sys
    sys.path[:0] = {paths!r}
    import pytorch_lightning as pl, torch
    from callbacks.classification_report import ClassificationReport
    from callbacks.dashboard import Dashboard
    from callbacks.gradient_norm import GradientNorm
    from callbacks.prediction_writer import PredictionWriter
    from callbacks.progressive_unfreezing import ProgressiveUnfreezing
    from callbacks.throughput import Throughput
    from conftest import TinyTask, make_data
    from pytorch_lightning.loggers import TensorBoardLogger
    from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSampler
    from torch.utils.data import DataLoader, TensorDataset

    class Check(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            for name, value in pl_module.named_parameters():
                ranks = pl_module.all_gather(value.detach())
                assert torch.equal(ranks[0], ranks[1]), (trainer.current_epoch, name)
            state = {{k: v.clone() for k, v in pl_module.net.state_dict().items()}}
            if trainer.is_global_zero:
                torch.save(state, f"epoch{{trainer.current_epoch}}.pt")

    class Data(pl.LightningDataModule):
        predict_names = [f"{{i}}.jpg" for i in range(13)]
        def train_dataloader(self):
            return DataLoader(make_data(16), batch_size=4)
        def val_dataloader(self):
            data = make_data(13)
            return DataLoader(data, batch_size=4, sampler=UnrepeatedDistributedSampler(data, shuffle=False))
        test_dataloader = val_dataloader
        def predict_dataloader(self):
            return DataLoader(TensorDataset(make_data(13).tensors[0], torch.arange(13)), batch_size=4)

    torch.set_num_threads(1)
    pl.seed_everything(0)
    report = ClassificationReport()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_find_unused_parameters_true", max_epochs=4, log_every_n_steps=1,
        logger=TensorBoardLogger("logs", name="run", version=0, default_hp_metric=False),
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[
            ProgressiveUnfreezing(), Check(), report, Dashboard(), GradientNorm(), Throughput(), PredictionWriter()
        ],
    )
    task, data = TinyTask(), Data()
    trainer.fit(task, datamodule=data)
    trainer.test(task, datamodule=data, verbose=False)
    counts = report._counts
    trainer.predict(task, datamodule=data, return_predictions=False)
    if trainer.is_global_zero:
        torch.save({{"counts": counts.cpu(), "net": task.net.state_dict()}}, "result.pt")
    torch.distributed.destroy_process_group()
"""


def test_two_ranks(tmp_path: Path, tiny: Any, read_events: Any) -> None:
    paths = [str(ROOT), str(Path(__file__).parent)]
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT).format(paths=paths))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    # Unfreezing: ranks agreed after every epoch (the script asserts it) and each stage moved from its epoch on.
    states = [torch.load(tmp_path / f"epoch{e}.pt", weights_only=True) for e in range(4)]
    for stage, opens in (("blocks.2", 1), ("blocks.1", 2), ("blocks.0", 3)):
        for name in (f"{stage}.0.weight", f"{stage}.1.running_mean"):
            moved = [not torch.equal(states[e][name], states[e - 1][name]) for e in range(1, 4)]
            assert moved == [e >= opens for e in range(1, 4)], name

    # The matrix: exactly the 13 samples, as one rank counts them.
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    net = tiny.Net().eval()
    net.load_state_dict(result["net"])
    images, labels = tiny.data(13).tensors
    with torch.no_grad():
        predictions = net(images).argmax(1)
    expected = torch.zeros(3, 3, dtype=torch.int64)
    expected.index_put_((labels, predictions), torch.ones(13, dtype=torch.int64), accumulate=True)
    assert torch.equal(result["counts"], expected)

    # The CSV: all samples in order.
    folder = tmp_path / "logs" / "run" / "version_0"
    with open(folder / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert [row[0] for row in rows] == [f"{i}.jpg" for i in range(13)]
    assert [row[1] for row in rows] == [["cat", "dog|wolf", "$x_2$ \N{SNOWMAN}"][i] for i in predictions]
    assert [p.name for p in folder.glob("predictions*")] == ["predictions.csv"]

    scalars = read_events(folder).Tags()["scalars"]
    assert {"train/gradient_norm", "train/samples_per_second", "test/accuracy"} <= set(scalars)
