"""Messages of jsonargparse, as it words them, in one line."""

import pytest

from lightning_app.errors import explain, users_mistake
from models.optim import Schedule

OPTIONS = ["--trainer.max_epochs", "--model", "--data"]
CLASSES = {"ResNet9": ["widths", "dropout"], "EarlyStopping": ["monitor"]}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "unrecognized arguments: --trainer.max_epoch 3",
            "there is no option --trainer.max_epoch; did you mean --trainer.max_epochs?",
        ),
        ("unrecognized arguments: 3", "'3' is not an option; values follow an option, as in --trainer.max_epochs 3"),
        (
            "Problem with given class_path 'models.nets.resnet9.ResNet9':\n  Option 'dropot' is not accepted",
            "ResNet9 has no argument 'dropot'; did you mean dropout?",
        ),
        (
            "Subcommand 'fit' does not accept option 'trainer.max_epoch'",
            "there is no setting trainer.max_epoch; did you mean trainer.max_epochs?",
        ),
        (
            "Expected a dot import path string: EarlyStoping",
            "there is no class 'EarlyStoping'; did you mean EarlyStopping?",
        ),
        ("something that no pattern knows", "something that no pattern knows"),
    ],
)
def test_explain(message: str, expected: str) -> None:
    assert explain(message, options=OPTIONS, classes=CLASSES) == expected


def test_an_error_of_our_own_packages_is_the_users() -> None:
    with pytest.raises(ValueError, match="floor") as caught:
        Schedule(floor=2)
    assert users_mistake(caught.value) == "schedule.floor (2) must be within [0, 1]"


def test_so_is_one_that_a_parser_wrapped() -> None:
    def parse() -> None:
        try:
            Schedule(floor=2)
        except ValueError as error:
            raise ValueError("does not validate") from error

    with pytest.raises(ValueError, match="validate") as caught:
        parse()
    assert users_mistake(caught.value) == "schedule.floor (2) must be within [0, 1]"


def test_an_error_from_elsewhere_is_not() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("abc")
    assert users_mistake(caught.value) is None
