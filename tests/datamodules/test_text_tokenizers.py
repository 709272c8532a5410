"""Tokenizers that lose nothing."""

from pathlib import Path
from typing import Any

import pytest

from datamodules.text_tokenizers import UNKNOWN, make_tokenizer

TEXTS = [f"document {i}: " + "naïve café \N{PILE OF POO}\n\tindent, " * (3 + i % 4) for i in range(40)]


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
def test_every_training_text_comes_back(kind: str) -> None:
    tokenizer = make_tokenizer(kind, TEXTS, 300)
    for text in (*TEXTS, "\r\n \x00 é", ""):
        if kind != "characters" or set(text) <= set("".join(TEXTS)):
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_sizes_of_vocabularies() -> None:
    assert make_tokenizer("bytes", TEXTS, 0).get_vocab_size() == 256
    assert make_tokenizer("characters", TEXTS, 0).get_vocab_size() == 1 + len(set("".join(TEXTS)))
    learned = make_tokenizer("bpe", TEXTS, 300)
    assert 256 < learned.get_vocab_size() <= 300
    assert len(learned.encode(TEXTS[0]).ids) < len(TEXTS[0].encode()) / 2


def test_bytes_are_a_token_each() -> None:
    assert len(make_tokenizer("bytes", [], 0).encode("né\N{PILE OF POO}\n").ids) == 1 + 2 + 4 + 1


def test_an_unknown_character_has_a_token() -> None:
    tokenizer = make_tokenizer("characters", ["abc\n"], 0)
    ids = tokenizer.encode("aЖ\nb").ids
    assert ids == [tokenizer.token_to_id(token) for token in ("a", UNKNOWN, "\n", "b")]


def test_a_pretrained_tokenizer_and_a_wrong_one(tiny_tokenizer: str, tmp_path: Path, monkeypatch: Any) -> None:
    tokenizer = make_tokenizer(tiny_tokenizer, [], 0)
    assert tokenizer.encode("the film", add_special_tokens=False).tokens == ["the", "film"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"tokenizer 'charcters' is none of bytes, characters, bpe"):
        make_tokenizer("charcters", [], 0)
    with pytest.raises(ValueError, match=r"vocab_size \(200\) must be above 256"):
        make_tokenizer("bpe", TEXTS, 200)
