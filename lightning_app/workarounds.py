"""What upstream gets wrong and we need right, one function a fault; delete each when its library is mended."""

from typing import Any

import jsonargparse._typehints
import jsonargparse._util


def keep_null_in_nested_arguments() -> None:
    """`--model.net.pretrained=null` is null. jsonargparse 4.53 parses a nested argument twice and makes it `'None'`.

    Between the passes the value travels in a `NestedArg`; here it travels as the text that parses as null.
    """
    original = jsonargparse._util.NestedArg
    if "key" not in getattr(original, "_fields", ()) or original.__name__ == "NullSafe":
        return

    class NullSafe(original):  # type: ignore[misc, valid-type]
        def __new__(cls, key: str, val: Any) -> Any:
            return super().__new__(cls, key, "null" if val is None else val)

    jsonargparse._util.NestedArg = jsonargparse._typehints.NestedArg = NullSafe


def forget_argument(hyperparameters: dict[str, Any], key: str) -> None:
    """Take a dotted key out of recorded hyperparameters.

    Lightning 2.6 records the value of every link in the checkpoint, also of one that the class takes no argument for,
    and then can't build the class from it.
    """
    *parents, leaf = key.split(".")
    for parent in parents:
        hyperparameters = hyperparameters.get(parent) or {}
    hyperparameters.pop(leaf, None)
