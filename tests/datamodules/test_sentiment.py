"""The rated sentences: the real ones where the index has them, small files for the rules."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from datamodules.sentiment import FILES, SentimentDataModule, read_sentences, to_label
from lightning_app.assets import fetch

SIZES = {"movies": 10_605, "amazon": 3_708, "news": 5_190, "tweets": 4_200}


@pytest.fixture(scope="module")
def sentences() -> Path:
    try:
        return fetch("vader-sentences")
    except ValueError as error:
        pytest.skip(f"the sentences can't be fetched: {error}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four files: 30 groups of 1 to 5 sentences, ratings from -3 to 3."""
    for name in FILES.values():
        lines = [
            f"{group}_{part}\t{(group * 5 + part) % 13 / 2 - 3}\t{name} {group} {part}"
            for group in range(1, 31)
            for part in range(1, 2 + group % 5)
        ]
        (tmp_path / name).write_bytes("\r\n".join(lines).encode())
    return tmp_path


@pytest.mark.parametrize(("rating", "label"), [(-4, 0), (-0.5, 0), (-0.49, 1), (0, 1), (0.49, 1), (0.5, 2), (3.9, 2)])
def test_classes_of_ratings(rating: float, label: int) -> None:
    assert to_label(rating) == label


def test_no_sentence_is_lost_and_no_group_straddles(root: Path, tiny_tokenizer: str) -> None:
    splits = SentimentDataModule(root=str(root), tokenizer=tiny_tokenizer).read_splits()
    expected = {}
    for name in FILES.values():
        for identifier, rating, text in read_sentences((root / name).read_bytes(), name):
            expected[text] = (identifier.split("_")[0], to_label(rating))
    found = {text: label for t in splits.values() for text, label in zip(t.texts, t.labels or [], strict=True)}
    assert found == {text: label for text, (_, label) in expected.items()}
    assert sum(len(table) for table in splits.values()) == len(expected)
    for name in FILES.values():
        groups = [{expected[text][0] for text in table.texts if text.startswith(name)} for table in splits.values()]
        assert [len(group) for group in groups] == [24, 3, 3]  # 80/10/10 of the groups of each domain
        assert len(set.union(*groups)) == 30


def test_the_split_depends_on_the_seed_alone(root: Path, tiny_tokenizer: str) -> None:
    code = (
        "import sys, json, random; random.seed(int(sys.argv[3]))\n"
        "from datamodules.sentiment import SentimentDataModule\n"
        "data = SentimentDataModule(root=sys.argv[1], tokenizer=sys.argv[2])\n"
        "print(json.dumps({split: table.texts for split, table in data.read_splits().items()}))"
    )

    # both at once: most of their time goes into imports
    argv = [sys.executable, "-c", code, str(root), tiny_tokenizer]
    cwd = Path(__file__).resolve().parents[2]
    processes = [
        subprocess.Popen([*argv, seed], cwd=cwd, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    first, second = (json.loads(process.communicate(timeout=150)[0]) for process in processes)
    assert first == second
    other = SentimentDataModule(root=str(root), tokenizer=tiny_tokenizer, split_seed=1).read_splits()
    assert {split: table.texts for split, table in other.items()} != first


def test_domains_can_be_chosen(root: Path, tiny_tokenizer: str) -> None:
    data = SentimentDataModule(root=str(root), tokenizer=tiny_tokenizer, domains=["tweets", "movies"])
    texts = [text for table in data.read_splits().values() for text in table.texts]
    assert {text.split()[0] for text in texts} == {FILES["tweets"], FILES["movies"]}
    everything = SentimentDataModule(root=str(root), tokenizer=tiny_tokenizer).read_splits()
    alone = data.read_splits()
    assert set(alone["test"].texts) < set(everything["test"].texts)  # a domain's split is its own


@pytest.mark.parametrize("domains", [[], ["movies", "books"]])
def test_wrong_domains_are_refused(tiny_tokenizer: str, domains: Any) -> None:
    with pytest.raises(
        ValueError, match=r"domains \(\[.*\]\) must be some of \['movies', 'amazon', 'news', 'tweets'\]"
    ):
        SentimentDataModule(tokenizer=tiny_tokenizer, domains=domains)


def test_wrong_files_are_named(root: Path, tiny_tokenizer: str) -> None:
    data = SentimentDataModule(root=str(root), tokenizer=tiny_tokenizer)
    (root / FILES["tweets"]).unlink()
    with pytest.raises(ValueError, match=r"has no tweets_GroundTruth\.txt"):
        data.read_splits()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"2\thigh\tnot so", r"expected identifier, rating and text, .* found \['2', 'high', 'not so'\]"),
        (b"2\t1.5", r"expected .* found \['2', '1.5'\]"),
        (b"2\t1.5\ttwo\ttexts", r"expected .* found \['2', '1.5', 'two', 'texts'\]"),
        (b"", r"expected .* found \[''\]"),
        ("2\t1.5\tcaf\u00e9".encode("latin-1"), r"expected .* in UTF-8, found \['2', '1.5', 'caf\\\\xe9'\]"),
        (b"2\tnan\tno one rated it", r"the rating \(nan\) must be from -4 to 4"),
        (b"2\t4.5\ttoo good", r"the rating \(4\.5\) must be from -4 to 4"),
    ],
)
def test_wrong_lines_are_named(line: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"some\.txt, line 2: {complaint}"):
        read_sentences(b"1\t0.5\tfine\r\n" + line + b"\r\n3\t0\tso so", "some.txt")


def test_lines_are_read_as_they_stand() -> None:
    content = '\ufeff1_1\t-0.5\t"quoted, \u2028 caf\u00e9 \x85\r\n1_2\t.5\t last '.encode()
    assert read_sentences(content, "some.txt") == [
        ("1_1", -0.5, '"quoted, \u2028 caf\u00e9 \x85'),
        ("1_2", 0.5, " last "),
    ]


def test_the_real_sentences(sentences: Path, tiny_tokenizer: str) -> None:
    labels: Counter[int] = Counter()
    for domain, size in SIZES.items():
        data = SentimentDataModule(tokenizer=tiny_tokenizer, domains=[domain])
        splits = data.read_splits()
        assert sum(len(table) for table in splits.values()) == size
        for split, share in (("train", 0.8), ("val", 0.1), ("test", 0.1)):
            assert len(splits[split]) / size == pytest.approx(share, abs=0.02)
            labels.update(splits[split].labels or [])
    assert sum(labels.values()) == 23_703
    assert labels == {0: 9_181, 1: 4_244, 2: 10_278}
