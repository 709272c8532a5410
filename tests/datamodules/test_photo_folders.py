from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.photo_folders import class_folders, find_photos, find_splits, list_classes, list_images

MakeTree = Callable[..., Path]


def test_hidden_things_and_other_files_are_ignored(make_tree: MakeTree) -> None:
    root = make_tree({"cat": 2, "dog": 1, ".ipynb_checkpoints": 1, "__MACOSX": 1, "cat/.thumbs": 1, "cat/deep/er": 1})
    (root / "cat" / "._000.png").write_bytes(b"x")
    (root / "cat" / "notes.txt").write_text("x")
    (root / "readme.md").write_text("x")
    assert class_folders(root) == ["cat", "dog"]
    names = [Path(path).relative_to(root).as_posix() for path in list_images(root / "cat")]
    assert names == ["cat/000.png", "cat/001.png", "cat/deep/er/000.png"]


def test_any_case_of_suffix_and_strange_names(tmp_path: Path) -> None:
    names = ["a b.JPG", "it's.jpeg", 'q"uote.Png', "ünï.webp", "日本.tiff", "z.gif"]
    for name in names:
        (tmp_path / name).touch()
    assert [Path(path).name for path in list_images(tmp_path)] == sorted(names)


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val"])
def test_names_of_split_folders(make_tree: MakeTree, val: str) -> None:
    root = make_tree({"train/cat": 1, f"{val}/cat": 1, "test/cat": 1})
    assert find_splits(root) == {"train": root / "train", "val": root / val, "test": root / "test"}


def test_one_folder_may_have_a_class_named_test(make_tree: MakeTree) -> None:
    root = make_tree({"test": 1, "control": 1})
    assert find_splits(root) == {"train": root}


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"train/cat": 1, "val/cat": 1, "valid/cat": 1}, "two val folders: 'val' and 'valid'"),
        ({"val/cat": 1, "test/cat": 1}, r"\['test', 'val'\] but no train folder: expected ROOT"),
    ],
)
def test_unclear_split_folders(make_tree: MakeTree, counts: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_splits(make_tree(counts))


def test_missing_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}/nowhere\) is not a folder: expected ROOT/<class>"):
        find_splits(tmp_path / "nowhere")


@pytest.mark.parametrize("counts", [{".": 3}, {"my_photos/cat": 2, "my_photos/dog": 2}], ids=["flat", "nested"])
def test_fewer_than_two_classes(make_tree: MakeTree, counts: dict[str, int]) -> None:
    root = make_tree(counts)
    with pytest.raises(ValueError, match=rf"{root} has [01] class folders .*at least two classes"):
        class_folders(root)


def test_labels_follow_the_given_classes(make_tree: MakeTree) -> None:
    root = make_tree({"cat": 1, "dog": 0, "emu": 2})
    paths, labels = list_classes(root, ["ant", "cat", "dog", "emu"], complete=False)
    assert labels == [1, 3, 3]
    assert [Path(path).parent.name for path in paths] == ["cat", "emu", "emu"]


@pytest.mark.parametrize(
    ("complete", "classes", "message"),
    [
        (False, ["cat"], r"classes that train lacks: \['dog', 'empty'\]; known are \['cat'\]"),
        (True, ["cat", "dog", "empty"], r"class folder .*empty' has no photo .*\{'\.heic': 1\}"),
    ],
)
def test_unknown_and_empty_classes(make_tree: MakeTree, complete: bool, classes: list[str], message: str) -> None:
    root = make_tree({"cat": 1, "dog": 1, "empty": 0})
    (root / "empty" / "IMG_1.heic").touch()
    with pytest.raises(ValueError, match=message):
        list_classes(root, classes, complete=complete)


def test_no_photo_at_all(make_tree: MakeTree) -> None:
    root = make_tree({"cat": 0})
    with pytest.raises(ValueError, match=rf"{root} has no photo in any class folder: expected ROOT"):
        list_classes(root, ["cat", "dog"], complete=False)


def test_photos_to_predict(make_tree: MakeTree) -> None:
    root = make_tree({".": 1, "a/b": 1, "none": 0})
    assert find_photos(root) == [str(root / "000.png"), str(root / "a" / "b" / "000.png")]
    assert find_photos(root / "000.png") == [str(root / "000.png")]
    with pytest.raises(ValueError, match=rf"{root}/none\) has no photo"):
        find_photos(root / "none")
