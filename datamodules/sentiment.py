"""Sentences from four domains, rated by people from -4 (most negative) to 4: 23,703 of them, no download from a hub.

Source: C.J. Hutto, E. Gilbert, VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text,
ICWSM 2014 (MIT licence). Each has the mean of about twenty ratings.
"""

import codecs
import io
import random
import tarfile
from pathlib import Path
from typing import Any, Literal, get_args

from datamodules.base import Split
from datamodules.texts import TextDataModule, TextTable
from lightning_app.assets import fetch

Domain = Literal["movies", "amazon", "news", "tweets"]
FILES: dict[Domain, str] = {
    "movies": "movieReviewSnippets_GroundTruth.txt",
    "amazon": "amazonReviewSnippets_GroundTruth.txt",
    "news": "nytEditorialSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
}
CLASS_NAMES = ["negative", "neutral", "positive"]
FRACTIONS: dict[Split, float] = {"train": 0.8, "val": 0.1, "test": 0.1}


class SentimentDataModule(TextDataModule):
    """Sentences as negative (mean rating <= -0.5), positive (>= 0.5) or neutral.

    Split 80/10/10 for each domain by what a sentence was cut from, so that parts of one product review or editorial
    never straddle a split. Tweets stand for themselves, and so do movie sentences: their source does not tell which
    review each came from.

    Args:
        domains: Which of movies, amazon, news and tweets.
        root: A folder with the four files. None: the package on the index that carries them, see lightning_app.assets.
        kwargs: Tokenizer, padding and loader options, see TextDataModule.

    Raises:
        ValueError: No domain, or an unknown one.
    """

    def __init__(
        self,
        *,
        domains: list[Domain] = ["movies", "amazon", "news", "tweets"],  # noqa: B006 (only read)
        root: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(class_names=CLASS_NAMES, **kwargs)
        if not domains or not set(domains) <= set(get_args(Domain)):
            raise ValueError(f"domains ({list(domains)}) must be some of {list(get_args(Domain))}")
        self.domains, self.root = list(dict.fromkeys(domains)), root

    def prepare_data(self) -> None:
        """Fetches the sentences, once on a machine."""
        if self.root is None:
            fetch("vader-sentences")

    def read_splits(self) -> dict[Split, TextTable]:
        """The three splits, the same in every run with one split_seed.

        Raises:
            ValueError: A file is missing or has a line that is none of a sentence.
        """
        splits: dict[Split, TextTable] = {split: TextTable([], labels=[]) for split in FRACTIONS}
        for domain in self.domains:
            groups: dict[str, list[tuple[str, int]]] = {}
            for identifier, rating, text in read_sentences(self._content(FILES[domain]), FILES[domain]):
                groups.setdefault(identifier.split("_")[0], []).append((text, to_label(rating)))
            names = sorted(groups)
            random.Random(f"{self.split_seed} {domain}").shuffle(names)
            start = 0.0
            for split, fraction in FRACTIONS.items():
                table = splits[split]
                assert table.labels is not None
                for name in names[round(start * len(names)) : round((start + fraction) * len(names))]:
                    table.texts += [text for text, _ in groups[name]]
                    table.labels += [label for _, label in groups[name]]
                start += fraction
        return splits

    def _content(self, name: str) -> bytes:
        if self.root is not None:
            path = Path(self.root) / name
            if not path.is_file():
                raise ValueError(f"root ({self.root}) has no {name}")
            return path.read_bytes()
        with tarfile.open(fetch("vader-sentences") / "hutto_ICWSM_2014.tar.gz") as archive:
            member = archive.extractfile(f"hutto_ICWSM_2014/{name}")
            assert member is not None
            return member.read()


def to_label(rating: float) -> int:
    """The class of a mean rating."""
    return 0 if rating <= -0.5 else 2 if rating >= 0.5 else 1


def read_sentences(content: bytes, name: str) -> list[tuple[str, float, str]]:
    """Identifier, mean rating and text of every line.

    Raises:
        ValueError: A line is not UTF-8 or not of three cells, the second from -4 to 4; file and line are named.
    """
    sentences = []
    for number, line in enumerate(io.BytesIO(content.removeprefix(codecs.BOM_UTF8)), start=1):
        line = line.rstrip(b"\r\n")
        try:
            identifier, cell, sentence = line.decode().split("\t")
            rating = float(cell)
        except ValueError as error:  # of UTF-8 too
            found = line.decode(errors="backslashreplace").split("\t")
            raise ValueError(
                f"{name}, line {number}: expected identifier, rating and text, in UTF-8, found {found}"
            ) from error
        if not -4 <= rating <= 4:  # nor NaN, which would pass for neutral
            raise ValueError(f"{name}, line {number}: the rating ({cell}) must be from -4 to 4")
        sentences.append((identifier, rating, sentence))
    return sentences
