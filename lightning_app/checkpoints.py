"""Checkpoints: find them, read them, and turn one into a task in plain Python.

from lightning_app.checkpoints import load_task

task = load_task("logs/vision/version_0/checkpoints/best.ckpt")
logits = task(images)
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.utilities.load import _load_distributed_checkpoint
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.consolidate_checkpoint import _format_checkpoint

from lightning_app.registry import register_classes
from models import Task
from models.nets.pretrained import without_pretrained_weights

KEYWORDS = ("best", "last")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The checkpoint's content, tensors on the CPU and mapped from the file; no code in it is run.

    Of a folder of shards, as FSDP leaves it, what is beside the weights.

    Raises:
        ValueError: Where the file is missing, damaged, or no checkpoint; it is named.
    """
    if not Path(path).exists():
        raise ValueError(f"there is no checkpoint {path}")
    sharded = Path(path).is_dir()
    try:
        content = torch.load(
            Path(path) / "meta.pt" if sharded else path, map_location="cpu", weights_only=True, mmap=True
        )
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"the checkpoint {path} is damaged or not a checkpoint ({Path(path).stat().st_size:,} bytes: {reason}); "
            "use an earlier one"
        ) from error
    if not isinstance(content, dict) or not (sharded or "state_dict" in content):
        raise ValueError(f"{path} is not a Lightning checkpoint: it has no state_dict")
    return content


def as_one_file(path: str | Path) -> Path:
    """The checkpoint as one file: a folder of shards is joined into FOLDER.consolidated, unless it was before.

    torch's reader unpickles the folder's index: it must be one that you trust.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    joined = path.with_name(f"{path.name}.consolidated")
    if not joined.exists():
        # Lightning's `consolidate_checkpoint` knows the weights of FSDPStrategy ("model") and fails for those of
        # ModelParallelStrategy ("state_dict")
        content = _load_distributed_checkpoint(path)
        torch.save(_format_checkpoint(content) if "model" in content else content, joined)
    return joined


def load_task(path: str | Path, **overrides: Any) -> LightningModule:
    """The task of a checkpoint, in eval mode on the CPU, its weights loaded (the averaged ones of an EMA run).

    Args:
        path: The checkpoint, one file or a folder of shards. It describes itself; no configuration is needed.
        **overrides: Arguments of the task that replace the recorded ones, e.g. `net=net` for a checkpoint of a task
            that was built in Python, whose net can't be recorded.

    Raises:
        ValueError: Where the file can't be read, or does not describe its task and `overrides` don't either.
    """
    register_classes()
    content = read_checkpoint(path)
    path = as_one_file(path)
    from_command_line = "_class_path" in content.get("hyper_parameters", {})
    if not from_command_line and "net" not in overrides:
        raise ValueError(
            f"{path} does not record its net, since it was not trained from the command line; "
            "pass it: load_task(path, net=net)"
        )
    # Lightning reads the class's name, and keeps it only for a class that takes any argument, such as the base class.
    cls = LightningModule if from_command_line else _imported_task(str(content.get("task_class")), path)
    with without_pretrained_weights():
        return cls.load_from_checkpoint(path, map_location="cpu", weights_only=True, **overrides).eval()


def _imported_task(name: str, path: str | Path) -> type[LightningModule]:
    """A task by import path, looked up among what is imported: a checkpoint must not make us import anything."""
    module, _, cls = name.rpartition(".")
    found = getattr(sys.modules.get(module), cls, None)
    if not isinstance(found, type) or not issubclass(found, Task):
        raise ValueError(f"{path} is of the task {name}, which is not imported: import its module first")
    return found


def newest_checkpoint(keyword: str, runs: Path) -> Path:
    """The `best` or `last` checkpoint of the newest run below `runs` (logs/RECIPE) that has one.

    Raises:
        ValueError: Where no run has one.
    """
    found = list(runs.glob(f"version_*/checkpoints/{keyword}.ckpt"))
    if not found:
        raise ValueError(f"--ckpt_path {keyword}: there is no {runs}/version_*/checkpoints/{keyword}.ckpt")
    return max(found, key=lambda path: int(path.parts[-3].removeprefix("version_")))


def describe_differences(recorded: dict[str, Any], current: dict[str, Any], *, ignore: Iterable[str] = ()) -> list[str]:
    """`net.dropout: 0.2 -> 0.3` for every hyperparameter that both know and that differs."""
    old, new = flatten(recorded), flatten(current)
    both = sorted(old.keys() & new.keys() - set(ignore))
    return [f"{key}: {old[key]} -> {new[key]}" for key in both if old[key] != new[key]]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted keys; the class_path and init_args of a part fold into its own name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix if key in ("class_path", "_class_path", "init_args") else f"{prefix}.{key}".lstrip(".")
        if isinstance(value, dict):
            flat |= flatten(value, name)
        else:
            flat[name or "model"] = list(value) if isinstance(value, tuple) else value
    return flat
