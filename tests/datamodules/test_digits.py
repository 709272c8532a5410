import sys

import pytest
import torch

from datamodules import DigitsDataModule

pytest.importorskip("sklearn", reason="scikit-learn carries the digits")


@pytest.fixture(scope="module")
def digits() -> DigitsDataModule:
    datamodule = DigitsDataModule(augment="none")
    datamodule.setup("fit")
    return datamodule


def test_split_is_stratified_disjoint_and_complete(digits: DigitsDataModule) -> None:
    from sklearn.datasets import load_digits

    sizes = {name: len(digits.datasets[name]) for name in ("train", "val", "test")}
    assert sum(sizes.values()) == 1797
    assert abs(sizes["train"] - 0.7 * 1797) < 10
    assert abs(sizes["val"] - 0.15 * 1797) < 10
    for name in sizes:
        assert torch.bincount(digits.datasets[name].labels, minlength=10).min() > 0.09 * sizes[name]
    counts = sum(torch.bincount(digits.datasets[name].labels) for name in sizes)
    assert counts.tolist() == torch.bincount(torch.from_numpy(load_digits().target)).tolist()


def test_a_second_instance_splits_the_same_way_and_another_seed_does_not(digits: DigitsDataModule) -> None:
    torch.manual_seed(99)
    again, other = DigitsDataModule(), DigitsDataModule(split_seed=1)
    again.setup("test")
    other.setup("test")
    assert torch.equal(again.datasets["test"].images, digits.datasets["test"].images)
    assert not torch.equal(other.datasets["test"].images, digits.datasets["test"].images)


def test_batch_is_normalised(digits: DigitsDataModule) -> None:
    digits.batch_size = 2000
    images, labels = next(iter(digits.train_dataloader()))
    assert images.shape[1:] == (1, 8, 8)
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02
    assert (labels.dtype, labels.max()) == (torch.int64, 9)
    raw = images * digits.std[0] + digits.mean[0]
    assert raw.min() == pytest.approx(0, abs=1e-4)
    assert raw.max() == pytest.approx(1, abs=1e-4)


def test_plain_training_images_have_nothing_random(digits: DigitsDataModule) -> None:
    datamodule = DigitsDataModule(augment="crop", max_shift=3)
    datamodule.setup("fit")
    everything = list(range(100))
    plain = datamodule.plain("train").__getitems__(everything)[0]
    assert torch.equal(plain, datamodule.eval_transform()(digits.datasets["train"].images[:100]))
    assert not torch.equal(datamodule.datasets["train"].__getitems__(everything)[0], plain)  # left as it was


def test_size_and_channels_on_demand() -> None:
    datamodule = DigitsDataModule(image_size=32, in_channels=3, batch_size=2)
    datamodule.setup("predict")
    images, indices = next(iter(datamodule.predict_dataloader()))
    assert images.shape == (2, 3, 32, 32)
    assert indices.tolist() == [0, 1]
    assert (datamodule.image_size, datamodule.in_channels, len(datamodule.mean)) == (32, 3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"augment": "crop_flip"}, "mirrored"), ({"max_shift": 8}, r"max_shift \(8\).*image_size \(8\)")],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DigitsDataModule(**options)


def test_facts_need_no_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # an import of it now fails
    digits = DigitsDataModule()
    assert (digits.num_classes, digits.in_channels, digits.image_size) == (10, 1, 8)
    assert digits.class_names == list("0123456789")
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        digits.setup("fit")


def test_recorded_options_build_it_again() -> None:
    digits = DigitsDataModule(image_size=16, batch_size=5, max_shift=2)
    again = DigitsDataModule(**digits.hparams)
    assert (again.image_size, again.batch_size, again.max_shift) == (16, 5, 2)
