"""Loss and metrics against naive sums; texts that a task writes; the tokenizer in the checkpoint."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader

from datamodules.text_tokenizers import make_tokenizer
from lightning_app.checkpoints import load_task
from models import LanguageModel
from models.language_model import next_token_loss, squared_normaliser
from models.nets.efficient_transformer import EfficientTransformer

TEXT = "the quick brown fox jumps over a lazy dog. "
TOKENIZER = make_tokenizer("characters", [TEXT], 0)


def make_task(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"max_length": 16, "depth": 2, "embed_dim": 32, "num_heads": 2}
    net = EfficientTransformer(vocab_size=TOKENIZER.get_vocab_size(), **sizes)
    return LanguageModel(net, tokenizer_json=TOKENIZER.to_str(), bytes_per_token=1.0, **options)


def make_loader(batch_size: int = 4) -> DataLoader:
    tokens = torch.tensor(TOKENIZER.encode(TEXT * 6).ids)
    rows = tokens[: len(tokens) // 17 * 17].view(-1, 17)
    labels = rows[:, 1:].clone()
    labels[0, 5:] = -100
    samples = [{"input_ids": row[:-1], "labels": label} for row, label in zip(rows, labels, strict=True)]
    return DataLoader(samples, batch_size=batch_size)  # type: ignore[arg-type]


def naive_loss(task: LanguageModel, loader: Any) -> tuple[float, int]:
    total, count = 0.0, 0
    for batch in loader:
        logs = task.net(batch["input_ids"]).double().log_softmax(-1)
        for row, labels in enumerate(batch["labels"].tolist()):
            for position, label in enumerate(labels):
                if label != -100:
                    total, count = total - float(logs[row, position, label]), count + 1
    return total / count, count


@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_metrics_are_means_over_tokens_whatever_the_batches(
    trainer: Callable[..., pl.Trainer], batch_size: int
) -> None:
    task = make_task()
    (measured,) = trainer().test(task, make_loader(batch_size), verbose=False)
    loss, _ = naive_loss(task.eval(), make_loader())
    assert measured["test/loss"] == pytest.approx(loss, abs=1e-5)
    assert measured["test/perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert measured["test/bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-5)


def test_what_does_not_count_changes_no_loss() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    padded = torch.cat([logits, 100 * torch.randn(2, 50, 7)], 1)
    ignored = torch.cat([labels, torch.full((2, 50), -100)], 1)
    assert_close(next_token_loss(padded, ignored), next_token_loss(logits, labels))
    assert_close(squared_normaliser(padded, ignored), squared_normaliser(logits, labels))
    assert_close(squared_normaliser(logits, labels), logits.exp().sum(-1).log().square().mean())


def test_z_loss_is_added() -> None:
    batch = next(iter(make_loader()))
    plain, extra = make_task(), make_task(z_loss=0.1)
    added = 0.1 * squared_normaliser(plain.net(batch["input_ids"]), batch["labels"])
    assert_close(extra.training_step(batch, 0), plain.training_step(batch, 0) + added)
    with pytest.raises(ValueError, match=r"z_loss \(-1.0\) must not be negative"):
        make_task(z_loss=-1.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Path]:
    """A task that knows its text by heart, and its checkpoint."""
    task = make_task(optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-2))
    path = tmp_path_factory.mktemp("trained") / "task.ckpt"
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    runner = pl.Trainer(accelerator="cpu", devices=1, max_epochs=80, default_root_dir=path.parent, **quiet)
    runner.fit(task, make_loader())
    runner.save_checkpoint(path)
    return task, path


def test_it_learns_a_text_by_heart(trained: tuple[LanguageModel, Path]) -> None:
    task, _ = trained
    assert naive_loss(task.eval(), make_loader())[0] < 0.5
    prompts = ["the q", "a l"]
    texts = task.generate_texts(prompts, max_new_tokens=60, temperature=0.0)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.startswith((TEXT * 2).split(prompt, 1)[1][:11])
        assert len(text) == 60


def test_stop_texts_end_a_continuation_and_are_left_out(trained: tuple[LanguageModel, Path]) -> None:
    task, _ = trained
    texts = task.generate_texts(["the q", "a l"], max_new_tokens=60, temperature=0.0, stop=[" br", " dog"])
    assert texts == ["uick", "azy"]


def test_the_stream_grows(trained: tuple[LanguageModel, Path]) -> None:
    task, _ = trained
    seen = [text for (text,) in task.stream_texts(["the q"], max_new_tokens=5, temperature=0.0)]
    assert [len(text) for text in seen] == [0, 1, 2, 3, 4, 5]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))


def test_generation_leaves_the_mode_and_the_chance_of_training_alone(trained: tuple[LanguageModel, Path]) -> None:
    task, _ = trained
    task.train()
    state = torch.get_rng_state()
    first = task.generate_texts(["the"], max_new_tokens=20, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert task.training
    assert task.generate_texts(["the"], max_new_tokens=20, seed=1) == first


def test_the_tokenizer_travels_in_the_checkpoint_and_in_no_hyperparameter(trained: tuple[LanguageModel, Path]) -> None:
    task, path = trained
    content = torch.load(path, weights_only=True)
    assert content["tokenizer_json"] == TOKENIZER.to_str()
    assert "tokenizer_json" not in content["hyper_parameters"]
    net = EfficientTransformer(vocab_size=TOKENIZER.get_vocab_size(), max_length=16, depth=2, embed_dim=32, num_heads=2)
    loaded = load_task(path, net=net)
    options = {"max_new_tokens": 20, "temperature": 0.0}
    assert loaded.generate_texts(["the q"], **options) == task.generate_texts(["the q"], **options)


def test_another_tokenizer_is_refused(trained: tuple[LanguageModel, Path], trainer: Callable[..., pl.Trainer]) -> None:
    _, path = trained
    task = make_task()
    task.tokenizer_json = make_tokenizer("characters", [TEXT + "?!"], 0).to_str()
    with pytest.raises(ValueError, match="tokenizer is another than the data's"):
        trainer().test(task, make_loader(), ckpt_path=path, weights_only=True)


def test_without_a_tokenizer_nothing_is_written() -> None:
    task = make_task()
    task.tokenizer_json = None
    with pytest.raises(ValueError, match="has no tokenizer"):
        task.generate_texts(["the"])


def test_the_example_input_runs() -> None:
    task = make_task()
    logits: Tensor = task(task.example_input_array)
    assert logits.shape == (2, 8, TOKENIZER.get_vocab_size())
