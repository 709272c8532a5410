"""What every datamodule shares: loader options, their checks, and the one method that builds a loader."""

import inspect
import os
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader, Dataset, Sampler

Split = Literal["train", "val", "test", "predict"]


def usable_cores() -> int:
    """Number of CPU cores this process may use (a container's or scheduler's limit counts)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class BaseDataModule(pl.LightningDataModule):
    """Builds the loaders; a subclass fills ``self.datasets`` in ``setup`` and may set ``self.collate_fn``.

    Training shuffles and drops a short last batch (a batch of one breaks BatchNorm); validation, test and
    predict keep every item, each exactly once whatever the number of ranks.

    Args:
        batch_size: Samples per batch and per rank.
        num_workers: Loader processes. None: 0 for data in memory, up to 8 (one per core) for files on disk.
        pin_memory: Page-locked batches, for faster copies to a GPU. None: where CUDA is available.
        prefetch_factor: Batches each worker keeps ready. None: torch's own (2).
        persistent_workers: Keep the workers between epochs. None: whenever there are workers.
        multiprocessing_context: How workers start: fork, spawn or forkserver. None: the platform's default.
        split_seed: Seed of the split into train, val and test. Apart from the run's seed, so that runs
            with different seeds share one split.

    Raises:
        ValueError: An option is out of range, or one for workers is given without workers.
    """

    reads_files: ClassVar[bool] = False

    def __init__(
        self,
        *,
        batch_size: int = 64,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        multiprocessing_context: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        # Not to the logger: a task has options of the same names, and Lightning refuses two values for one.
        # With the frame: Lightning's own look-up leaves a cycle that keeps the caller's variables alive.
        # A loader among them is closed by the garbage collector, which takes 5 s per persistent worker.
        self.save_hyperparameters(logger=False, frame=inspect.currentframe())
        if num_workers is None:
            num_workers = min(8, usable_cores()) if self.reads_files else 0
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size}) must be at least 1")
        if num_workers < 0:
            raise ValueError(f"num_workers ({num_workers}) must be at least 0")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(f"prefetch_factor ({prefetch_factor}) must be at least 1")
        if num_workers == 0:
            for name, value in (
                ("prefetch_factor", prefetch_factor),
                ("persistent_workers", persistent_workers or None),
                ("multiprocessing_context", multiprocessing_context),
            ):
                if value is not None:
                    raise ValueError(f"{name} ({value}) needs workers, but num_workers is 0: raise num_workers")
        methods = torch.multiprocessing.get_all_start_methods()
        if multiprocessing_context is not None and multiprocessing_context not in methods:
            raise ValueError(f"multiprocessing_context ({multiprocessing_context!r}) must be one of {methods}")
        if split_seed < 0:
            raise ValueError(f"split_seed ({split_seed}) must be at least 0")

        self.batch_size = batch_size
        self.num_workers = num_workers
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = num_workers > 0 if persistent_workers is None else persistent_workers
        self.multiprocessing_context = multiprocessing_context
        self.split_seed = split_seed
        self.datasets: dict[Split, Dataset[Any]] = {}
        self.collate_fn: Callable[[Any], Any] | None = None

    def make_loader(self, split: Split) -> DataLoader[Any]:
        """The loader of one split; every other loader method comes here.

        Raises:
            RuntimeError: ``setup`` has not built this split yet.
            ValueError: Fewer validation or test items than ranks.
        """
        if split not in self.datasets:
            raise RuntimeError(f"no {split} data yet: call {type(self).__name__}.setup() first")
        dataset = self.datasets[split]
        size = len(dataset)  # type: ignore[arg-type]
        kwargs = self.trainer.distributed_sampler_kwargs if self.trainer is not None else None
        replicas, rank = (kwargs["num_replicas"], kwargs["rank"]) if kwargs else (1, 0)

        sampler: Sampler[int] | None = None
        if replicas > 1 and split in ("val", "test"):
            # Lightning would pad with repeated items, and the metric would depend on the number of ranks.
            # (It adds its own sampler for training, and an unrepeated one for predict.)
            if size < replicas:
                raise ValueError(f"{size} {split} items can't be shared by {replicas} ranks: use fewer ranks")
            sampler = UnrepeatedDistributedSampler(dataset, num_replicas=replicas, rank=rank, shuffle=False)
        train = split == "train"
        drop_last = train and size // replicas >= self.batch_size
        if train:
            sampler = self.train_sampler(replicas, rank, drop_last=drop_last)
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=train and sampler is None,
            sampler=sampler,
            drop_last=drop_last,
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            multiprocessing_context=self.multiprocessing_context,
        )

    def train_sampler(self, replicas: int, rank: int, *, drop_last: bool) -> Sampler[int] | None:
        """The order of training samples of one of several ranks. None: shuffled, and shared out by Lightning."""
        return None

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled training batches."""
        return self.make_loader("train")

    def val_dataloader(self) -> DataLoader[Any]:
        """Every validation item once, in order."""
        return self.make_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """Every test item once, in order."""
        return self.make_loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """Every item to predict once, in order."""
        return self.make_loader("predict")
