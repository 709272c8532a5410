"""The sampler's promises: every sample once, batches of like length on every rank, another order each epoch."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from datamodules.length_buckets import LengthBucketSampler


def make_lengths(size: int) -> torch.Tensor:
    """Lengths as texts have them: many short, a few long."""
    values = torch.distributions.LogNormal(3.0, 0.7)
    torch.manual_seed(0)
    return values.sample((size,)).clamp(1, 512).long()


def padding_share(lengths: torch.Tensor, order: list[int], batch_size: int) -> float:
    batches = lengths[order].split(batch_size)
    padded = sum(int(batch.max()) * len(batch) for batch in batches)
    return 1 - int(lengths[order].sum()) / padded


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, 4003])
def test_every_sample_comes_once(size: int) -> None:
    sampler = LengthBucketSampler(make_lengths(size), batch_size=8)
    order = list(sampler)
    assert sorted(order) == list(range(size))
    assert len(sampler) == size


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 5, 48, 50, 1000, 4003])
def test_ranks_share_the_samples(size: int, replicas: int) -> None:
    lengths = make_lengths(size)
    for drop_last in (True, False):
        samplers = [
            LengthBucketSampler(lengths, batch_size=8, num_replicas=replicas, rank=rank, drop_last=drop_last)
            for rank in range(replicas)
        ]
        orders = [list(sampler) for sampler in samplers]
        assert {len(order) for order in orders} == {len(samplers[0])}
        counts = Counter(index for order in orders for index in order)
        if drop_last:
            assert set(counts.values()) <= {1}
            assert len(counts) == size // (8 * replicas) * 8 * replicas
        else:
            assert set(counts) == set(range(size))
            assert sum(counts.values()) - size < replicas  # repeated, so that every rank has as many


def test_padding_is_a_fraction_of_that_of_random_batches() -> None:
    lengths = make_lengths(20_000)
    bucketed = padding_share(lengths, list(LengthBucketSampler(lengths, batch_size=32, drop_last=True)), 32)
    drawn = padding_share(lengths, torch.randperm(len(lengths)).tolist(), 32)
    assert drawn > 0.5
    assert bucketed < 0.08


def test_the_batches_of_a_step_are_of_like_length_on_all_ranks() -> None:
    lengths = make_lengths(9600)
    orders = [
        lengths[list(LengthBucketSampler(lengths, batch_size=16, num_replicas=3, rank=rank, drop_last=True))]
        for rank in range(3)
    ]
    longest = torch.stack([order.view(-1, 16).amax(1) for order in orders]).float()  # (ranks, steps)
    assert float(((longest.amax(0) - longest.amin(0)) / longest.amax(0)).mean()) < 0.05


def test_batches_come_in_no_order_of_length() -> None:
    lengths = make_lengths(6400)
    along, between = [], []
    for seed in range(10):
        order = list(LengthBucketSampler(lengths, batch_size=32, seed=seed))
        longest = lengths[order].view(-1, 32).amax(1).float()
        along.append(float(torch.corrcoef(torch.stack([longest, torch.arange(len(longest)).float()]))[0, 1]))
        between.append(float(torch.corrcoef(torch.stack([longest[1:], longest[:-1]]))[0, 1]))
    assert abs(sum(along) / 10) < 0.1
    assert abs(sum(between) / 10) < 0.1


def test_each_epoch_has_an_order_of_its_own_that_the_seed_repeats() -> None:
    lengths = make_lengths(500)
    sampler = LengthBucketSampler(lengths, batch_size=8, seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    other = LengthBucketSampler(lengths, batch_size=8, seed=3)
    other.set_epoch(1)
    assert list(other) == second
    assert list(LengthBucketSampler(lengths, batch_size=8, seed=4)) != first


def test_the_order_is_the_same_in_fresh_processes(root: Path) -> None:
    code = (
        "import torch; from datamodules.length_buckets import LengthBucketSampler as S\n"
        "torch.manual_seed({seed}); print(list(S(torch.arange(100) * 7 % 31, batch_size=4)))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code.format(seed=seed)], capture_output=True, text=True, cwd=root, check=True
        )
        for seed in (1, 2)
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert len(outputs[0].stdout) > 100


def test_what_is_left_out_is_not_always_the_same() -> None:
    lengths = torch.arange(37)
    sampler = LengthBucketSampler(lengths, batch_size=8, drop_last=True)
    left_out: Counter[int] = Counter()
    for epoch in range(60):
        sampler.set_epoch(epoch)
        left_out.update(set(range(37)) - set(sampler))
    assert sum(left_out.values()) == 5 * 60
    assert len(left_out) > 30
    assert max(left_out.values()) < 25
