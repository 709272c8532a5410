"""Batches of samples of like length, so that padding costs little."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

POOL = 100  # batches that are sorted together: more pad less, fewer mix better


class LengthBucketSampler(DistributedSampler):
    """Shuffled indices of which every run of `batch_size` has samples of like length.

    All indices are shuffled, cut into pools of 100 batches, sorted by length within each pool, and the batches that
    result are shuffled. An epoch's order depends on the seed and the epoch alone. Several ranks share each pool, so
    that the batches of one step are of like length on all of them and none waits for another. It is a
    `DistributedSampler` even on one rank: Lightning then tells it the epoch and puts no other in its place.

    Args:
        lengths: Length of each sample, (N,).
        batch_size: Samples per batch and per rank.
        num_replicas: Number of ranks.
        rank: This one.
        seed: Seed of the shuffle; the same on every rank.
        drop_last: Leave out what does not fill a batch on every rank (other samples in each epoch). Otherwise it comes
            last, and ranks that would get less repeat samples.
    """

    def __init__(
        self,
        lengths: Sequence[int] | Tensor,
        *,
        batch_size: int,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.lengths = torch.as_tensor(lengths)
        super().__init__(
            self.lengths,  # type: ignore[arg-type]  # only its length is read
            num_replicas=num_replicas,
            rank=rank,
            seed=seed,
            drop_last=drop_last,
        )
        self.batch_size = batch_size
        self.step_size = batch_size * num_replicas  # samples of one step, all ranks together
        left = 0 if drop_last else len(self.lengths) % self.step_size
        self.num_samples = len(self.lengths) // self.step_size * batch_size + -(-left // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's indices of the epoch."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        # what fills no step is taken off before the sorting, or it would be the shortest ones each time
        full = len(order) // self.step_size * self.step_size
        order, rest = order[:full], order[full:]
        pools = order.split(POOL * self.step_size)
        order = torch.cat([order[:0], *(pool[self.lengths[pool].argsort(descending=True)] for pool in pools)])
        steps = order.view(-1, self.step_size)
        steps = steps[torch.randperm(len(steps), generator=generator)]
        mine = steps[:, self.rank :: self.num_replicas].flatten()
        if len(mine) < self.num_samples:
            count = (self.num_samples - len(mine)) * self.num_replicas
            rest = rest.repeat(-(-count // len(rest)))[:count]
            mine = torch.cat([mine, rest[self.rank :: self.num_replicas]])
        return iter(mine.tolist())

    def __len__(self) -> int:
        return self.num_samples
