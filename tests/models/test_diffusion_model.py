"""The diffusion task on tiny nets: what it learns, refuses and repeats."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from lightning_app.checkpoints import read_checkpoint
from lightning_app.cli import run
from models.diffusion_model import DiffusionModel, spread_times
from models.nets.unet import UNet


def make_task(**options: Any) -> DiffusionModel:
    torch.manual_seed(0)
    net = UNet(in_channels=1, image_size=8, num_classes=2, widths=(8, 16), blocks=1)
    facts: dict[str, Any] = {"class_names": ["a", "b"], "image_size": 8, "mean": [0.25], "std": [0.5]}
    return DiffusionModel(options.pop("net", net), **(facts | options))


def shake(task: DiffusionModel) -> DiffusionModel:
    """Weights in the place of zeros, so that the net does something."""
    torch.manual_seed(1)
    for parameter in task.parameters():
        nn.init.normal_(parameter, std=0.1)
    return task


def loader(images: Tensor, labels: Tensor | None = None) -> DataLoader:
    """Images in [0, 1], normalised as a datamodule does it."""
    labels = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    return DataLoader(TensorDataset((images - 0.25) / 0.5, labels), batch_size=16)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v", "flow"])
def test_one_image_is_learned_by_heart(trainer: Callable[..., pl.Trainer], prediction: str) -> None:
    image = (torch.arange(64).view(1, 1, 8, 8) % 7 / 6).expand(16, 1, 8, 8)
    task = make_task(prediction=prediction, optimizer=lambda groups: torch.optim.Adam(groups, lr=5e-3))
    trainer(max_steps=250).fit(task, loader(image))
    made = task.generate_images([0, 0], steps=20)
    assert float((made - image[:2]).abs().mean()) < 0.06
    with pytest.raises(ValueError, match=r"scripts/sample\.py"):
        task.predict_step(None, 0)


def test_images_of_another_range_are_refused_by_name() -> None:
    task = make_task()
    assert_close(task.to_inside(torch.tensor([-0.5, 1.5]).view(1, 1, 1, 2)), torch.tensor([-1.0, 1.0]).view(1, 1, 1, 2))
    with pytest.raises(ValueError, match=r"images reach from 0.25 to 128 .*mean and std"):
        task.to_inside(torch.tensor([0.0, 255.0]).view(1, 1, 1, 2))


def test_a_loss_that_is_not_a_number_names_the_step(trainer: Callable[..., pl.Trainer]) -> None:
    task = make_task()
    fitter = trainer(max_steps=3)

    def poison(*args: Any) -> None:
        if task.global_step == 2:
            nn.init.constant_(task.net.head.bias, float("nan"))

    task.on_train_batch_start = poison  # type: ignore[method-assign]
    with pytest.raises(FloatingPointError, match="the loss is nan at step 2"):
        fitter.fit(task, loader(torch.rand(64, 1, 8, 8)))


def test_a_run_that_fails_keeps_the_good_checkpoint(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = DiffusionModel.losses

    def fail_in_the_second_epoch(self: DiffusionModel, *batch: Tensor) -> Tensor:
        return losses(self, *batch) * (torch.nan if self.training and self.global_step == 5 else 1)

    monkeypatch.setattr(DiffusionModel, "losses", fail_in_the_second_epoch)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    argv = ["--config=configs/diffusion.yaml", "--model.net.widths=[8,16]", "--trainer.limit_train_batches=3"]
    assert run(["fit", *argv, "--trainer.check_val_every_n_epoch=1"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(
        "train.py fit: error: the loss is nan at step 5: the last checkpoint holds the state before"
    )
    for name in ("last", "best"):
        kept = read_checkpoint(f"logs/diffusion/version_0/checkpoints/{name}.ckpt")
        assert kept["global_step"] == 3
        assert all(bool(tensor.isfinite().all()) for tensor in kept["state_dict"].values())


def test_checkpoints_keep_averaged_and_raw_weights_exactly(trainer: Callable[..., pl.Trainer], tmp_path: Path) -> None:
    class ByHand(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *batch: Any) -> None:
            raw = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}
            old = getattr(self, "average", raw)
            self.raw, self.average = raw, {name: 0.9 * old[name] + 0.1 * raw[name] for name in raw}

    by_hand, task = ByHand(), make_task(optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-2))
    fitter = trainer(
        max_epochs=2,
        callbacks=[by_hand, EMAWeightAveraging(decay=0.9), ModelCheckpoint(tmp_path, filename="last")],
        enable_checkpointing=True,
    )
    data = loader(torch.rand(64, 1, 8, 8))
    fitter.fit(task, data, data)
    kept = read_checkpoint(tmp_path / "last.ckpt")
    for name, tensor in by_hand.average.items():
        assert_close(kept["state_dict"][name], tensor)
        assert torch.equal(kept["current_model_state"][name], by_hand.raw[name])
    assert not torch.equal(kept["state_dict"]["net.stem.weight"], by_hand.raw["net.stem.weight"])


def test_validation_is_the_same_each_time_and_told_by_quarter(trainer: Callable[..., pl.Trainer]) -> None:
    task, images = shake(make_task()), torch.rand(40, 1, 8, 8)
    first, second = (trainer().validate(task, loader(images), verbose=False)[0] for _ in range(2))
    assert first == second
    assert {f"val/loss_quarter_{quarter}" for quarter in range(1, 5)} < set(first)


def test_guidance_of_one_is_no_guidance_and_others_extrapolate() -> None:
    task = shake(make_task())
    plain = task.generate_images([0, 1], steps=3)
    assert torch.equal(task.generate_images([0, 1], steps=3, guidance=1.0), plain)
    assert not torch.allclose(task.generate_images([0, 1], steps=3, guidance=3.0), plain)
    # one step by hand: nothing + guidance * (class - nothing)
    x, t = torch.randn(1, 1, 8, 8), torch.tensor([999])
    with torch.no_grad():
        told, nothing = task(x, t, torch.tensor([1])), task(x, t, None)
        image = task.process.to_image(x, nothing + 3 * (told - nothing), t).clamp(-1, 1)
    assert_close(task.generate_images([1], steps=1, guidance=3.0, noise=x), (image + 1) / 2)


def test_images_do_not_depend_on_the_batch_and_lie_within_the_range() -> None:
    task = shake(make_task()).train()
    together = task.generate_images([0, 1, 0], steps=4, sampler="ddpm", seed=3)
    assert task.training
    assert_close(task.generate_images([1], steps=4, sampler="ddpm", seed=3, first=1), together[1:2])
    assert not torch.allclose(task.generate_images([0, 1, 0], steps=4, seed=4), together)
    assert 0 <= float(together.min()) <= float(together.max()) <= 1


def test_hidden_labels_are_those_of_no_class() -> None:
    class Listener(nn.Module):
        num_classes = 2

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.heard = nn.Parameter(torch.zeros(1)), []

        def forward(self, x: Tensor, time: Tensor, labels: Tensor) -> Tensor:
            self.heard.append(labels)
            assert bool(((time > 0) & (time <= 1000)).all())
            return x * self.scale

    net = Listener()
    task = make_task(net=net, label_dropout=0.3)
    task.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    labels = torch.ones(4000, dtype=torch.int64)
    task.training_step((torch.zeros(4000, 1, 8, 8), labels), 0)
    counts = net.heard[0].bincount(minlength=3)
    assert counts[0] == 0
    assert float(counts[2]) / 4000 == pytest.approx(0.3, abs=0.03)


def test_times_are_spread_over_the_whole_range() -> None:
    t = spread_times(50, 1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(t.sort().values // 20, torch.arange(50))
    assert not torch.equal(t, t.sort().values)
    assert set(spread_times(3000, 10).tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ({}, {"labels": [2]}, "classes must be within 0 and 1"),
        ({}, {"guidance": 2.0}, r"guidance \(2.0\) needs a class"),
        ({"label_dropout": 0.0}, {"labels": [0], "guidance": 2.0}, "label_dropout above 0"),
        ({"label_dropout": 1.0}, {}, r"label_dropout \(1.0\)"),
        ({"min_snr_gamma": 0.0}, {}, r"min_snr_gamma \(0.0\)"),
    ],
)
def test_wrong_options_are_refused(task: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(**task).generate_images(**options)


def test_a_net_without_classes_takes_no_labels() -> None:
    net = UNet(in_channels=1, image_size=8, num_classes=2, conditional=False, widths=(8, 16), blocks=1)
    task = make_task(net=net)
    assert task.generate_images(num=3, steps=2).shape == (3, 1, 8, 8)
    with pytest.raises(ValueError, match="was not told classes"):
        task.generate_images([0])
