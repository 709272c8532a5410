import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

from models import VisionClassifier
from models import test_time_augmentation as augmentation
from models.optim import Schedule

NAMES = ["cat", "dog", "eel", "fox"]


class Logits(nn.Module):
    """Reads the logits off the first pixels of the image, so that a test chooses the predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * images[:, 0, 0, : len(NAMES)]


class SmallNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


def make_task(net: nn.Module, **options: Any) -> VisionClassifier:
    facts = {"class_names": NAMES, "image_size": 8, "mean": [0.5], "std": [0.25]}
    return VisionClassifier(net, **(facts | options))


def make_data(size: int = 13) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(size, 1, 8, 8, generator=generator)
    labels = torch.randint(len(NAMES), (size,), generator=generator)
    rows = torch.arange(0, size, 2)
    images[rows, 0, 0, labels[rows]] += 2.0  # every other one is mostly right
    return TensorDataset(images, labels)


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error (Naeini et al., 2015) bin by bin."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    error = 0.0
    for index in range(bins):
        chosen = (confidence > index / bins) & (confidence <= (index + 1) / bins)
        if chosen.any():
            error += chosen.mean() * abs(right[chosen].mean() - confidence[chosen].mean())
    return error


def expected_metrics(data: TensorDataset, split: str) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef

    images, labels = data.tensors
    probabilities = images[:, 0, 0, :4].double().softmax(1).numpy()
    predictions = probabilities.argmax(1)
    return {
        f"{split}/accuracy": accuracy_score(labels, predictions),
        f"{split}/f1": f1_score(labels, predictions, average="macro"),
        f"{split}/matthews": matthews_corrcoef(labels, predictions),
        f"{split}/calibration_error": calibration_error(probabilities, labels.numpy()),
        f"{split}/loss": log_loss(labels, probabilities, labels=range(4)),
    }


# --- Metrics


@pytest.mark.parametrize("batch_size", [1, 4, 5, 13, 50])
@pytest.mark.parametrize("split", ["val", "test"])
def test_metrics_are_those_of_scikit_learn(trainer: Callable[..., pl.Trainer], split: str, batch_size: int) -> None:
    data, runner = make_data(13), trainer()
    run = runner.validate if split == "val" else runner.test
    (measured,) = run(make_task(Logits()), DataLoader(data, batch_size=batch_size), verbose=False)
    assert measured == pytest.approx(expected_metrics(data, split), abs=1e-6)


def test_macro_f1_leaves_out_a_class_that_never_occurs(trainer: Callable[..., pl.Trainer]) -> None:
    images = torch.full((6, 1, 8, 8), -5.0)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    images[range(6), 0, 0, torch.tensor([0, 0, 1, 1, 1, 1])] = 5.0
    data = TensorDataset(images, labels)
    (measured,) = trainer().test(make_task(Logits()), DataLoader(data, batch_size=4), verbose=False)
    assert measured["test/f1"] == pytest.approx(expected_metrics(data, "test")["test/f1"])


class Logged(pl.Callback):
    """The validation metrics as every epoch of a fit logs them, the sanity check's too."""

    def __init__(self) -> None:
        self.sanity: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        metrics = {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith("val/")}
        (self.sanity if trainer.sanity_checking else self.epochs).append(metrics)


def test_sanity_batches_and_earlier_epochs_do_not_count(trainer: Callable[..., pl.Trainer]) -> None:
    data, logged = make_data(13), Logged()
    task = make_task(Logits(), optimizer=functools.partial(SGD, lr=0.0))
    runner = trainer(max_epochs=3, num_sanity_val_steps=2, callbacks=[logged])
    runner.fit(task, DataLoader(data, batch_size=4), DataLoader(data, batch_size=4))
    assert len(logged.sanity) == 1
    assert len(logged.epochs) == 3
    for metrics in logged.epochs:
        assert metrics == pytest.approx(expected_metrics(data, "val"), abs=1e-6)


def test_an_interrupted_evaluation_does_not_count(trainer: Callable[..., pl.Trainer]) -> None:
    class Interrupt(pl.Callback):
        def on_validation_batch_end(self, *args: Any) -> None:
            raise RuntimeError("interrupted")

        on_test_batch_end = on_validation_batch_end

    task, data = make_task(Logits()), make_data(13)
    loader = DataLoader(data, batch_size=4)
    for split in ("val", "test"):
        broken, whole = trainer(callbacks=[Interrupt()]), trainer()
        with pytest.raises(RuntimeError, match="interrupted"):
            (broken.validate if split == "val" else broken.test)(task, loader, verbose=False)
        (measured,) = (whole.validate if split == "val" else whole.test)(task, loader, verbose=False)
        assert measured == pytest.approx(expected_metrics(data, split), abs=1e-6)


def test_training_metrics_are_averages_over_samples(trainer: Callable[..., pl.Trainer]) -> None:
    data = make_data(13)
    runner = trainer(max_epochs=1, limit_val_batches=0)
    runner.fit(make_task(Logits(), optimizer=functools.partial(SGD, lr=0.0)), DataLoader(data, batch_size=4))
    expected = expected_metrics(data, "train")["train/accuracy"]
    assert float(runner.callback_metrics["train/accuracy"]) == pytest.approx(expected)


@pytest.mark.parametrize("logits", [200.0, -200.0])
def test_extreme_logits_keep_the_loss_finite(trainer: Callable[..., pl.Trainer], logits: float) -> None:
    images = torch.zeros(4, 1, 8, 8)
    images[:, 0, 0, 0] = logits
    data = TensorDataset(images, torch.zeros(4, dtype=torch.int64))
    (measured,) = trainer().test(make_task(Logits()), DataLoader(data, batch_size=2), verbose=False)
    assert measured["test/loss"] == pytest.approx(0.0) if logits > 0 else 80 < measured["test/loss"] < 100


# --- Steps


def test_validation_and_test_steps_return_probabilities_and_labels(trainer: Callable[..., pl.Trainer]) -> None:
    class Outputs(pl.Callback):
        def on_test_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, *args: Any) -> None:
            assert set(outputs) == {"probabilities", "labels"}
            torch.testing.assert_close(outputs["probabilities"], batch[0][:, 0, 0, :4].softmax(1))
            assert torch.equal(outputs["labels"], batch[1])
            self.seen = True

        on_validation_batch_end = on_test_batch_end

    loader = DataLoader(make_data(), batch_size=4)
    for run in ("validate", "test"):
        outputs = Outputs()
        getattr(trainer(callbacks=[outputs]), run)(make_task(Logits()), loader, verbose=False)
        assert outputs.seen


def test_predictions_carry_the_indices(trainer: Callable[..., pl.Trainer]) -> None:
    images = make_data(13).tensors[0]
    indices = torch.arange(13).flip(0)
    batches = trainer().predict(make_task(Logits()), DataLoader(TensorDataset(images, indices), batch_size=5))
    assert batches is not None
    assert all(set(batch) == {"probabilities", "indices"} for batch in batches)
    assert torch.equal(torch.cat([batch["indices"] for batch in batches]), indices)
    probabilities = torch.cat([batch["probabilities"] for batch in batches])
    torch.testing.assert_close(probabilities, images[:, 0, 0, :4].softmax(1))


def training_loss(task: VisionClassifier, images: Tensor, labels: Tensor) -> Tensor:
    task.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    return task.training_step((images, labels), 0)


def test_label_smoothing_is_that_of_the_paper() -> None:
    images, labels = make_data(5).tensors
    log_probabilities = images[:, 0, 0, :4].log_softmax(1)
    target = 0.8 * F.one_hot(labels, 4) + 0.2 / 4
    expected = -(target * log_probabilities).sum(1).mean()
    torch.testing.assert_close(training_loss(make_task(Logits(), label_smoothing=0.2), images, labels), expected)


def test_label_smoothing_is_for_training_only(trainer: Callable[..., pl.Trainer]) -> None:
    data = make_data()
    task = make_task(Logits(), label_smoothing=0.3)
    (measured,) = trainer().test(task, DataLoader(data, batch_size=4), verbose=False)
    assert measured["test/loss"] == pytest.approx(expected_metrics(data, "test")["test/loss"], abs=1e-6)


def test_mixup_blends_each_image_and_its_target_with_its_neighbour() -> None:
    images, labels = make_data(6).tensors
    task = make_task(Logits(), mixup=0.4)
    torch.manual_seed(3)
    mixed, targets = task.mix(images, labels)
    assert targets.shape == (6, 4)
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    # the share of the image itself, from the pixels, is the share of its own label
    other = images.roll(1, 0)
    share = ((mixed - other) / (images - other)).median()
    torch.testing.assert_close(mixed, share * images + (1 - share) * other, atol=1e-4, rtol=1e-4)
    expected = share * F.one_hot(labels, 4) + (1 - share) * F.one_hot(labels.roll(1), 4)
    torch.testing.assert_close(targets, expected, atol=1e-4, rtol=1e-4)


def test_cutmix_pastes_a_box_and_shares_the_target_by_area() -> None:
    images, labels = make_data(6).tensors
    task = make_task(Logits(), cutmix=1.0)
    torch.manual_seed(1)
    mixed, targets = task.mix(images, labels)
    own = (mixed == images).float().mean((1, 2, 3))
    assert ((mixed == images) | (mixed == images.roll(1, 0))).all()
    assert 0 < own[0] < 1
    expected = own[:, None] * F.one_hot(labels, 4) + (1 - own[:, None]) * F.one_hot(labels.roll(1), 4)
    torch.testing.assert_close(targets, expected)


def test_mixed_loss_is_the_mixture_of_the_losses() -> None:
    images, labels = make_data(6).tensors
    task = make_task(Logits(), mixup=0.4, cutmix=1.0, label_smoothing=0.1)
    kinds = set()
    for seed in range(8):
        torch.manual_seed(seed)
        mixed, targets = task.mix(images, labels)
        kinds.add(bool(((mixed == images) | (mixed == images.roll(1, 0))).all()))
        smooth = 0.9 * targets + 0.1 / 4
        expected = -(smooth * mixed[:, 0, 0, :4].log_softmax(1)).sum(1).mean()
        torch.manual_seed(seed)
        torch.testing.assert_close(training_loss(task, images, labels), expected)
    assert kinds == {True, False}  # each batch is mixed by one of the two


def test_one_image_can_be_mixed() -> None:
    images, labels = make_data(1).tensors
    loss = training_loss(make_task(Logits(), mixup=0.2), images, labels)
    torch.testing.assert_close(loss, F.cross_entropy(images[:, 0, 0, :4], labels))


def test_mixing_is_for_training_only(trainer: Callable[..., pl.Trainer]) -> None:
    data = make_data()
    task = make_task(Logits(), mixup=1.0, cutmix=1.0)
    (measured,) = trainer().validate(task, DataLoader(data, batch_size=4), verbose=False)
    assert measured == pytest.approx(expected_metrics(data, "val"), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"channels_last": False}])
def test_one_batch_is_overfitted(trainer: Callable[..., pl.Trainer], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    data = make_data(8)
    task = make_task(
        SmallNet(), optimizer=functools.partial(AdamW, lr=0.02), schedule=Schedule("cosine", warmup=0.1), **options
    )
    runner = trainer(max_epochs=60)
    runner.fit(task, DataLoader(data, batch_size=8))
    assert runner.callback_metrics["train/loss"] < 0.01
    assert runner.callback_metrics["train/accuracy"] == 1.0
    (measured,) = runner.test(task, DataLoader(data, batch_size=8), verbose=False)
    assert measured["test/accuracy"] == 1.0
    assert measured["test/loss"] < 0.01


def test_channels_last_changes_the_layout_and_not_the_logits() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    images, figures = torch.randn(2, 3, 8, 8), {"mean": [0.5] * 3, "std": [0.2] * 3}
    expected = net(images)
    task = make_task(net, channels_last=True, **figures)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(task(images), expected)
    task = make_task(net, channels_last=False, **figures)
    assert net[0].weight.is_contiguous()
    torch.testing.assert_close(task(images.to(memory_format=torch.channels_last)), expected)


# --- Test-time augmentation


@pytest.mark.parametrize("kind", ["flip", "five_crop", "ten_crop"])
def test_probabilities_are_the_mean_over_views_outside_of_fit(trainer: Callable[..., pl.Trainer], kind: Any) -> None:
    torch.manual_seed(0)
    data, net = make_data(6), SmallNet().eval()
    task = make_task(net, test_time_augmentation=kind)
    with torch.no_grad():
        views = augmentation.make_views(data.tensors[0], kind)
        expected = sum(net(view).softmax(1) for view in views) / len(views)
        plain = net(data.tensors[0]).softmax(1)
    assert (expected - plain).abs().max() > 1e-3

    seen: dict[str, Tensor] = {}

    class Seen(pl.Callback):
        def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, *args: Any) -> None:
            seen["fit" if trainer.state.fn == "fit" else "validate"] = outputs["probabilities"]

        def on_test_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, *args: Any) -> None:
            seen["test"] = outputs["probabilities"]

    loader = DataLoader(data, batch_size=6)
    runner = trainer(callbacks=[Seen()])
    runner.validate(task, loader, verbose=False)
    runner.test(task, loader, verbose=False)
    (predicted,) = runner.predict(task, loader)
    for probabilities in (seen["validate"], seen["test"], predicted["probabilities"]):
        torch.testing.assert_close(probabilities, expected)
    torch.testing.assert_close(task.eval().probabilities(data.tensors[0]).detach(), expected)

    task = make_task(net, test_time_augmentation=kind, optimizer=functools.partial(SGD, lr=0.0))
    trainer(max_epochs=1, callbacks=[Seen()]).fit(task, loader, loader)
    torch.testing.assert_close(seen["fit"], plain)


# --- What a checkpoint records, and what is refused


def test_names_and_normalisation_are_recorded(trainer: Callable[..., pl.Trainer], tmp_path: Path) -> None:
    runner = trainer(max_epochs=1)
    loader = DataLoader(make_data(), batch_size=4)
    runner.fit(make_task(Logits(), test_time_augmentation="flip"), loader, loader)
    runner.save_checkpoint(tmp_path / "task.ckpt")
    recorded = torch.load(tmp_path / "task.ckpt", weights_only=True)["hyper_parameters"]
    expected = {"class_names": NAMES, "mean": [0.5], "std": [0.25], "image_size": 8, "test_time_augmentation": "flip"}
    assert {name: recorded[name] for name in expected} == expected
    task = VisionClassifier.load_from_checkpoint(tmp_path / "task.ckpt", net=Logits(), weights_only=True)
    assert (task.class_names, task.mean, task.std) == (NAMES, [0.5], [0.25])
    assert task.example_input_array.shape == (2, 1, 8, 8)


def test_metrics_leave_nothing_in_a_checkpoint() -> None:
    assert list(make_task(Logits()).state_dict()) == ["net.scale"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, r"label_smoothing \(1.0\) must be within \[0, 1\)"),
        ({"label_smoothing": -0.1}, r"label_smoothing \(-0.1\)"),
        ({"mixup": -1.0}, r"mixup \(-1.0\) and cutmix \(0.0\) must not be negative"),
        ({"cutmix": -2.0}, r"cutmix \(-2.0\) must not be negative"),
        ({"test_time_augmentation": "flop"}, r"test_time_augmentation 'flop' must be one of .*'flip'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(Logits(), **options)


def test_a_net_of_another_number_of_classes_is_refused_before_training(trainer: Callable[..., pl.Trainer]) -> None:
    task = make_task(Logits(), class_names=NAMES[:3])
    loader = DataLoader(make_data(), batch_size=4)
    runner = trainer(max_epochs=1)
    with pytest.raises(ValueError, match="the net makes 4 classes and class_names has 3"):
        runner.fit(task, loader, loader)
    assert runner.global_step == 0
