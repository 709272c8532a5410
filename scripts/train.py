"""Train, validate, test or predict: `python scripts/train.py fit --config configs/vision.yaml`."""

import sys
from pathlib import Path

# Ahead of everything else: another distribution also installs a package named lightning_app.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lightning_app.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
