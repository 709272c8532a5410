import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import ImageFolderDataModule

MakeTree = Callable[..., Path]
SUBSET = Path(__file__).parents[3] / "shared" / "data" / "cifar10-subset.tar.gz"
FOLDERS = {"train/cat": 4, "train/dog": 4, "val/cat": 2, "val/dog": 2, "test/cat": 1, "test/dog": 1}


def folder_module(root: Path, **options: Any) -> ImageFolderDataModule:
    return ImageFolderDataModule(str(root), **{"image_size": 8, "num_workers": 0, "batch_size": 4, **options})


def paths(datamodule: ImageFolderDataModule, split: str) -> list[str]:
    return datamodule.datasets[split].paths  # type: ignore[index,attr-defined]


def labels(datamodule: ImageFolderDataModule, split: str) -> list[int]:
    return datamodule.datasets[split].labels.tolist()  # type: ignore[index,attr-defined]


def test_split_folders(make_tree: MakeTree) -> None:
    datamodule = folder_module(make_tree(FOLDERS))
    assert (datamodule.class_names, datamodule.num_classes, datamodule.in_channels) == (["cat", "dog"], 2, 3)
    assert datamodule.mean == [0.485, 0.456, 0.406]
    datamodule.setup("fit")
    assert [len(paths(datamodule, split)) for split in ("train", "val", "test")] == [8, 4, 2]
    images, targets = next(iter(datamodule.train_dataloader()))
    assert (images.shape, images.dtype, targets.dtype) == ((4, 3, 8, 8), torch.float32, torch.int64)
    assert [batch[1].tolist() for batch in datamodule.val_dataloader()] == [[0, 0, 1, 1]]


def test_recorded_options_build_it_again(make_tree: MakeTree) -> None:
    datamodule = folder_module(make_tree(FOLDERS), mean=[0.1, 0.2, 0.3], batch_size=5)
    again = ImageFolderDataModule(**datamodule.hparams)
    assert (again.mean, again.batch_size) == ([0.1, 0.2, 0.3], 5)


def test_one_folder_is_split_the_same_way_every_time(make_tree: MakeTree) -> None:
    root = make_tree({"cat": 20, "dog": 40})
    first, second, other = folder_module(root), folder_module(root), folder_module(root, split_seed=1)
    torch.manual_seed(5)
    first.setup("fit")
    second.setup("test")
    other.setup()
    everything = []
    for split, counts in {"train": [14, 28], "val": [3, 6], "test": [3, 6]}.items():
        assert paths(first, split) == paths(second, split)
        assert torch.bincount(torch.tensor(labels(first, split))).tolist() == counts
        everything += paths(first, split)
    assert len(set(everything)) == len(everything) == 60
    assert paths(first, "test") != paths(other, "test")


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ({"train/a": 20, "train/b": 20, "test/a": 2}, [34, 6, 2]),
        ({"train/a": 20, "train/b": 20, "valid/b": 3}, [34, 3, 6]),
        ({"train/a": 20, "train/b": 20}, [28, 6, 6]),
    ],
    ids=["no val", "no test", "neither"],
)
def test_a_missing_split_is_taken_off_train(make_tree: MakeTree, counts: dict, sizes: list[int]) -> None:
    datamodule = folder_module(make_tree(counts))
    datamodule.setup("fit")
    assert [len(paths(datamodule, split)) for split in ("train", "val", "test")] == sizes


def test_no_test_images_wanted(make_tree: MakeTree) -> None:
    datamodule = folder_module(make_tree({"a": 10, "b": 10}), test_fraction=0)
    with pytest.warns(UserWarning, match="test uses the val images"):
        datamodule.setup("fit")
    assert paths(datamodule, "test") == paths(datamodule, "val")


def test_a_class_missing_from_val_keeps_the_mapping(make_tree: MakeTree) -> None:
    counts = {"train/ant": 1, "train/bee": 1, "train/cow": 1, "val/cow": 2, "test/ant": 1, "test/cow": 1}
    datamodule = folder_module(make_tree({**counts, "train/.ipynb_checkpoints": 1, "val/.ipynb_checkpoints": 1}))
    datamodule.setup("fit")
    assert datamodule.class_names == ["ant", "bee", "cow"]
    assert labels(datamodule, "val") == [2, 2]
    assert labels(datamodule, "test") == [0, 2]


def test_a_class_unknown_to_train(make_tree: MakeTree) -> None:
    datamodule = folder_module(make_tree({**FOLDERS, "val/emu": 1}))
    with pytest.raises(ValueError, match=r"val has classes that train lacks: \['emu'\]; known are \['cat', 'dog'\]"):
        datamodule.setup("fit")


def test_an_empty_class(make_tree: MakeTree) -> None:
    with pytest.raises(ValueError, match=r"class folder .*train/emu' has no photo"):
        folder_module(make_tree({**FOLDERS, "train/emu": 0})).setup("fit")


def test_too_few_photos_to_split(make_tree: MakeTree) -> None:
    with pytest.raises(ValueError, match=r"val_fraction \(0.15\) leaves no val photo of the 2"):
        folder_module(make_tree({"a": 1, "b": 1})).setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 0}, r"val_fraction \(0\) must be above 0"),
        ({"test_fraction": 1}, r"test_fraction \(1\) must be at least 0 and below 1"),
        ({"val_fraction": 0.6, "test_fraction": 0.4}, r"val_fraction \(0.6\) \+ test_fraction \(0.4\)"),
        ({"crop_scale": 0}, r"crop_scale \(0\)"),
        ({"on_error": "ignore"}, r"on_error \('ignore'\)"),
        ({"predict_dir": "/no/where"}, r"predict_dir \(/no/where\)"),
        ({"mean": [0.5]}, r"mean \(\[0.5\]\) and std"),
    ],
)
def test_bad_options_are_named(make_tree: MakeTree, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        folder_module(make_tree(FOLDERS), **options)


@pytest.mark.parametrize("augment", ["none", "crop", "crop_flip", "trivial", "rand"])
@pytest.mark.parametrize("in_channels", [1, 3])
def test_augmentations_in_grey_and_colour(make_tree: MakeTree, augment: str, in_channels: int) -> None:
    root = make_tree(FOLDERS)
    datamodule = folder_module(root, augment=augment, in_channels=in_channels, random_erasing=0.5, batch_size=8)
    datamodule.setup("fit")
    torch.manual_seed(0)
    first, _ = next(iter(datamodule.train_dataloader()))
    second, _ = next(iter(datamodule.train_dataloader()))
    torch.manual_seed(0)
    again, _ = next(iter(datamodule.train_dataloader()))
    assert first.shape == (8, in_channels, 8, 8)
    assert first.isfinite().all()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_plain_training_photos_have_nothing_random(make_tree: MakeTree) -> None:
    datamodule = folder_module(make_tree(FOLDERS), augment="trivial", random_erasing=0.9)
    datamodule.setup("fit")
    plain, train = datamodule.plain("train"), datamodule.datasets["train"]
    assert plain.paths == train.paths
    assert torch.equal(plain[0][0], plain[0][0])
    assert not all(torch.equal(train[index][0], plain[index][0]) for index in range(len(plain)))


@pytest.mark.parametrize("where", ["test", "folder", "file"])
def test_predict(make_tree: MakeTree, where: str) -> None:
    root = make_tree(FOLDERS)
    new = make_tree({"x": 1, "x/y z": 2}, root="new photos")
    predict_dir = {"test": None, "folder": str(new), "file": str(new / "x" / "000.png")}[where]
    datamodule = folder_module(root, predict_dir=predict_dir)
    datamodule.setup("predict")
    indices = torch.cat([batch[1] for batch in datamodule.predict_dataloader()]).tolist()
    names = [Path(datamodule.predict_names[index]).parts[-2:] for index in indices]
    expected = {
        "test": [("cat", "000.png"), ("dog", "000.png")],
        "folder": [("x", "000.png"), ("y z", "000.png"), ("y z", "001.png")],
        "file": [("x", "000.png")],
    }
    assert names == expected[where]


def test_skipped_photos_are_told_at_the_end(make_tree: MakeTree) -> None:
    root = make_tree(FOLDERS)
    (root / "val" / "cat" / "000.png").write_bytes(b"")
    datamodule = folder_module(root, on_error="skip")
    datamodule.setup("fit")
    with pytest.warns(UserWarning, match="left out: can't read the image .*val/cat/000.png"):
        assert [batch[1].tolist() for batch in datamodule.val_dataloader()] == [[0, 1, 1]]
    with pytest.warns(UserWarning, match="1 unreadable photos were left out: .*val/cat/000.png"):
        datamodule.teardown("fit")


def test_spawned_workers(make_tree: MakeTree) -> None:
    root = make_tree(FOLDERS)
    (root / "train" / "cat" / "000.png").write_bytes(b"")
    datamodule = folder_module(
        root,
        num_workers=1,
        multiprocessing_context="spawn",
        augment="trivial",
        on_error="skip",
        random_erasing=0.5,
    )
    datamodule.setup("fit")
    batches = list(datamodule.train_dataloader())
    assert sum(len(targets) for _, targets in batches) == 7
    assert datamodule.skipped() == [str(root / "train" / "cat" / "000.png")]  # marked in the worker, read here


@pytest.mark.skipif(not SUBSET.is_file(), reason=f"{SUBSET.name} is not beside the repository")
def test_real_photos(tmp_path: Path) -> None:
    with tarfile.open(SUBSET) as archive:
        wanted = [member for member in archive if member.name.endswith(("0.jpg", "5.jpg"))]
        archive.extractall(tmp_path, members=wanted, filter="data")
    datamodule = ImageFolderDataModule(str(tmp_path / "cifar10-subset"), image_size=32, num_workers=0)
    datamodule.setup("fit")
    assert datamodule.class_names[:3] == ["airplane", "automobile", "bird"]
    assert [len(paths(datamodule, split)) for split in ("train", "val", "test")] == [1700, 300, 400]
    images, targets = zip(*datamodule.val_dataloader(), strict=True)
    assert torch.bincount(torch.cat(targets)).tolist() == [30] * 10
    assert abs(torch.cat(images).mean()) < 0.3
