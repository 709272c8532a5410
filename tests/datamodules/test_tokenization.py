"""Batches against what the tokenizer itself makes of the same texts."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import datamodules.tokenization as tokenization
from datamodules.tokenization import TokenizedTexts, load_tokenizer

TEXTS = [
    "the film was great",
    "",
    "awful acting and an awful plot, so bad it is good",
    "i loved it \N{PILE OF POO}!",
    "x",
]
PAIRS = ["a plot", "it was bad and i hated the acting", "", "not", "so so so so"]


def expected(tokenizer: Any, texts: list[str], pairs: list[str] | None, **options: Any) -> dict[str, torch.Tensor]:
    return dict(tokenizer(texts, pairs, truncation=True, return_tensors="pt", **options))


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_a_batch_is_what_the_tokenizer_makes(tiny_tokenizer: str, pairs: list[str] | None) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    dataset = TokenizedTexts(tokenizer, TEXTS, pairs=pairs, labels=[0, 1, 2, 0, 1], max_length=12)
    batch = dataset.__getitems__([3, 0, 2])
    some_pairs = pairs and [pairs[3], pairs[0], pairs[2]]
    oracle = expected(tokenizer, [TEXTS[3], TEXTS[0], TEXTS[2]], some_pairs, padding=True, max_length=12)
    assert set(oracle) == {"input_ids", "attention_mask", "token_type_ids"}
    assert_close({name: batch[name] for name in oracle}, oracle)
    assert batch["labels"].tolist() == [0, 0, 2]
    assert batch["indices"].tolist() == [3, 0, 2]
    assert all(value.dtype == torch.int64 for value in batch.values())
    assert len(dataset) == 5


def test_every_batch_may_have_one_width(tiny_tokenizer: str) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    batch = TokenizedTexts(tokenizer, TEXTS, max_length=16, pad_to=16).__getitems__([0, 4])
    oracle = expected(tokenizer, [TEXTS[0], TEXTS[4]], None, padding="max_length", max_length=16)
    assert_close({name: batch[name] for name in oracle}, oracle)
    assert "labels" not in batch


def test_the_longest_come_first_with_their_labels(tiny_tokenizer: str) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    dataset = TokenizedTexts(tokenizer, TEXTS, labels=[10, 11, 12, 13, 14], max_length=64, longest_first=True)
    batch = dataset.__getitems__(range(5))
    lengths = batch["attention_mask"].sum(1).tolist()
    assert lengths == sorted(lengths, reverse=True) == dataset.lengths.tolist()
    assert (batch["labels"] - 10).tolist() == batch["indices"].tolist()
    for row, index in enumerate(batch["indices"].tolist()):
        ids = batch["input_ids"][row, : lengths[row]].tolist()
        assert ids == tokenizer(TEXTS[index])["input_ids"]


def test_what_is_cut_is_counted_and_keeps_its_special_tokens(tiny_tokenizer: str) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    dataset = TokenizedTexts(tokenizer, TEXTS, max_length=8)
    whole = [len(tokenizer(text)["input_ids"]) for text in TEXTS]
    assert dataset.num_truncated == sum(length > 8 for length in whole) > 0
    cut = dataset.__getitems__([2])["input_ids"][0].tolist()
    assert len(cut) == 8
    assert (cut[0], cut[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert TokenizedTexts(tokenizer, TEXTS, max_length=max(whole)).num_truncated == 0


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "decoder", "plain Python"])
def test_what_stays_is_what_the_tokenizer_would_keep(kind: str, side: str, tiny_tokenizer: str, tmp_path: Path) -> None:
    tokenizer: Any
    if kind == "plain Python":
        from transformers import ByT5Tokenizer

        tokenizer = ByT5Tokenizer()
    else:
        tokenizer = load_tokenizer(tiny_tokenizer if kind == "bert" else decoder_tokenizer(tmp_path, pad_token="<end>"))
    if kind == "roberta":  # two separators between texts
        from tokenizers.processors import RobertaProcessing

        tokenizer.backend_tokenizer.post_processor = RobertaProcessing(("bad", 3), ("<unk>", 1))
    tokenizer.truncation_side = side
    draw = random.Random(0)
    texts, pairs = ([" ".join(draw.choices(["good", "bad"], k=n % 15)) for n in range(0, k * 60, k)] for k in (1, 4))
    for max_length in (7, 8, 11, 13):
        for seconds in (None, pairs):
            dataset = TokenizedTexts(tokenizer, texts, pairs=seconds, max_length=max_length)
            whole = [len(ids) for ids in tokenizer(texts, seconds)["input_ids"]]
            assert dataset.num_truncated == sum(length > max_length for length in whole) > 0
            batch = dataset.__getitems__(range(60))
            oracle = expected(tokenizer, texts, seconds, padding=True, max_length=max_length)
            assert_close({name: batch[name] for name in oracle}, oracle)


def test_two_long_texts_cost_no_more_than_their_tokens(tiny_tokenizer: str) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    started = time.perf_counter()
    tokenizer("good " * 40_000)
    alone = time.perf_counter() - started
    started = time.perf_counter()
    TokenizedTexts(tokenizer, ["good " * 2000] * 10, pairs=["bad " * 2000] * 10, max_length=16)
    # not the square of it: the tokenizer's own cut would make 100,000 pieces of each sample
    assert time.perf_counter() - started < 10 * alone + 1


def test_chunks_make_no_difference(tiny_tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    at_once = TokenizedTexts(tokenizer, TEXTS, pairs=PAIRS, max_length=12)
    monkeypatch.setattr(tokenization, "CHUNK", 2)
    in_parts = TokenizedTexts(tokenizer, TEXTS, pairs=PAIRS, max_length=12)
    assert in_parts.num_truncated == at_once.num_truncated
    assert_close(in_parts.__getitems__(range(5)), at_once.__getitems__(range(5)))


def test_padding_is_on_the_right_whatever_the_tokenizer_prefers(tiny_tokenizer: str) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer)
    tokenizer.padding_side = "left"
    batch = TokenizedTexts(tokenizer, TEXTS, max_length=12).__getitems__([0, 4])
    assert batch["input_ids"][1, 0] == tokenizer.cls_token_id
    assert batch["input_ids"][1, -1] == tokenizer.pad_token_id


def decoder_tokenizer(folder: Path, **special: str) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "<unk>": 1, "good": 2, "bad": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special).save_pretrained(folder)
    return str(folder)


def test_a_decoders_tokenizer_pads_with_the_end_of_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        tokenizer = load_tokenizer(decoder_tokenizer(tmp_path, eos_token="<end>"))
    assert "has no padding token: '<end>' pads" in caplog.text
    batch = TokenizedTexts(tokenizer, ["good bad good", "bad"], max_length=8).__getitems__([0, 1])
    assert batch["input_ids"].tolist() == [[2, 3, 2], [3, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "token_type_ids" not in batch


def test_a_tokenizer_that_can_not_pad_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has neither a padding nor an end-of-text token"):
        load_tokenizer(decoder_tokenizer(tmp_path))


def test_a_tokenizer_that_is_not_there_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in (str(tmp_path), "no-such-tokenizer-anywhere"):
        with pytest.raises(ValueError, match="no tokenizer can be loaded from") as caught:
            load_tokenizer(name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
