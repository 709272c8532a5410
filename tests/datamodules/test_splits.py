import random

import pytest
import torch

from datamodules.splits import stratified_split


@pytest.mark.parametrize("trial", range(40))
def test_any_labels_split_disjoint_covering_and_stratified(trial: int) -> None:
    rng = random.Random(trial)
    num_classes = rng.randint(1, 8)
    labels = [rng.randrange(num_classes) for _ in range(rng.randint(1, 300))]
    weights = [rng.random() + 0.01 for _ in range(rng.randint(1, 4))]
    fractions = [weight / sum(weights) for weight in weights]

    splits = stratified_split(labels, fractions, seed=trial)

    assert sorted(index for split in splits for index in split) == list(range(len(labels)))
    for label in set(labels):
        counts = [sum(labels[index] == label for index in split) for split in splits]
        for count, fraction in zip(counts, fractions, strict=True):
            assert abs(count - fraction * labels.count(label)) <= 1 + 1e-9
        assert counts[0] >= 1


def test_same_arguments_same_split_whatever_the_global_state() -> None:
    labels = torch.arange(100) % 7
    torch.manual_seed(1)
    first = stratified_split(labels, [0.7, 0.15, 0.15], seed=3)
    before = torch.get_rng_state()
    second = stratified_split(labels.tolist(), [0.7, 0.15, 0.15], seed=3)
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
    assert first != stratified_split(labels, [0.7, 0.15, 0.15], seed=4)


def test_exact_shares_are_exact() -> None:
    labels = torch.arange(60_000) % 10
    train, val = stratified_split(labels, [1 - 1 / 12, 1 / 12], seed=0)
    assert torch.bincount(labels[val]).tolist() == [500] * 10
    assert len(train) == 55_000


def test_a_lone_sample_trains() -> None:
    assert stratified_split([0], [0.01, 0.99], seed=0) == [[0], []]


@pytest.mark.parametrize("fractions", [[0.5, 0.6], [1.5, -0.5], [0.0, 1.0]])
def test_bad_fractions(fractions: list[float]) -> None:
    with pytest.raises(ValueError, match=str(fractions[0])):
        stratified_split([0, 1], fractions, seed=0)
