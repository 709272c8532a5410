import pickle
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from datamodules.images import ImageDataModule, TensorImages, collate_images


class Noise(ImageDataModule):
    """Ten equal images, so that a difference in a batch comes from the augmentation."""

    def __init__(self, *, size: int = 10, **kwargs: Any) -> None:
        facts = {"class_names": ["a", "b"], "image_size": 8, "in_channels": 3, "statistics": ([0.5], [0.25])}
        super().__init__(**{**facts, **kwargs})
        image = torch.randint(0, 256, (1, 3, 8, 8), generator=torch.Generator().manual_seed(0))
        images = image.to(torch.uint8).repeat(size, 1, 1, 1)
        labels = torch.arange(size) % 2
        self.datasets["train"] = TensorImages(images, labels, self.train_transform(max_shift=2))
        self.datasets["val"] = TensorImages(images, labels, self.eval_transform())
        self.add_test(images, labels)


def epoch(loader: Any) -> list[bytes]:
    return [image.numpy().tobytes() for images, _ in loader for image in images]


def test_facts_are_plain_and_fitted_to_the_channels() -> None:
    datamodule = Noise(in_channels=1, statistics=([0.1, 0.2, 0.6], [0.2, 0.2, 0.2]))
    assert datamodule.mean == [pytest.approx(0.3)]
    assert datamodule.std == [pytest.approx(0.2)]
    assert Noise(statistics=([0.5], [0.2])).mean == [0.5, 0.5, 0.5]
    assert (datamodule.num_classes, datamodule.in_channels, datamodule.image_size) == (2, 1, 8)
    assert next(iter(datamodule.val_dataloader()))[0].shape == (10, 1, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, r"image_size \(0\)"),
        ({"in_channels": 4}, r"in_channels \(4\)"),
        ({"random_erasing": 1.5}, r"random_erasing \(1.5\)"),
        ({"augment": "mirror"}, r"augment \('mirror'\).*crop_flip"),
        ({"statistics": ([0.1, 0.2], [0.1])}, r"mean \(\[0.1, 0.2\]\)"),
        ({"statistics": ([0.5], [0.0])}, r"std \(\[0.0\]\)"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Noise(**options)


def test_batches_and_single_samples_agree() -> None:
    dataset = Noise().datasets["val"]
    images, labels = next(iter(DataLoader(dataset, batch_size=4, collate_fn=collate_images)))
    assert images.dtype == torch.float32
    assert labels.tolist() == [0, 1, 0, 1]
    assert labels.dtype == torch.int64
    # neither ConcatDataset nor a plain list of samples knows __getitems__
    for wrapped in (ConcatDataset([dataset]), Subset(dataset, range(10))):
        again = next(iter(DataLoader(wrapped, batch_size=4, collate_fn=collate_images)))
        assert torch.equal(again[0], images)
        assert torch.equal(again[1], labels)


def test_predict_gives_indices_into_the_names() -> None:
    datamodule = Noise()
    _, indices = next(iter(datamodule.predict_dataloader()))
    assert [datamodule.predict_names[index] for index in indices] == [str(index) for index in range(10)]


def test_only_training_is_augmented() -> None:
    datamodule = Noise(augment="crop_flip", random_erasing=0.5)
    assert len(set(epoch(datamodule.train_dataloader()))) > 5
    for loader in (
        datamodule.val_dataloader(),
        datamodule.test_dataloader(),
        datamodule.predict_dataloader(),
    ):
        assert len(set(epoch(loader))) == 1
    assert len(set(epoch(Noise(augment="none").train_dataloader()))) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentations_differ_per_worker_and_epoch_and_repeat_with_the_seed(workers: int) -> None:
    def run(seed: int) -> list[list[bytes]]:
        datamodule = Noise(augment="crop_flip", random_erasing=1.0, batch_size=5, num_workers=workers)
        torch.manual_seed(seed)
        loader = datamodule.train_dataloader()
        return [epoch(loader), epoch(loader)]

    first = run(0)
    batches = [batch for images in first for batch in (images[:5], images[5:])]  # worker 0, worker 1, worker 0, ...
    assert len({tuple(batch) for batch in batches}) == 4
    assert len({image for images in first for image in images}) > 15
    assert run(0) == first
    assert run(1) != first


def test_datasets_pickle() -> None:
    dataset = Noise(augment="trivial").datasets["train"]
    assert len(pickle.loads(pickle.dumps(dataset))) == 10


class TinyTask(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.seen: dict[str, int] = {"train": 0, "val": 0}

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.seen["train"] += len(batch[1])
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.seen["val"] += len(batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_one_item_too_many_for_batchnorm_trains_and_is_validated() -> None:
    task = TinyTask()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(task, datamodule=Noise(size=9, batch_size=4))  # batches of 4, 4 and 1
    assert task.seen == {"train": 8, "val": 9}


def test_a_validation_part_that_would_be_empty_is_refused() -> None:
    module = ImageDataModule(class_names=["a", "b"], image_size=4, in_channels=1, statistics=([0.5], [0.5]))
    images, labels = torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.arange(8) % 2
    with pytest.raises(ValueError, match=r"val_fraction \(0.01\) leaves no val image of 8"):
        module.add_train_and_val(images, labels, val_fraction=0.01, max_shift=0)
    module.add_train_and_val(images, labels, val_fraction=0.25, max_shift=0)
    assert [len(module.datasets[split]) for split in ("train", "val")] == [6, 2]
