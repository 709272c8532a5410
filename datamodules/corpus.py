"""Text to model: the source of Python's standard library, which is on every machine, or files of the user's."""

import glob
import itertools
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.utils.data import DistributedSampler, Sampler

from datamodules.base import BaseDataModule, Split
from datamodules.splits import check_fraction
from datamodules.token_files import Documents, TokenBlocks, build_token_files

Order = Literal["random", "sequential"]


class ResumableSampler(DistributedSampler):
    """Samples in an order that follows from seed and epoch alone; `skip` of them are left out once, on resuming."""

    skip = 0

    def __iter__(self) -> Iterator[int]:
        skip, self.skip = self.skip, 0
        return itertools.islice(self.order(), skip, None)

    def order(self) -> Iterator[int]:
        """This rank's share of the epoch."""
        return super().__iter__()


class RandomStarts(ResumableSampler):
    """Random places of a corpus, others in each epoch and on each rank; an epoch has as many tokens as the corpus.

    Args:
        places: Number of places to start from.
        samples: Samples of an epoch, all ranks together.
        num_replicas: Number of ranks.
        rank: This one.
        seed: Seed of the places; the same on every rank.
    """

    def __init__(self, places: int, samples: int, *, num_replicas: int = 1, rank: int = 0, seed: int = 0) -> None:
        super().__init__(range(samples), num_replicas=num_replicas, rank=rank, seed=seed)  # type: ignore[arg-type]
        self.places = places

    def order(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        starts = torch.randint(self.places, (self.total_size,), generator=generator)
        return iter(starts[self.rank :: self.num_replicas].tolist())


class CorpusDataModule(BaseDataModule):
    """Blocks of tokens of a corpus, split by document (few large ones: each into consecutive parts).

    The corpus is tokenised once, into memory-mapped files in a folder that is named after what went into it: files that
    change, or other settings, make another.

    Args:
        paths: Files of text, code, or JSONL with a document a line: names or patterns such as `corpus/**/*.txt`. None:
            the source of Python's standard library.
        text_key: Where the text of a line of JSONL stands.
        tokenizer: `bytes`, `characters`, `bpe` (learned from the training split), or the name or directory of a
            pretrained tokenizer.
        vocab_size: Tokens of `bpe`. As a fact: tokens of the tokenizer.
        max_length: Tokens T of a block.
        order: Training blocks from random places, or one after the other, shuffled.
        keep_apart: Whether a token sees its own document only, where a block has parts of several.
        val_fraction: Share of the corpus for validation.
        test_fraction: Share for test; 0 tests on val.
        token_dir: Where token files go.
        kwargs: Loader options, see BaseDataModule.

    Raises:
        ValueError: No file matches, there is too little text, or an option is out of range.
    """

    def __init__(
        self,
        *,
        paths: list[str] | None = None,
        text_key: str = "text",
        tokenizer: str = "bpe",
        vocab_size: int = 4096,
        max_length: int = 256,
        order: Order = "random",
        keep_apart: bool = True,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        token_dir: str = "data/tokens",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if order not in get_args(Order):
            raise ValueError(f"order ({order!r}) must be one of {list(get_args(Order))}")
        if max_length < 2:
            raise ValueError(f"max_length ({max_length}) must be at least 2")
        check_fraction("val_fraction", val_fraction)
        check_fraction("test_fraction", test_fraction, zero=True)
        if val_fraction + test_fraction >= 1:
            raise ValueError(f"val_fraction ({val_fraction}) + test_fraction ({test_fraction}) must be below 1")
        fractions = {"train": 1 - val_fraction - test_fraction, "val": val_fraction}
        fractions |= {"test": test_fraction} if test_fraction else {}
        files = standard_library() if paths is None else find_files(paths)
        # the tokenizer, and with it the number of tokens, must be known before the net is built
        self.folder = build_token_files(
            Documents(files, text_key),
            Path(token_dir),
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            fractions=fractions,
            seed=self.split_seed,
        )
        self.max_length, self.order, self.keep_apart = max_length, order, keep_apart
        self.test_split = "test" if test_fraction else "val"
        facts = read_facts(self.folder)
        self.vocab_size = int(facts["vocab_size"])
        self.bytes_per_token = facts["val"]["bytes"] / facts["val"]["tokens"]
        self.tokenizer_json = (self.folder / "tokenizer.json").read_text()
        self.collate_fn = collate_blocks
        self.samples_read = 0  # of the running epoch, by a checkpoint

    def setup(self, stage: str | None = None) -> None:
        """Maps the token files."""
        if self.datasets:
            return
        shared: dict[str, Any] = {"length": self.max_length, "keep_apart": self.keep_apart}
        names: dict[Split, str] = {"train": "train", "val": "val", "test": self.test_split, "predict": self.test_split}
        for split, name in names.items():
            stride = 1 if split == "train" and self.order == "random" else self.max_length
            self.datasets[split] = TokenBlocks(self.folder, name, stride=stride, **shared)

    def train_sampler(self, replicas: int, rank: int, *, drop_last: bool) -> Sampler[int] | None:
        """Random places or shuffled blocks; both go on where a checkpoint within an epoch left off."""
        if self.trainer is not None and self.trainer.overfit_batches:  # type: ignore[attr-defined]
            return None
        dataset = self.datasets["train"]
        assert isinstance(dataset, TokenBlocks)
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        shared: dict[str, Any] = {"num_replicas": replicas, "rank": rank, "seed": seed}
        if self.order == "random":
            samples = max(self.batch_size * replicas, len(dataset.tokens) // self.max_length)
            sampler: ResumableSampler = RandomStarts(len(dataset), samples, **shared)
        else:
            sampler = ResumableSampler(dataset, drop_last=drop_last, **shared)
        if self.trainer is not None:
            sampler.set_epoch(self.trainer.current_epoch)  # workers start to read before Lightning says it
        sampler.skip, self.samples_read = self.samples_read, 0
        return sampler

    def state_dict(self) -> dict[str, Any]:
        """How many samples of the running epoch a rank has read."""
        if self.trainer is None:
            return {}
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        done = 0 if progress.is_last_batch else progress.current.processed  # type: ignore[attr-defined]
        return {"samples_read": done * self.batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Leave out what was read before the checkpoint."""
        self.samples_read = state_dict.get("samples_read", 0)
        # Lightning only knows of loaders that do so by themselves
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch")


def read_facts(folder: Path) -> dict[str, Any]:
    """What `build_token_files` found out."""
    import json

    return json.loads((folder / "facts.json").read_text())


def collate_blocks(batch: Any) -> Any:
    """A batch comes put together from `TokenBlocks.__getitems__`."""
    return batch


def find_files(patterns: list[str]) -> list[Path]:
    """The files that match, sorted, each once.

    Raises:
        ValueError: A pattern matches none.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [Path(name) for name in glob.glob(os.path.expanduser(pattern), recursive=True)]
        files = [path for path in matches if path.is_file()]
        if not files:
            hint = f"; it is a folder: try {pattern.rstrip('/')}/**/*.txt" if os.path.isdir(pattern) else ""
            raise ValueError(f"paths: no file matches {pattern!r}{hint}")
        found.update(files)
    return sorted(found)


def standard_library() -> list[Path]:
    """The modules of Python's standard library, without its tests and what is installed beside it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
    return [path for path in sorted(root.rglob("*.py")) if not left_out & set(path.relative_to(root).parts)]
