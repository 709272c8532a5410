import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, TensorDataset

from datamodules.base import BaseDataModule, usable_cores


class Numbers(BaseDataModule):
    def __init__(self, *, size: int = 13, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for split in ("train", "val", "test", "predict"):
            self.datasets[split] = TensorDataset(torch.arange(size))


class NumbersOnDisk(Numbers):
    reads_files = True


def as_rank(datamodule: BaseDataModule, rank: int, replicas: int = 2) -> BaseDataModule:
    datamodule.trainer = SimpleNamespace(  # type: ignore[assignment]
        world_size=replicas,
        global_rank=rank,
        distributed_sampler_kwargs={"num_replicas": replicas, "rank": rank},
    )
    return datamodule


def items(loader: Any) -> list[int]:
    return [int(item) for (batch,) in loader for item in batch]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"batch_size \(0\) must be at least 1"),
        ({"num_workers": -1}, r"num_workers \(-1\) must be at least 0"),
        ({"prefetch_factor": 2}, r"prefetch_factor \(2\) needs workers"),
        ({"prefetch_factor": 0, "num_workers": 1}, r"prefetch_factor \(0\) must be at least 1"),
        ({"persistent_workers": True}, r"persistent_workers \(True\) needs workers"),
        ({"multiprocessing_context": "spawn"}, r"multiprocessing_context \(spawn\) needs workers"),
        (
            {"multiprocessing_context": "thread", "num_workers": 1},
            r"multiprocessing_context \('thread'\).*spawn",
        ),
        ({"split_seed": -1}, r"split_seed \(-1\)"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Numbers(**options)


def test_defaults_fit_the_source() -> None:
    memory, disk = Numbers(), NumbersOnDisk()
    assert (memory.num_workers, memory.persistent_workers) == (0, False)
    assert (disk.num_workers, disk.persistent_workers) == (min(8, usable_cores()), True)
    assert memory.pin_memory == torch.cuda.is_available()
    assert Numbers(persistent_workers=False).num_workers == 0


def test_options_reach_the_loader() -> None:
    datamodule = Numbers(
        batch_size=3, num_workers=2, pin_memory=False, prefetch_factor=5, multiprocessing_context="spawn"
    )
    loader = datamodule.train_dataloader()  # workers start only when it is iterated
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (3, 2, 5)
    assert loader.persistent_workers
    assert not loader.pin_memory
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_hyperparameters_are_recorded() -> None:
    assert Numbers(size=4, batch_size=3).hparams["batch_size"] == 3


def test_recording_them_keeps_nothing_alive() -> None:
    def build() -> weakref.ref:
        numbers = Numbers()
        loader = numbers.train_dataloader()
        return weakref.ref(loader)

    gc.disable()
    try:
        assert build()() is None
    finally:
        gc.enable()


def test_a_loader_before_setup() -> None:
    with pytest.raises(RuntimeError, match=r"no train data yet: call BaseDataModule\.setup"):
        BaseDataModule().train_dataloader()


@pytest.mark.parametrize(("size", "train_sizes"), [(65, [64]), (128, [64, 64]), (63, [63]), (1, [1])], ids=str)
def test_short_last_batch_is_dropped_in_training_only(size: int, train_sizes: list[int]) -> None:
    datamodule = Numbers(size=size, batch_size=64)
    assert [len(batch) for (batch,) in datamodule.train_dataloader()] == train_sizes
    for loader in (
        datamodule.val_dataloader(),
        datamodule.test_dataloader(),
        datamodule.predict_dataloader(),
    ):
        assert items(loader) == list(range(size))


def test_training_shuffles_differently_per_epoch_and_repeats_with_the_seed() -> None:
    loader = Numbers(batch_size=13).train_dataloader()
    torch.manual_seed(0)
    first, second = items(loader), items(loader)
    torch.manual_seed(0)
    assert (items(loader), items(loader)) == (first, second)
    assert first != second


@pytest.mark.parametrize("batch_size", [1, 3, 7, 64])
@pytest.mark.parametrize("split", ["val", "test"])
def test_two_ranks_share_13_items_without_repeats(split: str, batch_size: int) -> None:
    loaders = [getattr(as_rank(Numbers(batch_size=batch_size), rank), f"{split}_dataloader")() for rank in (0, 1)]
    parts = [items(loader) for loader in loaders]
    assert sorted(parts[0] + parts[1]) == list(range(13))
    # Lightning replaces the sampler unless it is a DistributedSampler
    assert all(isinstance(loader.sampler, DistributedSampler) for loader in loaders)


def test_two_ranks_leave_the_training_sampler_to_lightning() -> None:
    loader = as_rank(Numbers(size=20, batch_size=8), 0).train_dataloader()
    assert not isinstance(loader.sampler, DistributedSampler)
    assert loader.drop_last  # 10 per rank: one full batch
    assert not as_rank(Numbers(size=13, batch_size=8), 0).train_dataloader().drop_last


def test_fewer_items_than_ranks() -> None:
    with pytest.raises(ValueError, match="1 val items can't be shared by 2 ranks"):
        as_rank(Numbers(size=1), 0).val_dataloader()
