import threading
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from models.nets.pretrained import (
    load_matching,
    pretrained_weights_wanted,
    read_state_dict,
    without_pretrained_weights,
)


class Net(nn.Module):
    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))
        self.head = nn.Sequential(nn.Linear(width, 4), nn.Linear(4, classes))


# --- without_pretrained_weights


def test_weights_are_wanted_but_inside_the_context() -> None:
    assert pretrained_weights_wanted()
    with without_pretrained_weights():
        assert not pretrained_weights_wanted()
        with without_pretrained_weights():
            pass
        assert not pretrained_weights_wanted()
    assert pretrained_weights_wanted()


def test_an_error_leaves_the_context() -> None:
    with pytest.raises(KeyError), without_pretrained_weights():
        raise KeyError
    assert pretrained_weights_wanted()


def test_other_threads_are_not_affected() -> None:
    seen = []
    with without_pretrained_weights():
        thread = threading.Thread(target=lambda: seen.append(pretrained_weights_wanted()))
        thread.start()
        thread.join()
    assert seen == [True]


# --- read_state_dict


def test_reads_a_plain_state_dict(tmp_path: Path) -> None:
    net = Net()
    torch.save(net.state_dict(), tmp_path / "net.pth")
    state = read_state_dict(tmp_path / "net.pth")
    assert state.keys() == net.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_reads_the_net_of_a_lightning_checkpoint(tmp_path: Path) -> None:
    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.other = Net(), nn.Linear(1, 1)

    module = Module()
    torch.save({"state_dict": module.state_dict(), "epoch": 1}, tmp_path / "net.ckpt")
    state = read_state_dict(str(tmp_path / "net.ckpt"))
    assert state.keys() == module.net.state_dict().keys()
    assert torch.equal(state["head.0.weight"], module.net.head[0].weight)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.pth"
    torch.save(Net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"cut\.pth is not a readable checkpoint or state dict: \S") as caught:
        read_state_dict(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"bad\.pth is not a readable"),
        (b"<html>proxy</html>", r"bad\.pth is not a readable"),
        (None, r"bad\.pth is not a readable .*No such file"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "bad.pth").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_state_dict(tmp_path / "bad.pth")


class Payload:
    def __reduce__(self) -> Any:
        return print, ("code of the file was run",)


def test_code_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weight": Payload()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil\.pth is not a readable"):
        read_state_dict(tmp_path / "evil.pth")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(2), {"a": 1}, {"state_dict": [1]}, {"state_dict": {"a": "b"}}])
def test_what_holds_no_tensors_by_name_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt holds no state dict"):
        read_state_dict(tmp_path / "other.pt")


# --- load_matching


def test_loads_everything_where_all_fits() -> None:
    source, target = Net(), Net()
    assert load_matching(target, source.state_dict()) == []
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in target.state_dict().items())


def test_a_head_of_other_classes_stays_fresh_and_is_named() -> None:
    source, target = Net(classes=3), Net(classes=5)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    assert load_matching(target, source.state_dict()) == ["head.1.weight", "head.1.bias"]
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith("head.1") else source.state_dict()[name]), name


def test_a_head_may_be_absent() -> None:
    source, target = Net(), Net()
    state = {name: value for name, value in source.state_dict().items() if name.startswith("backbone")}
    assert load_matching(target, state) == [name for name in target.state_dict() if name.startswith("head")]
    assert torch.equal(target.backbone[0].weight, source.backbone[0].weight)


def test_any_other_difference_is_an_error_that_names_it() -> None:
    state = Net(width=6).state_dict()
    with pytest.raises(
        ValueError, match=r"do not fit Net: backbone\.0\.weight is \(6, 2\) in the file and \(4, 2\) in"
    ):
        load_matching(Net(), state)
    with pytest.raises(ValueError, match=r"; and \d+ more"):
        load_matching(Net(), state)
    state = Net().state_dict()
    del state["backbone.1.running_mean"]
    with pytest.raises(ValueError, match=r"backbone\.1\.running_mean is not in the file"):
        load_matching(Net(), state)
    state = Net().state_dict() | {"extra.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"extra\.weight is not in the net"):
        load_matching(Net(), state)


def test_nothing_is_loaded_where_something_does_not_fit() -> None:
    target, state = Net(), Net().state_dict() | {"extra": torch.zeros(1)}
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(ValueError, match="extra is not in the net"):
        load_matching(target, state)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
