"""Token by token with the cache as tensors gives what reading everything at once gives."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from models.nets.decode_step import DecodeStep
from models.nets.efficient_transformer import EfficientTransformer


def make_net(**options: Any) -> EfficientTransformer:
    torch.manual_seed(0)
    net = EfficientTransformer(vocab_size=30, max_length=24, depth=2, embed_dim=32, num_heads=4, **options)
    for parameter in net.parameters():  # blocks start as no change
        nn.init.normal_(parameter, std=0.2)
    return net.eval()


@pytest.mark.parametrize(
    "options", [{}, {"window": 5}, {"num_kv_heads": 2, "previous_token": True}, {"kernel": "naive"}], ids=str
)
@torch.no_grad()
def test_steps_equal_the_whole(options: dict[str, Any]) -> None:
    net = make_net(**options)
    step, tokens = DecodeStep(net), torch.randint(30, (3, 24))
    expected, state = net(tokens), step.start(3)
    for place in range(24):
        logits, *state = step(tokens[:, place : place + 1], *state)
        assert_close(logits, expected[:, place], atol=1e-5, rtol=1e-4)
    assert state[0].shape == (3, 2, net.num_kv_heads, 24, 8)
    assert len(state) == (3 if options.get("previous_token") else 2)


def test_a_net_that_looks_ahead_is_refused() -> None:
    with pytest.raises(ValueError, match="a cache needs a causal net"):
        DecodeStep(make_net(causal=False))
