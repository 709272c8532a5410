"""Entry point of scripts/train.py: the front page answers at once, the heavy imports come after."""

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUBCOMMANDS = {
    "fit": "train, validate as it goes, then test the best checkpoint",
    "validate": "measure a checkpoint on the validation data",
    "test": "measure a checkpoint on the test data",
    "predict": "write a checkpoint's predictions to a CSV file",
}
OVERRIDES = {
    "--config configs/overlay/debug.yaml": "two batches a split, to see that everything runs",
    "--trainer.max_epochs 3": "any Trainer argument",
    "--model.optimizer.lr 1e-3": "any argument of the model, its optimizer, its net (--model.net.dropout 0.3)",
    "--data.batch_size 256": "any argument of the data",
    "--model FILE, --data FILE": "swap a part of the recipe, see configs/model and configs/data",
    "--trainer.callbacks+=EarlyStopping": "append a callback (= alone would replace the recipe's)",
    "--ckpt_path FILE": "resume `fit`, or the checkpoint to measure; `last` and `best` mean the newest run's",
    "--print_config": "show the whole configuration and stop",
}


def main(argv: list[str]) -> int:
    """Run the command line; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(front_page())
        return 0
    if argv[0] not in SUBCOMMANDS:
        near = difflib.get_close_matches(argv[0], SUBCOMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SUBCOMMANDS)}"
        print(f"train.py: error: there is no subcommand {argv[0]!r}{hint}", flush=True)
        return 2
    try:
        from lightning_app.cli import run
    except ModuleNotFoundError as error:
        if (ROOT / str(error.name).split(".")[0]).exists():
            raise
        print(f"train.py: error: the package {error.name!r} is not installed: activate .venv, which `make train` makes")
        return 2
    return run(argv)


def front_page() -> str:
    """Subcommands, recipes with the first line of their headers, and the overrides most used."""
    recipes = {f"configs/{path.name}": header(path) for path in sorted((ROOT / "configs").glob("*.yaml"))}
    recipes.pop("configs/defaults.yaml", None)
    return "\n\n".join(
        [
            "usage: python scripts/train.py SUBCOMMAND --config RECIPE [overrides]",
            "subcommands:\n" + _table(SUBCOMMANDS),
            "recipes:\n" + _table(recipes),
            "overrides:\n" + _table(OVERRIDES),
            "All arguments: python scripts/train.py fit --help. Of a class: --model.help VisionClassifier.\n"
            "Every run has a folder under logs/; look at them all with: tensorboard --logdir logs\n"
            "A user's mistake ends in one line; TRACEBACK=1 in the environment shows where it was found.",
        ]
    )


def header(path: Path) -> str:
    """First comment line of a YAML file, without the mark."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((re.sub(r"^#\s*", "", line) for line in lines if line.startswith("#")), "")


def _table(rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join(f"  {name:{width}}  {text}" for name, text in rows.items())
