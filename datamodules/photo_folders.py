"""Where photos lie: the folders of splits and classes, and the image files in them, all sorted by name."""

import os
from collections import Counter
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from datamodules.base import Split
from datamodules.splits import SPLIT_NAMES

SUFFIXES = (*IMG_EXTENSIONS, ".gif")
LAYOUT = (
    "expected ROOT/<class>/*.jpg, or ROOT/train/<class>/*.jpg with val and test next to it (both optional); "
    "at least two classes"
)


def visible(name: str) -> bool:
    """Whether a file or folder is the user's: not .ipynb_checkpoints, ._photo.jpg, __MACOSX."""
    return not name.startswith(".") and name != "__MACOSX"


def list_images(folder: Path) -> list[str]:
    """Paths of all images under a folder, at any depth, sorted; hidden files and folders are left out."""
    found = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = filter(visible, folders)
        found += [os.path.join(parent, name) for name in files if visible(name) and name.lower().endswith(SUFFIXES)]
    return sorted(found)


def subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and visible(path.name))


def find_splits(root: Path) -> dict[Split, Path]:
    """The folder of each split that has one; where none has, root itself is train.

    Raises:
        ValueError: root is missing, or its split folders are ambiguous or lack train.
    """
    if not root.is_dir():
        raise ValueError(f"root ({root.absolute()}) is not a folder: {LAYOUT}")
    found: dict[Split, Path] = {}
    for name in subfolders(root):
        for split, names in SPLIT_NAMES.items():
            if name.lower() in names:
                if split in found:
                    raise ValueError(f"{root} has two {split} folders: {found[split].name!r} and {name!r}")
                found[split] = root / name
    if "train" in found:
        return found
    if found and len(found) == len(subfolders(root)):
        raise ValueError(f"{root} has {sorted(found)} but no train folder: {LAYOUT}")
    return {"train": root}


def class_folders(folder: Path) -> list[str]:
    """Class names in label order.

    Raises:
        ValueError: Fewer than two.
    """
    names = subfolders(folder)
    if len(names) < 2:
        raise ValueError(f"{folder.absolute()} has {len(names)} class folders {names}: {LAYOUT}")
    return names


def list_classes(folder: Path, class_names: list[str], *, complete: bool) -> tuple[list[str], list[int]]:
    """Paths and labels of the photos in a folder of class folders, in the order of class_names.

    Args:
        folder: Its class folders must be known; with complete none may be without photos.
        class_names: The known classes; a photo's label is the position of its class.
        complete: Whether every class must have a photo.

    Raises:
        ValueError: An unknown class, a class without a photo (complete), no photo at all.
    """
    unknown = [name for name in subfolders(folder) if name not in class_names]
    if unknown:
        raise ValueError(f"{folder} has classes that train lacks: {unknown}; known are {class_names}")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        photos = list_images(folder / name)
        if not photos and complete:
            others = Counter(path.suffix for path in (folder / name).rglob("*") if path.is_file())
            raise ValueError(
                f"class folder {str(folder / name)!r} has no photo ({', '.join(SUFFIXES)}); "
                f"files in it by suffix: {dict(others) or 'none'}"
            )
        paths += photos
        labels += [label] * len(photos)
    if not paths:
        raise ValueError(f"{folder} has no photo in any class folder: {LAYOUT}")
    return paths, labels


def find_photos(path: Path) -> list[str]:
    """The photos to predict: one file, or those under a folder.

    Raises:
        ValueError: There is none.
    """
    photos = [str(path)] if path.is_file() else list_images(path)
    if not photos:
        raise ValueError(f"predict_dir ({path.absolute()}) has no photo ({', '.join(SUFFIXES)})")
    return photos
