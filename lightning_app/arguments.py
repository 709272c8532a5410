"""What the words of a command line mean before they are parsed: which recipe, which files, which run."""

from pathlib import Path

from lightning_app.main import ROOT


def run_name(argv: list[str]) -> str:
    """Folder of the run below logs/: the first recipe's file name, or the folder of the run whose config it is."""
    configs = [path for path in _values(argv, "--config", "-c") if "overlay" not in path.parts]
    if not configs:
        return "run"
    if configs[0].name == "config.yaml" and configs[0].resolve().parent.name.startswith("version_"):
        return configs[0].resolve().parents[1].name
    return configs[0].stem


def find_configs(argv: list[str]) -> list[str]:
    """Make `configs/x.yaml` work from any folder, and measure a checkpoint by the configuration of its run.

    A YAML path that does not exist here but does below the repository is taken from there. `validate`, `test` and
    `predict` with a checkpoint file and no --config use the config.yaml that its run saved.
    """
    found = []
    for word in argv:
        option, equals, value = word.rpartition("=")
        path = Path(value)
        if path.suffix in (".yaml", ".yml") and not path.is_absolute() and not path.exists() and (ROOT / path).exists():
            word = f"{option}{equals}{ROOT / path}"
        found.append(word)
    checkpoints = _values(found, "--ckpt_path")
    if argv[0] != "fit" and checkpoints and not _values(found, "--config", "-c"):
        saved = checkpoints[0].resolve().parents[1] / "config.yaml"
        if saved.is_file():
            found[1:1] = ["--config", str(saved)]
    return found


def _values(argv: list[str], *options: str) -> list[Path]:
    pairs = [(word, after) for word, after in zip(argv, [*argv[1:], ""], strict=True)]
    joined = [Path(word.split("=", 1)[1]) for word in argv if word.split("=", 1)[0] in options and "=" in word]
    return joined + [Path(after) for word, after in pairs if word in options]
