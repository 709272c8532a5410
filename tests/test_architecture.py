"""Who may import whom: scripts -> lightning_app -> {models, datamodules, callbacks}.

Everyone may import lightning_app.assets and lightning_app.devices, which import the standard library and torch alone.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"models", "datamodules", "callbacks", "lightning_app", "scripts"}
FOR_EVERYONE = {"lightning_app.assets": set(), "lightning_app.devices": {"torch"}}
MAY_IMPORT = {
    "models": {"models"},
    "datamodules": {"datamodules"},
    "callbacks": {"callbacks"},
    "lightning_app": {"lightning_app", "models", "datamodules", "callbacks"},
}


def imported(path: Path) -> set[str]:
    """Top-level names of all that a file imports, in functions too; of what everyone may import, nothing."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            if node.module not in FOR_EVERYONE:
                names.add(node.module.split(".")[0])
    return names


FILES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    foreign = imported(path) & OURS - MAY_IMPORT[package]
    assert not foreign, f"{path} imports {foreign}"


@pytest.mark.parametrize("module", FOR_EVERYONE)
def test_what_everyone_may_import_imports_next_to_nothing(module: str) -> None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    assert imported(path) <= sys.stdlib_module_names | FOR_EVERYONE[module]


@pytest.mark.parametrize("path", sorted((ROOT / "models/nets").glob("*.py")), ids=lambda path: path.name)
def test_nets_are_plain_torch(path: Path) -> None:
    assert not imported(path) & {"pytorch_lightning", "lightning", "lightning_fabric"}


def test_the_front_page_imports_nothing_heavy() -> None:
    heavy = {"torch", "pytorch_lightning", "jsonargparse", "torchvision"}
    assert not imported(ROOT / "lightning_app/__init__.py") & heavy
    tree = ast.parse((ROOT / "lightning_app/main.py").read_text())
    top = {getattr(node, "module", None) or node.names[0].name for node in tree.body if "Import" in type(node).__name__}
    assert not {name.split(".")[0] for name in top} & (heavy | {"models"})
    assert "lightning_app.cli" not in top
