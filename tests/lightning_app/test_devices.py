"""Which devices multiply bfloat16, and what the Trainer's accelerator stands for."""

from pathlib import Path

import pytest
import torch

from lightning_app.cli import build
from lightning_app.devices import has_bfloat16, trains_on_cpu
from tests.tiny_run import TINY


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, True),
        ({"architecture": "aarch64", "neon": True, "bf16": True}, True),
        ({"architecture": "aarch64", "neon": True, "bf16": False}, False),
    ],
)
def test_bfloat16_follows_from_the_instructions(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object], expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert has_bfloat16("cpu") is expected
    assert has_bfloat16(torch.device("cuda", 0))


def test_this_cpu_is_told_apart() -> None:
    assert {"architecture", "avx512_bf16", "bf16"} & set(torch.cpu.get_capabilities())


@pytest.mark.parametrize(("gpu", "expected"), [(False, True), (True, False)])
def test_auto_is_the_cpu_where_there_is_nothing_else(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert trains_on_cpu("auto") is expected
    assert trains_on_cpu(None) is expected
    assert trains_on_cpu("cpu")
    assert not trains_on_cpu("gpu")


@pytest.mark.parametrize(
    ("native", "arguments", "expected"),
    [
        (False, ["--trainer=part.yaml"], "32-true"),
        (True, ["--trainer=part.yaml"], "bf16-mixed"),
        (False, ["--trainer=part.yaml", "--trainer.precision=bf16-mixed"], "bf16-mixed"),
        (False, ["--trainer.precision", "bf16-true"], "bf16-true"),
    ],
)
def test_a_recipes_bf16_gives_way_to_float32_where_the_cpu_would_emulate_it(
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    native: bool,
    arguments: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr("lightning_app.cli.has_bfloat16", lambda device: native)
    Path("part.yaml").write_text("precision: bf16-mixed\naccelerator: cpu\n")
    cli = build(["fit", *TINY, *arguments])
    assert str(cli.trainer.precision) == expected
    said = "--trainer.precision bf16-mixed insists on it" in capsys.readouterr().out
    assert said == (expected == "32-true")
