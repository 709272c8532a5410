"""The benchmarks run; what they measure is not asserted here, on machines that differ."""

import json
import subprocess
import sys
from pathlib import Path


def test_overhead_prints_a_table_and_writes_json(tmp_path: Path, root: Path) -> None:
    argv = [sys.executable, str(root / "scripts/benchmark.py"), "overhead", "--rounds", "1", "--epochs", "1"]
    done = subprocess.run(
        [*argv, "--config", "configs/vision.yaml", "--json", "out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert "| added (ms/step) |" in done.stdout
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["net"] for row in rows] == ["the recipe's net", "a linear layer"]
    assert all(row["Lightning (ms/step)"] > 0 for row in rows)
