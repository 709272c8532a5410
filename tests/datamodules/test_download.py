from pathlib import Path

import pytest

from datamodules.download import download_into


def test_files_arrive_and_no_temporary_folder_stays(tmp_path: Path) -> None:
    def fetch(folder: str) -> None:
        (Path(folder) / "raw").mkdir()
        (Path(folder) / "raw" / "a.bin").write_bytes(b"new")

    root = tmp_path / "made" / "data"
    download_into(root, fetch, "")
    (root / "raw" / "a.bin").write_bytes(b"cut off")
    download_into(root, fetch, "")  # replaces
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["a.bin"]
    assert (root / "raw" / "a.bin").read_bytes() == b"new"
    assert [path.name for path in root.iterdir()] == ["raw"]


@pytest.mark.parametrize("error", [ConnectionError("no route"), RuntimeError("File not found or corrupted")])
def test_a_failed_download_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    def fetch(folder: str) -> None:
        (Path(folder) / "half").write_bytes(b"12")
        raise error

    with pytest.raises(ValueError, match=rf"{tmp_path}.*{error}.*copy it"):
        download_into(tmp_path, fetch, "copy it")
    assert list(tmp_path.iterdir()) == []
