"""Deterministic, stratified splits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from datamodules.base import Split

# what people call the file or folder of a split
SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}


def check_fraction(name: str, value: float, *, zero: bool = False) -> float:
    """The value, or ValueError where it isn't a share above 0 (zero: or 0) and below 1."""
    if not (0 < value < 1 or (zero and value == 0)):
        raise ValueError(f"{name} ({value}) must be {'at least' if zero else 'above'} 0 and below 1")
    return value


def stratified_split(labels: Sequence[int] | Tensor, fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Splits indices so that every split has the classes in the proportions of the whole.

    Depends on its arguments alone, never on the global random state: the same on every rank and every call.

    Args:
        labels: Class of each sample, length N.
        fractions: Share of each split, at least 0, adding up to 1. The first is the training split.
        seed: Seed of the shuffle within each class.

    Returns:
        One sorted list of indices per fraction. Disjoint, together 0 to N-1; per class within 1 of the exact
        share (largest remainders). The first split has at least one sample of every class.

    Raises:
        ValueError: A fraction is negative, they don't add up to 1, or the first is 0.
    """
    fractions = list(fractions)
    if any(fraction < 0 for fraction in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions ({fractions}) must be at least 0 and add up to 1")
    if fractions[0] == 0:
        raise ValueError(f"the first of the fractions ({fractions}), the training split, must be above 0")

    labels = torch.as_tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    splits: list[list[int]] = [[] for _ in fractions]
    for label in labels.unique().tolist():  # sorted
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        start = 0
        for split, count in zip(splits, _shares(len(members), fractions), strict=True):
            split.extend(members[start : start + count].tolist())
            start += count
    return [sorted(split) for split in splits]


def _shares(total: int, fractions: list[float]) -> list[int]:
    """Whole numbers that add up to total, each within 1 of total * fraction, the first at least 1."""
    exact = [total * fraction for fraction in fractions]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    if counts[0] == 0:
        richest = max(range(len(exact)), key=lambda i: counts[i] - exact[i])
        counts[richest] -= 1
        counts[0] += 1
    return counts
