import pytest
import torch
from torch.nn import functional as F

# the module, since pytest would take an imported function named test_* for a test
from models import test_time_augmentation as augmentation


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


def test_none_is_the_images_themselves(images: torch.Tensor) -> None:
    (view,) = augmentation.make_views(images, "none")
    assert view is images


def test_flip_mirrors_left_and_right(images: torch.Tensor) -> None:
    same, mirrored = augmentation.make_views(images, "flip")
    assert torch.equal(same, images)
    for column in range(24):
        assert torch.equal(mirrored[..., column], images[..., 23 - column])


def test_five_crops_are_the_corners_and_the_centre_enlarged(images: torch.Tensor) -> None:
    views = augmentation.make_views(images, "five_crop")
    corners = [(0, 0), (0, 3), (2, 0), (2, 3), (1, 2)]  # crops of 14 x 21; torchvision rounds 1.5 to the even 2
    for view, (top, left) in zip(views, corners, strict=True):
        crop = images[..., top : top + 14, left : left + 21]
        expected = F.interpolate(crop, size=(16, 24), mode="bilinear", antialias=True)
        torch.testing.assert_close(view, expected)


def test_ten_crops_add_the_mirror_images(images: torch.Tensor) -> None:
    views = augmentation.make_views(images, "ten_crop")
    assert len(views) == 10
    for view, mirrored in zip(views[:5], views[5:], strict=True):
        assert torch.equal(mirrored, view.flip(-1))


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("flip", 2), ("five_crop", 5), ("ten_crop", 10)])
@pytest.mark.parametrize("size", [2, 7, 8, 32])
def test_views_keep_the_shape(kind: augmentation.Views, count: int, size: int) -> None:
    views = augmentation.make_views(torch.rand(3, 1, size, size), kind)
    assert [view.shape for view in views] == [(3, 1, size, size)] * count
    assert all(view.isfinite().all() for view in views)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_of_probabilities_not_of_logits(dtype: torch.dtype) -> None:
    logits = [torch.tensor([[4.0, 0.0], [0.0, 0.0]], dtype=dtype), torch.tensor([[0.0, 0.0], [0.0, 2.0]], dtype=dtype)]
    e4, e2 = torch.e**4, torch.e**2
    expected = torch.tensor([[(e4 / (e4 + 1) + 0.5) / 2, 0.0], [(0.5 + 1 / (1 + e2)) / 2, 0.0]])
    expected[:, 1] = 1 - expected[:, 0]
    mean = augmentation.mean_probabilities(logits)
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean, expected)
