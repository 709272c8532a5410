"""What upstream gets wrong and we need right, one function a fault; delete each when its library is mended."""

from typing import Any

import jsonargparse._typehints
import jsonargparse._util
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import WeightAveraging


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


def drop_weight_averaging(trainer: Trainer) -> None:
    """Evaluate the averaged weights of a checkpoint, which is what its `state_dict` holds.

    Lightning 2.6's WeightAveraging puts the raw weights back whenever it sees a checkpoint loaded, also by the test
    that follows a fit in the same process. It has no part in an evaluation.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks[:] = [callback for callback in callbacks if not isinstance(callback, WeightAveraging)]
