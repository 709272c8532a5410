"""Fixtures for tests that run the application."""

import os
import signal
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("MPLBACKEND", "agg")
# a shell starts its background jobs with Ctrl-C ignored, and the suite may be one
signal.signal(signal.SIGINT, signal.default_int_handler)
# a suite of small nets is slower, not faster, with its threads on every core
torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory: runs land in its logs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT
