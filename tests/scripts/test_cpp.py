"""The C++ program builds against the installed torch and prints what the net gives."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from callbacks.export.formats import FORMATS
from tests.callbacks.export.test_gate import images

COMPILER = shutil.which("c++") and shutil.which("cmake")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built."""
    if not COMPILER:
        pytest.skip("cmake and a C++ compiler are needed to build it")
    source, build = Path(__file__).parents[2] / "scripts/cpp", tmp_path_factory.mktemp("build")
    for argv in (["-S", str(source), "-B", str(build), f"-DTORCH={torch.__path__[0]}"], ["--build", str(build)]):
        done = subprocess.run(["cmake", *argv], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "run_artifact"


@pytest.mark.parametrize("name", ["torchscript", pytest.param("aotinductor", marks=pytest.mark.slow)])
def test_it_prints_the_logits(program: Path, name: str, tmp_path: Path) -> None:
    given, (batch, _) = images()
    artifact, inputs = tmp_path / f"model{FORMATS[name].suffix}", tmp_path / "images.pt"
    FORMATS[name].export(given, artifact)
    torch.save(batch[0], inputs)
    done = subprocess.run([str(program), str(artifact), str(inputs)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert_close(table(done.stdout), given.net(batch[0]), atol=1e-4, rtol=1e-4)


def test_mistakes_are_told_in_a_line(program: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"nothing")
    for argv, message in [([], "usage: run_artifact"), (["a.torchscript.pt", "gone.pt"], "can't read gone.pt")]:
        done = subprocess.run([str(program), *argv], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert message in done.stderr


def table(text: str) -> Tensor:
    """Numbers, a line a row."""
    return torch.tensor([[float(number) for number in line.split()] for line in text.splitlines()])
