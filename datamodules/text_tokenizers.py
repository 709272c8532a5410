"""Tokenizers of a language model's corpus, each as the JSON of the Hugging Face `tokenizers` package.

One format for all of them: it travels in the checkpoint as text, and `Tokenizer.from_str` is all that reads it.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Kind = Literal["bytes", "characters", "bpe"]
UNKNOWN = "<unk>"  # a character that the training texts do not have


def make_tokenizer(kind: str, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """A tokenizer of a kind, or a pretrained one.

    Args:
        kind: `bytes`; `characters`, those of the texts; `bpe`, byte pairs learned from the texts (Sennrich et al.,
            arXiv 1508.07909); or the name or directory of a pretrained tokenizer.
        texts: The training texts.
        vocab_size: Tokens of `bpe`.

    Raises:
        ValueError: There is no such tokenizer, or a vocabulary that is too small.
    """
    if kind == "bytes":
        return byte_pairs([], 256)
    if kind == "characters":
        return characters(texts)
    if kind == "bpe":
        if vocab_size < 257:
            raise ValueError(f"vocab_size ({vocab_size}) must be above 256, the bytes that bpe starts from")
        return byte_pairs(texts, vocab_size)
    from datamodules.tokenization import load_tokenizer

    try:
        return load_tokenizer(kind)._tokenizer
    except (ValueError, AttributeError) as error:
        raise ValueError(f"tokenizer {kind!r} is none of {', '.join(get_args(Kind))}; as a model's: {error}") from error


def characters(texts: Iterable[str]) -> "Tokenizer":
    """One token for each character of the texts, in order, after one for all others."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(set().union(*map(set, texts)))
    vocabulary = {UNKNOWN: 0} | {character: index for index, character in enumerate(alphabet, start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def byte_pairs(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """Bytes and the commonest pairs of them, pairs of pairs and so on; every text can be written with them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_all(tokenizer: "Tokenizer", texts: Iterable[str], batch: int = 256) -> Iterator[list[int]]:
    """The tokens of each text, without special ones."""
    waiting: list[str] = []
    for text in texts:
        waiting.append(text)
        if len(waiting) == batch:
            yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(waiting, add_special_tokens=False))
            waiting = []
    yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(waiting, add_special_tokens=False))
