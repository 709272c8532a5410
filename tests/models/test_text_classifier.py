"""The text classifier on a tiny encoder: metrics against scikit-learn, and what training and evaluation leave."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader

from lightning_app.checkpoints import load_task
from models import TextClassifier
from models.nets.lora import LoRA
from models.nets.text_encoder import TextEncoder

NAMES = ["bad", "fair", "good"]


def make_net(**options: Any) -> TextEncoder:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return TextEncoder(num_classes=3, model_name=None, config={"model_type": "bert", **sizes}, vocab_size=40, **options)


def make_loader(size: int = 13, batch_size: int = 4) -> DataLoader:
    """Texts whose first word tells the label."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (size,), generator=generator)
    tokens = torch.randint(10, 40, (size, 6), generator=generator)
    tokens[:, 0] = 5 + labels
    mask = (torch.arange(6) < torch.randint(2, 7, (size, 1), generator=generator)).long()
    samples = [
        {"input_ids": tokens[i] * mask[i], "attention_mask": mask[i], "labels": labels[i], "indices": torch.tensor(i)}
        for i in range(size)
    ]
    return DataLoader(samples, batch_size=batch_size)  # type: ignore[arg-type]


def whole(loader: DataLoader) -> dict[str, Tensor]:
    batches = list(loader)
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("batch_size", [1, 4, 13])
def test_metrics_are_those_of_scikit_learn(trainer: Callable[..., pl.Trainer], batch_size: int) -> None:
    from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef

    task, loader = TextClassifier(make_net(), class_names=NAMES), make_loader(batch_size=batch_size)
    (measured,) = trainer().test(task, loader, verbose=False)
    batch = whole(loader)
    probabilities = task.eval().probabilities(batch).detach().double().numpy()
    predictions, labels = probabilities.argmax(1), batch["labels"].numpy()
    assert measured["test/accuracy"] == pytest.approx(accuracy_score(labels, predictions))
    assert measured["test/f1"] == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert measured["test/matthews"] == pytest.approx(matthews_corrcoef(labels, predictions), abs=1e-6)
    assert measured["test/loss"] == pytest.approx(log_loss(labels, probabilities, labels=range(3)), abs=1e-6)


def test_it_learns_what_can_be_learned(trainer: Callable[..., pl.Trainer]) -> None:
    optimizer = lambda groups: torch.optim.AdamW(groups, lr=3e-3)  # noqa: E731
    task = TextClassifier(make_net(dropout=0.0), class_names=NAMES, optimizer=optimizer, layer_decay=0.9)
    runner = trainer(max_epochs=15)
    runner.fit(task, make_loader(48, 8), make_loader(13))
    assert runner.callback_metrics["val/accuracy"] > 0.9
    assert runner.callback_metrics["train/accuracy"] > 0.9


def test_predictions_know_their_sample(trainer: Callable[..., pl.Trainer]) -> None:
    task, loader = TextClassifier(make_net(), class_names=NAMES), make_loader()
    outputs = trainer().predict(task, loader)
    assert torch.cat([output["indices"] for output in outputs]).tolist() == list(range(13))
    probabilities = torch.cat([output["probabilities"] for output in outputs])
    assert_close(probabilities, task.eval().probabilities(whole(loader)).detach())
    assert_close(probabilities.sum(1), torch.ones(13))


def test_the_example_input_runs() -> None:
    task = TextClassifier(make_net(), class_names=NAMES)
    assert task(**task.example_input_array).shape == (2, 3)


def test_bf16_predicts_nearly_the_same() -> None:
    task, batch = TextClassifier(make_net(), class_names=NAMES).eval(), whole(make_loader())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = task.probabilities(batch)
    assert low.dtype == torch.float32
    assert_close(low, task.probabilities(batch), atol=0.02, rtol=0.02)


def test_training_is_done_in_train_mode_but_for_frozen_layers(trainer: Callable[..., pl.Trainer]) -> None:
    net = make_net(freeze_layers=1)
    task = TextClassifier(net, class_names=NAMES)
    modes = []
    net.encoder.embeddings.register_forward_pre_hook(
        lambda module, _: modes.append((module.training, net.head.training))
    )
    trainer(max_epochs=1, num_sanity_val_steps=1).fit(task, make_loader(8), make_loader(4))
    assert modes[1:3] == [(False, True)] * 2  # after the sanity check


def test_a_run_with_low_rank_updates_comes_back_from_its_checkpoint(
    trainer: Callable[..., pl.Trainer], tmp_path: Path
) -> None:
    task = TextClassifier(make_net(lora=LoRA(rank=2)), class_names=NAMES)
    runner = trainer(max_epochs=1)
    runner.fit(task, make_loader(8))
    runner.save_checkpoint(tmp_path / "lora.ckpt")
    loaded = load_task(tmp_path / "lora.ckpt", net=make_net(lora=LoRA(rank=2)))
    batch = whole(make_loader())
    assert_close(loaded.probabilities(batch), task.eval().probabilities(batch))
    assert loaded.class_names == NAMES
