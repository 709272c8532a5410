"""Our classes by name: imported so that the command line knows them, listed so that a typo finds its neighbour."""

import importlib
import inspect
import pkgutil
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch import nn
from torch.optim import Optimizer


def register_classes() -> None:
    """Import our modules, so that their classes answer to their bare names on the command line."""
    for package in ("models", "models.nets", "datamodules", "callbacks"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")


def known_classes() -> dict[str, list[str]]:
    """Names of the classes that a configuration may name, with their arguments."""

    def below(cls: type) -> set[type]:
        children: list[type] = type.__subclasses__(cls)
        return {cls}.union(*map(below, children))

    nets = {cls for cls in below(nn.Module) if cls.__module__.startswith("models.")}
    others = (cls for base in (LightningModule, LightningDataModule, Callback, Optimizer) for cls in below(base))
    return {cls.__name__: _argument_names(cls) for cls in [*nets, *others]}


def _argument_names(cls: type) -> list[str]:
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            names |= dict.fromkeys(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    return [name for name in names if name not in ("self", "args", "kwargs")]


def explicit_value(config: Namespace, target: str, name: str) -> Any:
    """What the user gave for a class's argument; None where he left it out or gave its default."""
    given = config.get(f"{target}.{name}")
    class_path = config.get(f"{target.removesuffix('.init_args')}.class_path")
    if given is None or class_path is None:
        return None
    module, _, cls = class_path.rpartition(".")
    parameter = inspect.signature(getattr(importlib.import_module(module), cls)).parameters.get(name)
    return None if parameter is not None and given == parameter.default else given
