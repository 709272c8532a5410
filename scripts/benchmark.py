"""Run one measurement: `python scripts/benchmark.py NAME [options]`; NAME is a file in scripts/benchmarks.

A benchmark module has `add_arguments(parser)` and `run(args)`, which returns its rows: dicts with the same keys.
"""

import argparse
import importlib.util
import json
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FOLDER = ROOT / "scripts" / "benchmarks"


def main() -> None:
    """Run the benchmark that the command line names."""
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="name", required=True, metavar="{" + ",".join(names) + "}")
    modules = {name: load(name) for name in names if name in sys.argv}
    for name, module in modules.items():
        subparser = subparsers.add_parser(name, description=module.__doc__)
        subparser.add_argument("--json", type=Path, default=Path(f"logs/benchmarks/{name}.json"), help="where to write")
        module.add_arguments(subparser)
    args = parser.parse_args()
    from lightning_app.cli import quiet_lightning

    quiet_lightning()
    rows = modules[args.name].run(args)
    print(table(rows))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"benchmark": args.name, "machine": machine(), "rows": rows}, indent=2) + "\n")
    print(f"\nwritten to {args.json}")


def load(name: str) -> Any:
    """The module of a benchmark."""
    spec = importlib.util.spec_from_file_location(f"benchmarks.{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    cells = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> dict[str, Any]:
    """What a figure depends on."""
    import torch

    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
