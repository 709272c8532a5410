"""One plain line for a user's mistake: what is wrong, and the nearest right spelling. No traceback.

jsonargparse explains a failed value by every type it tried, which takes a page. The patterns below pick the sentence
that names the mistake (jsonargparse 4.53); a message that none of them knows is shown as it is.
"""

import difflib
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_app.main import ROOT

PACKAGES = ("models", "datamodules", "callbacks", "lightning_app")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def explain(message: str, *, options: Iterable[str], classes: Mapping[str, Iterable[str]]) -> str:
    """The message in one line.

    Args:
        message: What the parser says.
        options: Long options of the subcommand, e.g. `--trainer.max_epochs`.
        classes: Known classes by name, each with the names of its arguments.
    """
    key = _first(r'Parser key "([^"]+)"', message)
    if found := re.search(r"[Uu]nrecognized arguments: (.+)", message):
        flag = found[1].split()[0].split("=")[0]
        if not flag.startswith("-"):
            return f"{flag!r} is not an option; values follow an option, as in --trainer.max_epochs 3"
        return f"there is no option {flag}{nearest(flag, options)}"
    if found := re.search(r"Option '([^']+)' is not accepted", message):
        name = found[1]
        owners = re.findall(r"Problem with given class_path '([^']+)'", message[: found.start()])
        if owners:
            owner = owners[-1].rsplit(".", 1)[-1]
            return f"{owner} has no argument {name!r}{nearest(name, classes.get(owner, ()))}"
        known = [option.removeprefix("--") for option in options]
        prefix = f"{key}." if key and "." not in name and f"{key}.{name}" not in known else ""
        return f"there is no setting {prefix}{name}{nearest(prefix + name, known)}"
    if found := re.search(r"does not accept option '([\w.]+)'|Key \"?([\w.]+)\"? is not expected", message):
        name = found[1] or found[2]
        return f"there is no setting {name}{nearest(name, [option.removeprefix('--') for option in options])}"
    if found := re.search(r"Expected a dot import path string: (\S+)", message):
        name = found[1]
        return f"{_setting(key)}there is no class {name!r}{nearest(name.rsplit('.', 1)[-1], classes)}"
    if found := re.search(r"Import path '?([\w.]+)'?|No module named '([^']+)'|has no attribute '([^']+)'", message):
        name = next(group for group in found.groups() if group)
        return f"{_setting(key)}{name!r} can't be imported{nearest(name.rsplit('.', 1)[-1], classes)}"
    if found := re.search(r"(?:does not exist|not exist|no such file)[^']*'([^']+)'", message, re.IGNORECASE):
        return f"there is no file {found[1]}{_near_file(found[1])}"
    if found := re.search(r"Expected a typing\.Literal(\[[^\]]+\])\. Got value: (\S+)", message):
        keys = re.findall(r'Parser key "([^"]+)"', message)
        choices = re.findall(r"'([^']+)'", found[1])
        return f"{_setting(keys[-1] if keys else None)}{found[2]!r} must be one of {', '.join(choices)}" + nearest(
            found[2], choices
        )
    if found := re.search(r"arguments are required: (\S+)", message):
        name = found[1].rstrip(",")
        if key and key != name:
            return f"--{key}.{name} is missing"
        name = name.split(".", 1)[-1]
        return f"--{name} is missing; start from a recipe, e.g. --config configs/vision.yaml"
    if "Problems parsing config" in message:
        return "the YAML can't be parsed: " + " ".join(message.split("Problems parsing config:")[-1].split())
    if given := re.search(r"Given value: (.+)", message):
        types = sorted(set(re.findall(r"Expected an? <class '([\w.]+)'>", message)) - {"NoneType"})
        if key and types:
            return f"{_setting(key)}{given[1]!r} is not a valid {' or '.join(types)}"
    return message.strip()


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None


def _setting(key: str | None) -> str:
    return f"{key}: " if key else ""


def _near_file(path: str) -> str:
    known = list(Path(path).parent.glob("*")) + list((ROOT / "configs").glob("**/*.yaml"))
    names = {found.name: found for found in reversed(known)}
    near = difflib.get_close_matches(Path(path).name, names, n=1, cutoff=0.7)
    return f"; did you mean {os.path.relpath(names[near[0]])}?" if near else ""


def users_mistake(error: Exception) -> str | None:
    """The message for the user where `error` is his mistake and not a fault of the program, else None.

    His are Lightning's complaints about the configuration, and what our own packages raised with a message for him: the
    innermost frame tells. An error out of a DataLoader worker carries its trace as text.
    """
    text = str(error)
    if isinstance(error, MisconfigurationException) or "accelerator_connector" in _raised_in(error).name:
        return " ".join(text.split())
    if isinstance(error, RuntimeError) and "loading state_dict" in text:
        hint = "to start from it with other classes: --model.net.pretrained FILE in the place of --ckpt_path"
        return f"the checkpoint does not fit this model: {' '.join(text.split(':', 1)[-1].split())} ({hint})"
    if text.startswith("Caught ") and "DataLoader worker" in text:
        trace = [line for line in text.splitlines() if line.strip().startswith("File ")]
        ours = bool(trace) and _is_ours(Path(trace[-1].split('"')[1]))
        return text.splitlines()[-1].split(": ", 1)[-1] if ours else None
    if isinstance(error, ValueError | OSError | ImportError | FloatingPointError) and _is_ours(_raised_in(error)):
        return " ".join(text.split())
    # jsonargparse raises an error of its own from the one that a class raised
    inner = error.__cause__ or error.__context__
    return users_mistake(inner) if isinstance(error, ValueError) and isinstance(inner, Exception) else None


def _raised_in(error: Exception) -> Path:
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename) if frames else Path()


def passed_through(error: BaseException | None, folder: Path) -> bool:
    """Whether the error, or one that it was raised from, came through code in `folder`."""
    while error is not None:
        if any(Path(frame.filename).is_relative_to(folder) for frame in traceback.extract_tb(error.__traceback__)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_ours(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / package) for package in PACKAGES)
