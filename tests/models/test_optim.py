import copy
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.optim import SGD, AdamW

from models.nets.resnet9 import ResNet9
from models.optim import (
    MuonAdamW,
    Schedule,
    build_optimizer,
    make_scheduler,
    parameter_groups,
    stage_of_parameters,
    start_scheduler,
)

# --- parameter_groups


def by_name(net: nn.Module, groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The group of every parameter by the parameter's name."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return {names[id(parameter)]: group for group in groups for parameter in group["params"]}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("tiny", {}),
        ("tiny", {"layer_decay": 0.5}),
        ("tiny", {"lr_multipliers": {"head": 2.0, "body.1": 0.3}, "layer_decay": 0.5}),
        ("resnet9", {"layer_decay": 0.9}),
        ("tied", {"lr_multipliers": {"embedding": 2.0}}),
        ("plain", {}),
    ],
)
def test_every_parameter_is_in_exactly_one_group(tiny: Any, kind: str, options: dict[str, Any]) -> None:
    net = {
        "tiny": tiny.Net,
        "resnet9": lambda: ResNet9(num_classes=3, in_channels=1, widths=(4, 8, 8)),
        "tied": Tied,
        "plain": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    }[kind]()
    groups = parameter_groups(net, **options)
    counts = Counter(id(parameter) for group in groups for parameter in group["params"])
    assert counts == Counter(id(parameter) for parameter in net.parameters())
    assert len({group["name"] for group in groups}) == len(groups)


def test_norms_and_biases_do_not_decay(tiny: Any) -> None:
    net = tiny.Net()
    optimizer = build_optimizer(functools.partial(AdamW, weight_decay=0.1), parameter_groups(net))
    groups = by_name(net, optimizer.param_groups)
    matrices = {"scale", "body.0.0.weight", "body.1.1.weight", "head.weight"}
    assert {name for name, group in groups.items() if group["weight_decay"] == 0.1} == matrices
    assert {name for name, group in groups.items() if group["weight_decay"] == 0.0} == groups.keys() - matrices


def test_longest_prefix_counts_and_whole_names_only() -> None:
    net = nn.ModuleDict({"body": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "body2": nn.Linear(2, 2)})
    groups = by_name(net, parameter_groups(net, lr_multipliers={"body": 0.1, "body.1": 0.5, "body.1.bias": 3.0}))
    assert {name: group["lr_multiplier"] for name, group in groups.items()} == {
        "body.0.weight": 0.1,
        "body.0.bias": 0.1,
        "body.1.weight": 0.5,
        "body.1.bias": 3.0,
        "body2.weight": 1.0,
        "body2.bias": 1.0,
    }


@pytest.mark.parametrize("prefix", ["backbone", "bod", "body.7"])
def test_an_unknown_prefix_is_refused_with_what_exists(tiny: Any, prefix: str) -> None:
    with pytest.raises(ValueError, match=rf"names '{prefix}', which matches no .*\['body', 'head', 'scale'\]"):
        parameter_groups(tiny.Net(), lr_multipliers={prefix: 0.1})


def test_layer_decay_by_stage(tiny: Any) -> None:
    net = tiny.Net()
    assert stage_of_parameters(net)[1] == 3
    groups = by_name(net, parameter_groups(net, layer_decay=0.5, lr_multipliers={"head": 4.0, "body.1": 3.0}))
    multipliers = {name: group["lr_multiplier"] for name, group in groups.items()}
    assert multipliers["head.weight"] == multipliers["head.bias"] == 4.0
    assert multipliers["body.1.1.weight"] == multipliers["body.1.2.bias"] == 0.5 * 3.0
    assert multipliers["body.0.0.weight"] == multipliers["body.0.1.weight"] == 0.25
    assert multipliers["scale"] == 0.25  # in no stage: with the first


def test_layer_decay_needs_stages() -> None:
    with pytest.raises(ValueError, match=r"layer_decay \(0.5\) needs a net with `stages`; Sequential has none"):
        parameter_groups(nn.Sequential(nn.Linear(2, 2)), layer_decay=0.5)


def test_heads_and_embeddings_are_not_hidden() -> None:
    net = Tied()
    groups = by_name(net, parameter_groups(net))
    assert {name: group["hidden"] for name, group in groups.items()} == {
        "embedding.weight": False,
        "layer.weight": True,
        "layer.bias": True,
    }


# --- build_optimizer


@pytest.mark.parametrize("factory", [SGD, AdamW, torch.optim.RMSprop, torch.optim.Adafactor, MuonAdamW])
def test_any_optimizer_gets_multiplied_rates(tiny: Any, factory: Any) -> None:
    net = tiny.Net()
    plain = by_name(net, build_optimizer(factory, parameter_groups(net)).param_groups)
    scaled = by_name(net, build_optimizer(factory, parameter_groups(net, lr_multipliers={"body": 0.1})).param_groups)
    for name, group in scaled.items():
        assert group["lr"] == pytest.approx(plain[name]["lr"] * (0.1 if name.startswith("body") else 1.0))


def test_a_tensor_rate_is_scaled_once_per_group(tiny: Any) -> None:
    factory = functools.partial(AdamW, lr=torch.tensor(0.1))
    optimizer = build_optimizer(factory, parameter_groups(tiny.Net(), lr_multipliers={"body": 0.5, "head": 2.0}))
    assert {(g["lr_multiplier"], round(float(g["lr"]), 6)) for g in optimizer.param_groups} == {
        (1.0, 0.1),
        (0.5, 0.05),
        (2.0, 0.2),
    }
    scheduler = make_scheduler(optimizer, Schedule("linear"))
    start_scheduler(scheduler, Schedule("linear"), total_steps=3)
    for factor in (1.0, 0.5, 0.0):
        for group in optimizer.param_groups:
            assert float(group["lr"]) == pytest.approx(0.1 * group["lr_multiplier"] * factor)
        optimizer.step()
        scheduler.step()


def test_muon_alone_on_a_net_with_convolutions_names_what_to_use(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    task = tiny.Task(tiny.Net(), optimizer=torch.optim.Muon)
    with pytest.raises(ValueError, match=r"Muon takes matrices only .*use models\.optim\.MuonAdamW"):
        trainer(max_epochs=1).fit(task, tiny.loader())


def test_muon_alone_trains_a_net_of_matrices(tiny: Any, trainer: Callable[..., pl.Trainer]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    before = copy.deepcopy(net.state_dict())
    trainer(max_epochs=1).fit(tiny.Task(net, optimizer=torch.optim.Muon), tiny.loader())
    assert all(not torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_other_errors_of_an_optimizer_pass_through(tiny: Any) -> None:
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        build_optimizer(functools.partial(SGD, lr=-1), parameter_groups(tiny.Net()))
