import pickle
from hashlib import md5
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from datamodules import CIFAR10DataModule, cifar10
from datamodules.cifar10 import CLASS_NAMES


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in CIFAR-10's format with 20 images per batch, whose checksums torchvision is told to expect."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    sums = {}

    def write(name: str, content: dict) -> None:
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = md5((folder / name).read_bytes()).hexdigest()

    rng = np.random.default_rng(0)
    for name in [f"data_batch_{index}" for index in range(1, 6)] + ["test_batch"]:
        data = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        write(name, {"data": data, "labels": [index % 10 for index in range(20)]})
    write("batches.meta", {"label_names": CLASS_NAMES})
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in sums if "data" in name])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    return tmp_path


def test_reads_splits_and_normalises(small_cifar: Path) -> None:
    datamodule = CIFAR10DataModule(root=str(small_cifar), augment="none")
    datamodule.prepare_data()  # nothing to download
    datamodule.setup()
    assert [len(datamodule.datasets[name]) for name in ("train", "val", "test")] == [90, 10, 20]
    assert datamodule.datasets["val"].labels.unique().tolist() == list(range(10))
    images, labels = next(iter(datamodule.test_dataloader()))
    raw = (images * torch.tensor(datamodule.std).view(3, 1, 1) + torch.tensor(datamodule.mean).view(3, 1, 1)) * 255
    stored = CIFAR10(str(small_cifar), train=False)
    assert np.array_equal(raw.round().permute(0, 2, 3, 1).numpy(), stored.data)
    assert labels.tolist() == stored.targets
    assert datamodule.class_names == stored.classes


def test_grey(small_cifar: Path) -> None:
    datamodule = CIFAR10DataModule(root=str(small_cifar), in_channels=1, augment="trivial", batch_size=4)
    datamodule.setup("fit")
    assert next(iter(datamodule.train_dataloader()))[0].shape == (4, 1, 32, 32)


def test_damaged_without_a_network_says_what_to_do(small_cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small_cifar / "cifar-10-batches-py"
    (folder / "data_batch_1").write_bytes(b"cut off")
    datamodule = CIFAR10DataModule(root=str(small_cifar))
    with pytest.raises(ValueError, match=rf"{folder} are missing or damaged"):
        datamodule.setup("fit")

    def refuse(root: str, train: bool = True, download: bool = False) -> None:
        raise (URLError("no network in this test") if download else RuntimeError("Dataset not found or corrupted"))

    refuse.base_folder = CIFAR10.base_folder  # type: ignore[attr-defined]
    monkeypatch.setattr(cifar10, "CIFAR10", refuse)
    with pytest.raises(ValueError, match=r"no network in this test.*unpack cifar-10-python\.tar\.gz"):
        datamodule.prepare_data()
    assert [path.name for path in small_cifar.iterdir()] == ["cifar-10-batches-py"]
