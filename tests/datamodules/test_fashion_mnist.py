import gzip
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torchvision.datasets.mnist import read_image_file

from datamodules import FashionMNISTDataModule, fashion_mnist
from datamodules.fashion_mnist import DEBIAN_FOLDER, NAMES, read_idx


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_set(folder: Path, suffix: str = "") -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 240), ("t10k", 20)):
        images = rng.integers(0, 256, (count, 28, 28))
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count) % 10)


@pytest.fixture(autouse=True)
def no_system_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "absent")


@pytest.mark.parametrize("folder", [".", "FashionMNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_files_on_disk(tmp_path: Path, folder: str, suffix: str) -> None:
    write_set(tmp_path / folder, suffix)
    datamodule = FashionMNISTDataModule(root=str(tmp_path), batch_size=20, augment="none")
    datamodule.prepare_data()  # nothing to download
    datamodule.setup("fit")
    datamodule.setup("test")
    sizes = [len(datamodule.datasets[name]) for name in ("train", "val", "test")]
    assert sizes == [220, 20, 20]
    assert torch.bincount(datamodule.datasets["val"].labels).tolist() == [2] * 10
    images, labels = next(iter(datamodule.test_dataloader()))
    assert labels.tolist() == list(range(10)) * 2
    assert images.shape == (20, 1, 28, 28)


def test_idx_reader_agrees_with_torchvisions(tmp_path: Path) -> None:
    write_set(tmp_path)
    path = tmp_path / NAMES[0]
    assert torch.equal(read_idx(path, num_dims=3), read_image_file(str(path)))


def test_each_stage_reads_its_own_files(tmp_path: Path) -> None:
    write_set(tmp_path)
    datamodule = FashionMNISTDataModule(root=str(tmp_path))
    datamodule.setup("predict")
    assert set(datamodule.datasets) == {"test", "predict"}
    assert datamodule.predict_names[-1] == "19"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str, damage: str) -> None:
    write_set(tmp_path, suffix)
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    content = path.read_bytes()
    path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"<html>404</html>"}[damage])
    with pytest.raises(ValueError, match=rf"{path} is not a complete idx file"):
        FashionMNISTDataModule(root=str(tmp_path)).setup("fit")


def test_labels_that_belong_to_other_images_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(7))
    with pytest.raises(ValueError, match="20 images, 7 labels"):
        FashionMNISTDataModule(root=str(tmp_path)).setup("test")


def test_no_files_and_no_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no network in this test")

    datamodule = FashionMNISTDataModule(root=str(tmp_path / "data"))
    monkeypatch.setattr(fashion_mnist, "FashionMNIST", refuse)
    with pytest.raises(ValueError, match=r"apt install dataset-fashion-mnist.*train-images-idx3-ubyte\.gz.*data"):
        datamodule.prepare_data()
    assert list((tmp_path / "data").iterdir()) == []


def test_download_lands_where_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datamodule = FashionMNISTDataModule(root=str(tmp_path), image_size=32)
    calls = []

    def download(folder: str, download: bool) -> None:
        calls.append(folder)
        write_set(Path(folder) / "FashionMNIST" / "raw")

    monkeypatch.setattr(fashion_mnist, "FashionMNIST", download)
    datamodule.prepare_data()
    datamodule.prepare_data()
    assert len(calls) == 1
    datamodule.setup()
    assert next(iter(datamodule.train_dataloader()))[0].shape == (64, 1, 32, 32)


def test_bad_fraction() -> None:
    with pytest.raises(ValueError, match=r"val_fraction \(1\.0\)"):
        FashionMNISTDataModule(val_fraction=1.0)


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_real_files(tmp_path: Path) -> None:
    datamodule = FashionMNISTDataModule(root=str(tmp_path), augment="none")
    datamodule.prepare_data()
    datamodule.setup("fit")
    train = datamodule.datasets["train"]
    assert (len(train), len(datamodule.datasets["val"])) == (55_000, 5_000)
    assert torch.bincount(train.labels).tolist() == [5_500] * 10
    pixels = train.images[:20_000] / 255
    assert pixels.mean() == pytest.approx(datamodule.mean[0], abs=0.005)
    assert pixels.std() == pytest.approx(datamodule.std[0], abs=0.005)
