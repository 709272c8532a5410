import pickle

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2 import functional as F

from datamodules.transforms import (
    Augment,
    ImageTransform,
    draw_boxes,
    erase_boxes,
    flip_images,
    make_policy,
    shift_images,
    to_channels,
)


def random_images(count: int = 6, channels: int = 3, height: int = 9, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, height, width), generator=generator).to(torch.uint8)


@pytest.mark.parametrize("fill", ["zero", "reflect"])
@pytest.mark.parametrize("channels", [1, 3])
def test_shift_equals_pad_and_crop_of_each_image(fill: str, channels: int) -> None:
    images = random_images(40, channels)
    down, right = torch.randint(-4, 5, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = []
    for image, y, x in zip(images, down.tolist(), right.tolist(), strict=True):
        mode = "constant" if fill == "zero" else "reflect"
        padded = pad(image[None].float(), (4, 4, 4, 4), mode=mode)[0].to(torch.uint8)
        expected.append(padded[:, 4 - y : 13 - y, 4 - x : 11 - x])
    moved = shift_images(images, down, right, fill=fill)  # type: ignore[arg-type]
    assert torch.equal(moved, torch.stack(expected))


def test_flip_equals_flipping_each_image() -> None:
    images = random_images()
    flips = torch.tensor([True, False, True, True, False, False])
    expected = [F.hflip(image) if flip else image for image, flip in zip(images, flips, strict=True)]
    assert torch.equal(flip_images(images, flips), torch.stack(expected))


def test_erase_equals_torchvisions_on_each_image() -> None:
    images = random_images(50).float()
    torch.manual_seed(2)
    boxes = draw_boxes(50, 9, 7, probability=0.7)
    expected = [F.erase(image, *box, v=torch.zeros(3, 1, 1)) for image, box in zip(images, boxes.tolist(), strict=True)]
    assert torch.equal(erase_boxes(images, boxes), torch.stack(expected))


def test_boxes_lie_inside_and_differ() -> None:
    torch.manual_seed(0)
    boxes = draw_boxes(2000, 20, 30, probability=0.25)
    top, left, height, width = boxes.unbind(1)
    assert (top + height).max() <= 20
    assert (left + width).max() <= 30
    assert boxes.min() >= 0
    chosen = height > 0
    assert 0.2 < chosen.float().mean() < 0.3
    assert len({tuple(box) for box in boxes[chosen].tolist()}) > 300
    share = (height * width)[chosen] / 600
    assert share.min() > 0.01
    assert share.max() < 0.36
    assert not draw_boxes(100, 20, 30, probability=0).any()


def test_normalisation_equals_torchvisions() -> None:
    images = random_images(height=8, width=8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    transform = ImageTransform(size=8, channels=3, mean=mean, std=std)
    torch.testing.assert_close(transform(images), F.normalize(images / 255, mean, std))


def test_channels() -> None:
    grey, rgb = random_images(channels=1), random_images(channels=3)
    assert torch.equal(to_channels(grey, 3), grey.repeat(1, 3, 1, 1))
    assert torch.equal(to_channels(rgb, 1), F.rgb_to_grayscale(rgb))
    assert to_channels(rgb, 3) is rgb


@pytest.mark.parametrize("augment", ["none", "crop_flip", "trivial", "rand"])
@pytest.mark.parametrize("channels", [1, 3])
def test_draws_differ_per_image_and_call_and_repeat_with_the_seed(augment: Augment, channels: int) -> None:
    image = random_images(1, 3, 16, 16)
    transform = ImageTransform(
        size=16,
        channels=channels,
        mean=[0.5] * channels,
        std=[0.25] * channels,
        shift=4,
        flip=True,
        fill="reflect",
        policy=make_policy(augment),
        erasing=0.5,
    )
    batch = image.expand(8, -1, -1, -1)
    torch.manual_seed(0)
    first, second = transform(batch), transform(batch)
    torch.manual_seed(0)
    assert torch.equal(pickle.loads(pickle.dumps(transform))(batch), first)  # nothing that spawn can't send
    assert first.shape == (8, channels, 16, 16)
    assert first.isfinite().all()
    assert len({tensor.numpy().tobytes() for tensor in (*first, *second)}) > 10


def test_resizes_to_the_asked_size() -> None:
    transform = ImageTransform(size=14, channels=1, mean=[0.0], std=[1.0])
    images = random_images(2, 1, 7, 7)
    torch.testing.assert_close(transform(images), F.resize(images, [14, 14], antialias=True) / 255)
