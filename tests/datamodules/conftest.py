"""Folders of small synthetic photos."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeTree = Callable[..., Path]


def save_photo(path: Path, seed: int = 0, size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """make_tree({"train/cat": 3, ...}) writes that many PNGs per folder and returns the root."""

    def make(counts: dict[str, int], root: str = "photos") -> Path:
        for folder_index, (folder, count) in enumerate(counts.items()):
            (tmp_path / root / folder).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                save_photo(tmp_path / root / folder / f"{index:03d}.png", seed=100 * folder_index + index)
        return tmp_path / root

    return make
