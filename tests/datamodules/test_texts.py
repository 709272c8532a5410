"""The base of text datamodules: facts, loaders, what is told, and that padding changes no result."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.testing import assert_close
from torch.utils.data import RandomSampler

from datamodules.base import Split
from datamodules.length_buckets import LengthBucketSampler
from datamodules.texts import TextDataModule, TextTable


class Films(TextDataModule):
    """Sentences of 1 to 12 words; the label is the number of words, modulo 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(class_names=["even", "odd"], **kwargs)

    def read_splits(self) -> dict[Split, TextTable]:
        def table(size: int) -> TextTable:
            counts = [1 + index * 7 % 12 for index in range(size)]
            return TextTable([f"film {'good ' * (count - 1)}" for count in counts], labels=[c % 2 for c in counts])

        return {"train": table(103), "val": table(13), "test": table(14)}


@pytest.fixture
def films(tiny_tokenizer: str) -> Any:
    def make(**options: Any) -> Films:
        return Films(**({"tokenizer": tiny_tokenizer, "batch_size": 4} | options))

    return make


def test_facts_are_known_before_setup(films: Any) -> None:
    data = films(max_length=20)
    assert (data.num_classes, data.class_names, data.max_length) == (2, ["even", "odd"], 20)
    assert data.vocab_size == len(data.tokenizer) > 80
    assert not hasattr(data.hparams, "class_names")


@pytest.mark.parametrize("padding", ["bucketed", "longest", "fixed"])
def test_val_and_test_have_every_item_once(films: Any, padding: str) -> None:
    data = films(padding=padding, max_length=16)
    data.setup()
    for loader, size in ((data.val_dataloader(), 13), (data.test_dataloader(), 14), (data.predict_dataloader(), 14)):
        batches = list(loader)
        assert sorted(torch.cat([batch["indices"] for batch in batches]).tolist()) == list(range(size))
        if padding == "fixed":
            assert {batch["input_ids"].shape[1] for batch in batches} == {16}
    assert "labels" not in next(iter(data.predict_dataloader()))


def test_indices_lead_to_the_texts(films: Any) -> None:
    data = films()
    data.setup()
    for batch in data.test_dataloader():
        texts = data.sample_texts("test", batch["indices"].tolist())
        for text, label, mask in zip(texts, batch["labels"], batch["attention_mask"], strict=True):
            words = len(text.split())
            assert int(label) == words % 2
            assert int(mask.sum()) == words + 2
    assert data.predict_names == data.tables["test"].texts


def test_a_pair_is_shown_as_one_line() -> None:
    table = TextTable(["a", "b", "c"], ["x", "y", "z"], [0, 1, 2])
    assert table.sample(1) == "b | y"
    assert table.part([2, 0]) == TextTable(["c", "a"], ["z", "x"], [2, 0])
    assert TextTable(["a", "b"]).part([1]) == TextTable(["b"])


def test_what_is_cut_is_told_once(films: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = films(max_length=8)
    with caplog.at_level("INFO"):
        data.setup("fit")
        data.setup("fit")
    told = [record.getMessage() for record in caplog.records if "Cut to max_length" in record.getMessage()]
    long = {split: sum(len(t.split()) > 6 for t in table.texts) for split, table in data.tables.items()}
    assert told == [
        f"Cut to max_length (8 tokens): {long['train']} of 103 train, {long['val']} of 13 val, {long['test']} of 14 "
        "test texts; --data.max_length takes more"
    ]


def test_only_what_a_stage_needs_is_tokenised(films: Any) -> None:
    data = films()
    data.setup("predict")
    assert set(data.datasets) == {"predict"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": None}, "tokenizer is missing: give the name of the encoder"),
        ({"padding": "long"}, r"padding \('long'\) must be one of \['bucketed', 'longest', 'fixed'\]"),
        ({"max_length": 4}, r"max_length \(4\) must be at least 5: special tokens count"),
    ],
)
def test_wrong_options_are_refused(films: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        films(**options)


class Watch(pl.LightningModule):
    """Notes the samples of every training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.epochs: list[list[int]] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.epochs[-1] += batch["indices"].tolist()
        return self.layer(torch.ones(1, 1)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def run(data: Films, folder: Path, **options: Any) -> Watch:
    task = Watch()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(accelerator="cpu", devices=1, default_root_dir=folder, max_epochs=3, **quiet, **options)
    trainer.fit(task, datamodule=data)
    return task


def test_lightning_keeps_the_buckets_and_tells_them_the_epoch(films: Any, tmp_path: Path) -> None:
    task = run(films(), tmp_path)
    assert [len(set(epoch)) for epoch in task.epochs] == [100, 100, 100]  # 103 without the last, short batch
    assert task.epochs[0] != task.epochs[1] != task.epochs[2]


def test_overfitting_sees_the_same_batch_again(films: Any, tmp_path: Path) -> None:
    task = run(films(), tmp_path, overfit_batches=1)
    assert len(task.epochs[0]) == 4
    assert task.epochs[0] == task.epochs[1] == task.epochs[2]


def test_the_order_of_training(films: Any) -> None:
    data = films()
    data.setup("fit")
    assert isinstance(data.train_dataloader().sampler, LengthBucketSampler)
    other = films(padding="longest")
    other.setup("fit")
    assert isinstance(other.train_dataloader().sampler, RandomSampler)


def test_the_order_of_training_follows_the_seed_of_the_run(films: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = films()
    data.setup("fit")
    orders = []
    for seed in ("1", "2", "1"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        orders.append(list(data.train_dataloader().sampler))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_give_the_same_batches(films: Any, method: str, capfd: pytest.CaptureFixture[str]) -> None:
    alone = films()
    alone.setup("fit")
    data = films(num_workers=1, multiprocessing_context=method)
    data.setup("fit")
    for ours, theirs in zip(alone.val_dataloader(), data.val_dataloader(), strict=True):
        assert_close(ours, theirs)
    assert "forked" not in capfd.readouterr().err  # the tokenizer has threads, which a worker must not inherit in use


def test_padding_changes_no_result(films: Any) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    net = BertModel(BertConfig(vocab_size=100, **sizes)).eval()
    results = []
    for padding in ("bucketed", "longest", "fixed"):
        data = films(padding=padding, max_length=32)
        data.setup("test")
        states = torch.zeros(14, 16)
        for batch in data.test_dataloader():
            indices, _ = batch.pop("indices"), batch.pop("labels")
            states[indices] = net(**batch).last_hidden_state[:, 0].detach()
        results.append(states)
    assert_close(results[0], results[1])
    assert_close(results[0], results[2])


TWO_RANKS = """
import json, sys
from pathlib import Path
import pytorch_lightning as pl, torch
sys.path.insert(0, str(Path(sys.argv[3])))
from test_texts import Films, Watch

class Both(Watch):
    def validation_step(self, batch, batch_idx):
        self.seen = getattr(self, "seen", []) + batch["indices"].tolist()

task = Both()
pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
           check_val_every_n_epoch=2).fit(task, datamodule=Films(tokenizer=sys.argv[2], batch_size=4))
result = {"epochs": task.epochs, "val": task.seen}
Path(sys.argv[1], f"{task.global_rank}.json").write_text(json.dumps(result))
"""


def test_two_ranks_share_training_and_validation(tiny_tokenizer: str, tmp_path: Path, root: Path) -> None:
    import json

    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    argv = [sys.executable, str(script), str(tmp_path), tiny_tokenizer, str(Path(__file__).parent)]
    environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for first, second in zip(ranks[0]["epochs"], ranks[1]["epochs"], strict=True):
        assert len(first) == len(second) == 48
        assert not set(first) & set(second)
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    assert sorted(ranks[0]["val"] + ranks[1]["val"]) == list(range(13))
