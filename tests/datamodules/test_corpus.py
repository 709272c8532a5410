"""Corpora: tokenizers that lose nothing, files that are built once, blocks against the tokens they come from."""

import functools
import itertools
import json
import operator
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.testing import assert_close

from datamodules.corpus import CorpusDataModule, RandomStarts, find_files, standard_library
from datamodules.text_tokenizers import UNKNOWN
from datamodules.token_files import TokenBlocks, cut_document, split_documents

TEXTS = [f"document {i}: " + "naïve café \N{PILE OF POO}\n\tindent, " * (3 + i % 4) for i in range(40)]


@pytest.fixture
def corpus(tmp_path: Path) -> Any:
    """`corpus(...)` makes a datamodule of 40 small files, with one token a byte."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for index, text in enumerate(TEXTS):
        (folder / f"{index:02d}.txt").write_text(text)

    def make(**options: Any) -> CorpusDataModule:
        defaults = {"paths": [f"{folder}/*.txt"], "tokenizer": "bytes", "max_length": 16, "batch_size": 4}
        defaults |= {"val_fraction": 0.2, "test_fraction": 0.1, "token_dir": str(tmp_path / "tokens")}
        return CorpusDataModule(**(defaults | options))

    return make


# --- Splits


def test_documents_are_shared_out_whole() -> None:
    sizes = [10 + index % 7 for index in range(500)]
    parts = split_documents(sizes, {"train": 0.8, "val": 0.15, "test": 0.05}, seed=1)
    assert sorted(functools.reduce(operator.iadd, parts.values(), [])) == list(range(500))
    for name, share in (("train", 0.8), ("val", 0.15), ("test", 0.05)):
        assert sum(sizes[index] for index in parts[name]) / sum(sizes) == pytest.approx(share, abs=0.01)
    assert split_documents(sizes, {"train": 0.8, "val": 0.2}, 1) == split_documents(
        sizes, {"train": 0.8, "val": 0.2}, 1
    )
    assert split_documents(sizes, {"train": 0.8, "val": 0.2}, 2) != split_documents(
        sizes, {"train": 0.8, "val": 0.2}, 1
    )


def test_a_single_document_is_cut() -> None:
    text = "".join(chr(97 + index % 26) for index in range(1000))
    parts = cut_document(text, {"train": 0.9, "val": 0.1})
    assert "".join(parts.values()) == text
    assert len(parts["val"]) == 100


@pytest.mark.parametrize("sizes", [(5000,), (5000, 300), (2000, 2000, 2000)])
def test_few_documents_are_each_cut_and_no_text_is_in_two_splits(
    corpus: Any, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    texts = ["".join(chr(0x4E00 + 6000 * number + index) for index in range(size)) for number, size in enumerate(sizes)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.md").write_text(text)
    data = corpus(paths=[f"{tmp_path}/*.md"], tokenizer="characters", val_fraction=0.05, test_fraction=0.05)
    facts = json.loads((data.folder / "facts.json").read_text())
    for name, share in (("train", 0.9), ("val", 0.05), ("test", 0.05)):
        assert facts[name]["tokens"] == pytest.approx(share * sum(sizes), abs=len(sizes))
        assert facts[name]["documents"] == len(sizes)
    assert json.loads(data.tokenizer_json)["model"]["vocab"].keys() == {
        UNKNOWN,
        *"".join(t[: round(0.9 * len(t))] for t in texts),
    }


def test_the_vocabulary_knows_the_training_split_alone(corpus: Any, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("ab" * 450 + "z" * 100)
    data = corpus(paths=[str(tmp_path / "one.txt")], tokenizer="characters", val_fraction=0.1, test_fraction=0.0)
    assert json.loads(data.tokenizer_json)["model"]["vocab"] == {UNKNOWN: 0, "a": 1, "b": 2}
    data.setup()
    batch = data.datasets["val"].__getitems__([0])
    assert batch["input_ids"].unique().tolist() == [0]


def test_no_document_is_in_two_splits(corpus: Any) -> None:
    data = corpus()
    data.setup()
    decoded = {}
    for split in ("train", "val", "test"):
        dataset = data.datasets[split]
        ends = [0, *dataset.ends.tolist()]
        texts = [bytes_of(data, dataset.tokens[a:b]) for a, b in itertools.pairwise(ends)]
        decoded[split] = texts
    assert sorted(functools.reduce(operator.iadd, decoded.values(), [])) == sorted(TEXTS)


def bytes_of(data: CorpusDataModule, ids: Any) -> str:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(data.tokenizer_json).decode([int(i) for i in ids], skip_special_tokens=False)


# --- Files


def test_files_are_built_once_and_again_when_something_changes(corpus: Any, tmp_path: Path) -> None:
    first = corpus()
    built = (first.folder / "train.bin").stat().st_mtime_ns
    again = corpus()
    assert again.folder == first.folder
    assert (again.folder / "train.bin").stat().st_mtime_ns == built
    assert corpus(split_seed=1).folder != first.folder
    assert corpus(tokenizer="characters").folder != first.folder
    assert corpus(max_length=8).folder == first.folder  # no part of the files
    (tmp_path / "texts" / "00.txt").write_text("changed " * 20)
    assert corpus().folder != first.folder
    kept = {path.name for path in first.folder.parent.iterdir() if not path.name.startswith(".")}
    assert len(kept) == 4
    assert not [path for path in first.folder.parent.iterdir() if path.name.startswith(".new-")]


def test_several_processes_that_start_together_build_once(corpus: Any, tmp_path: Path, root: Path) -> None:
    code = (
        "import sys\nfrom datamodules.corpus import CorpusDataModule\n"
        "options = {'tokenizer': 'bpe', 'vocab_size': 300, 'max_length': 16}\n"
        "d = CorpusDataModule(paths=[sys.argv[1]], token_dir=sys.argv[2], **options)\n"
        "d.setup(); print(len(d.datasets['train'].tokens))"
    )
    argv = [sys.executable, "-c", code, f"{tmp_path}/texts/*.txt", str(tmp_path / "shared")]
    processes = [
        subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=100) for process in processes]
    assert outputs[0][0] == outputs[1][0] != ""
    assert sum("Tokenising" in error for _, error in outputs) == 1
    assert len([path for path in (tmp_path / "shared").iterdir() if not path.name.startswith(".")]) == 1


def test_facts(corpus: Any) -> None:
    data = corpus(tokenizer="characters")
    val = [text for text in TEXTS if text in decoded_val(data)]
    assert data.bytes_per_token == pytest.approx(sum(len(t.encode()) for t in val) / sum(map(len, val)))
    assert data.vocab_size == len(json.loads(data.tokenizer_json)["model"]["vocab"])


def decoded_val(data: CorpusDataModule) -> set[str]:
    data.setup()
    dataset = data.datasets["val"]
    ends = [0, *dataset.ends.tolist()]
    return {bytes_of(data, dataset.tokens[a:b]) for a, b in itertools.pairwise(ends)}


def test_jsonl_has_a_document_a_line(corpus: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    data = corpus(paths=[str(path)], text_key="body")
    assert (
        sum(json.loads((data.folder / "facts.json").read_text())[s]["documents"] for s in ("train", "val", "test"))
        == 40
    )
    path.write_text('{"body": "fine"}\n{"other": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: no JSON object with 'body'"):
        corpus(paths=[str(path)], text_key="body")


# --- Blocks


def test_a_sequential_split_counts_every_token_once(corpus: Any) -> None:
    data = corpus()
    data.setup()
    dataset = data.datasets["val"]
    tokens = torch.from_numpy(dataset.tokens.astype(np.int64))
    borders = set(dataset.ends.tolist())
    inputs, labels = [], []
    for batch in data.val_dataloader():
        inputs.append(batch["input_ids"])
        labels.append(batch["labels"])
    flat_inputs, flat_labels = torch.cat(inputs).flatten(), torch.cat(labels).flatten()
    assert torch.equal(flat_inputs[: len(tokens) - 1], tokens[:-1])
    counted = {int(i) + 1 for i in (flat_labels != -100).nonzero().flatten()}
    assert counted == set(range(1, len(tokens))) - borders
    used = (flat_labels != -100).nonzero().flatten()
    assert torch.equal(flat_labels[used], tokens[used + 1])


def test_documents_are_told_apart(corpus: Any) -> None:
    data = corpus(max_length=64)
    data.setup()
    dataset = data.datasets["train"]
    batch = dataset.__getitems__([0, 50, 1000])
    for row, start in enumerate((0, 50, 1000)):
        for offset in (0, 1, 30, 63):
            expected = int((dataset.ends <= start + offset).sum())
            assert int(batch["document_ids"][row, offset]) == expected
    together = corpus(keep_apart=False, max_length=64)
    together.setup()
    assert "document_ids" not in together.datasets["train"].__getitems__([0])


def test_random_starts_are_others_in_each_epoch_and_on_each_rank() -> None:
    samplers = [RandomStarts(10_000, 101, num_replicas=2, rank=rank, seed=3) for rank in (0, 1)]
    first = [list(sampler) for sampler in samplers]
    assert [len(part) for part in first] == [51, 51]
    assert not set(first[0]) & set(first[1])
    assert all(0 <= start < 10_000 for part in first for start in part)
    assert first == [list(sampler) for sampler in samplers]
    for sampler in samplers:
        sampler.set_epoch(1)
    assert [list(sampler) for sampler in samplers] != first


def test_a_worker_maps_the_file_for_itself(corpus: Any) -> None:
    data = corpus(num_workers=1, multiprocessing_context="spawn")
    data.setup()
    dataset = data.datasets["val"]
    assert len(pickle.dumps(dataset)) < 5_000
    alone = corpus()
    alone.setup()
    for ours, theirs in zip(data.val_dataloader(), alone.val_dataloader(), strict=True):
        assert_close(ours, theirs)


def test_orders_of_training(corpus: Any) -> None:
    data = corpus()
    data.setup()
    assert isinstance(data.train_dataloader().sampler, RandomStarts)
    dataset = data.datasets["train"]
    assert len(dataset) == len(dataset.tokens) - 16
    one_by_one = corpus(order="sequential")
    one_by_one.setup()
    starts = torch.cat([batch["input_ids"][:, 0] for batch in one_by_one.train_dataloader()])
    assert len(starts) == len(one_by_one.datasets["train"]) // 4 * 4


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_resuming_within_an_epoch_reads_what_would_have_come_next(corpus: Any, tmp_path: Path, order: str) -> None:
    class Reader(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.seen.append(batch["input_ids"])
            return self.weight.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "limit_val_batches": 0}

    def read(steps: int, save_every: int, ckpt_path: Path | None = None) -> list[torch.Tensor]:
        reader, saver = Reader(), ModelCheckpoint(tmp_path, f"{save_every}-{{step}}", every_n_train_steps=save_every)
        pl.Trainer(max_steps=steps, callbacks=[saver], **quiet).fit(
            reader, datamodule=corpus(order=order), ckpt_path=ckpt_path
        )
        return reader.seen

    loader = corpus(order=order)
    loader.setup()
    epoch = len(loader.train_dataloader())
    everything = read(2 * epoch + 3, 1000)
    for stop in (3, epoch, epoch + 2):
        read(stop + 1, stop)
        rest = read(2 * epoch + 3, 1000, tmp_path / f"{stop}-step={stop}.ckpt")
        assert_close(rest, everything[stop:])


# --- Files to read


def test_patterns(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/1.txt", "a/b/2.txt", "a/b/3.py"):
        (tmp_path / name).write_text("x")
    found = find_files([f"{tmp_path}/a/**/*.txt", f"{tmp_path}/a/b/*"])
    assert [path.name for path in found] == ["1.txt", "2.txt", "3.py"]
    with pytest.raises(ValueError, match=r"no file matches '.*a'; it is a folder: try .*a/\*\*/\*\.txt"):
        find_files([f"{tmp_path}/a"])
    with pytest.raises(ValueError, match=r"no file matches '.*\.md'"):
        find_files([f"{tmp_path}/*.md"])


def test_the_standard_library_is_here() -> None:
    files = standard_library()
    assert len(files) > 300
    assert sum(path.stat().st_size for path in files) > 5_000_000
    assert not [path for path in files if "site-packages" in path.parts or "test" in path.parts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "sorted"}, r"order \('sorted'\) must be one of"),
        ({"max_length": 1}, r"max_length \(1\) must be at least 2"),
        ({"val_fraction": 0.0}, r"val_fraction \(0.0\) must be above 0"),
        ({"val_fraction": 0.6, "test_fraction": 0.5}, r"must be below 1"),
    ],
)
def test_wrong_options_are_refused(corpus: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corpus(**options)


def test_too_little_text_is_refused(corpus: Any) -> None:
    data = corpus(max_length=100_000)
    with pytest.raises(ValueError, match=r"the train split has .* tokens, no more than max_length \(100000\)"):
        data.setup()


def test_blocks_of_a_folder(corpus: Any) -> None:
    data = corpus()
    dataset = TokenBlocks(data.folder, "test", length=10, stride=10, keep_apart=False)
    assert len(dataset) == -(-(len(dataset.tokens) - 1) // 10)
    assert dataset[0]["input_ids"].tolist() == dataset.tokens[:10].tolist()
