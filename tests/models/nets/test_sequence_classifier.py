"""The bidirectional net as a classifier of texts."""

from typing import Any

import torch
from torch.testing import assert_close

from models.nets.sequence_classifier import SequenceClassifier


def make_net(**options: Any) -> SequenceClassifier:
    torch.manual_seed(0)
    sizes = {"num_classes": 3, "vocab_size": 40, "max_length": 16, "depth": 2, "embed_dim": 32, "num_heads": 2}
    return SequenceClassifier(**(sizes | options))


TOKENS = torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(0))


def test_padding_does_not_count() -> None:
    net = make_net(previous_token=True).eval()
    padded = torch.nn.functional.pad(TOKENS, (0, 50))
    mask = torch.nn.functional.pad(torch.ones_like(TOKENS), (0, 50))
    assert_close(net(padded, mask), net(TOKENS), atol=1e-5, rtol=1e-4)
    assert net(padded, torch.zeros_like(mask)).isfinite().all()


def test_every_parameter_is_used_and_in_one_stage() -> None:
    net = make_net()
    net(TOKENS).square().sum().backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []
    placed = [id(p) for stage in [*net.stages, [net.head]] for module in stage for p in module.parameters()]
    assert sorted([*placed, id(net.transformer.gain)]) == sorted(id(p) for p in net.parameters())


def test_it_reads_both_ways() -> None:
    net = make_net().eval()
    other = TOKENS.clone()
    other[:, -1] = (other[:, -1] + 1) % 40
    for block in net.transformer.blocks:  # which start as no change
        torch.nn.init.normal_(block.attention.out.weight)
    first, second = (net.transformer.hidden_states(tokens)[:, 0] for tokens in (TOKENS, other))
    assert not torch.isclose(first, second).all()
