"""Downloads that leave either nothing or a complete file."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory


def download_into(root: Path, fetch: Callable[[str], object], advice: str) -> None:
    """Fetches into a temporary folder under root, then moves the files to the same places under root.

    A download that is interrupted leaves nothing that could be taken for data, and two processes that
    download at once replace complete files by complete files.

    Args:
        root: Made where it is missing.
        fetch: Downloads into the folder it is given, and checks what it got.
        advice: What to do where the download fails, added to the error.

    Raises:
        ValueError: The download failed, with the reason and the advice.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root, prefix=".download-") as folder:
            fetch(folder)
            for source in Path(folder).rglob("*"):
                if source.is_file():
                    target = root / source.relative_to(folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(source, target)
    except (OSError, RuntimeError) as error:  # no network, no permission, a checksum that doesn't fit
        raise ValueError(f"the download into {root} failed ({error}). {advice}") from error
