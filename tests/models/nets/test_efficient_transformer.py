"""What the net promises whatever its sizes: no look ahead, documents apart, a cache that changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close as torch_assert_close

from models.nets.efficient_transformer import EfficientTransformer, rotary_table
from models.nets.fused import rms_norm, rotate

VOCABULARY, LENGTH = 30, 24


def assert_close(found: Tensor, expected: Tensor, atol: float = 1e-5, rtol: float = 1e-4) -> None:
    """In float64; the rotary table is of float32, so that positions are relative up to its rounding."""
    torch_assert_close(found, expected, atol=atol, rtol=rtol)


def make_net(**options: Any) -> EfficientTransformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "max_length": LENGTH, "depth": 3, "embed_dim": 32, "num_heads": 4}
    net = EfficientTransformer(**(sizes | options))
    for block in net.blocks:  # which start as no change
        nn.init.normal_(block.attention.out.weight, std=0.2)
        nn.init.normal_(block.mlp.down.weight, std=0.2)
    if net.previous_share is not None:
        nn.init.normal_(net.previous_share)
    return net.double().eval()


def make_tokens(length: int = LENGTH, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


SHAPES: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "qk_norm": False},
    {"window": 5},
    {"window": 5, "num_kv_heads": 2, "kernel": "naive"},
    {"tie_embeddings": False},
    {"previous_token": True},
]


@pytest.mark.parametrize("options", SHAPES)
def test_the_future_does_not_leak(options: dict[str, Any]) -> None:
    net, tokens = make_net(**options), make_tokens()
    other = tokens.clone()
    other[:, 15] = (other[:, 15] + 1) % VOCABULARY
    assert torch.equal(net(tokens)[:, :15], net(other)[:, :15])
    assert not torch.equal(net(tokens)[:, 15], net(other)[:, 15])


def test_a_bidirectional_net_sees_both_ways() -> None:
    net, tokens = make_net(causal=False), make_tokens()
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % VOCABULARY
    assert not torch.isclose(net(tokens)[:, 0], net(other)[:, 0]).all()


def test_a_token_sees_no_further_than_its_window_in_each_block() -> None:
    net, tokens = make_net(depth=2, window=4), make_tokens()
    other = tokens.clone()
    other[:, 3] = (other[:, 3] + 1) % VOCABULARY
    same = (net(tokens) == net(other)).all(-1).all(0)
    assert same.tolist() == [True] * 3 + [False] * 7 + [True] * 14  # two blocks reach 2 * 3 further


@pytest.mark.parametrize("options", [*SHAPES, {"causal": False}])
def test_packed_documents_are_as_if_alone(options: dict[str, Any]) -> None:
    """Rotary positions are relative: where in a block a document lies makes no difference."""
    net, tokens = make_net(**options), make_tokens()
    documents = torch.tensor([[0] * 7 + [1] * 10 + [2] * 7, [4] * 20 + [5] * 4])
    packed = net(tokens, document_ids=documents)
    for row, start, end in ((0, 0, 7), (0, 7, 17), (0, 17, 24), (1, 0, 20), (1, 20, 24)):
        assert_close(packed[row, start:end], net(tokens[row : row + 1, start:end])[0])


@pytest.mark.parametrize("options", [*SHAPES, {"causal": False}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(options: dict[str, Any], side: str) -> None:
    net, tokens = make_net(**options), make_tokens(10)
    empty = torch.zeros(2, 14, dtype=torch.int64)
    parts = [empty, tokens] if side == "left" else [tokens, empty]
    mask = torch.cat([torch.zeros_like(empty) if part is empty else torch.ones_like(tokens) for part in parts], 1)
    padded = net(torch.cat(parts, 1), mask)
    assert padded.isfinite().all()
    assert_close(padded[:, -10:] if side == "left" else padded[:, :10], net(tokens))


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("chunks", [[1] * 24, [10, *([1] * 14)], [5, 7, 12], [24], [3, 1, 20]])
def test_the_cache_changes_nothing(options: dict[str, Any], chunks: list[int]) -> None:
    net, tokens = make_net(**options), make_tokens()
    cache = net.make_cache(2, LENGTH)
    parts = [net(chunk, cache=cache) for chunk in tokens.split(chunks, 1)]
    assert_close(torch.cat(parts, 1), net(tokens))
    assert cache.length == LENGTH
    if "window" in options:
        assert cache.layers[0].keys.shape[2] == 5  # no more than the window is kept


@pytest.mark.parametrize("chunks", [[1] * 24, [20, 1, 1, 2], [5, 9, 10]])
@pytest.mark.parametrize("window", [None, 6])
def test_a_full_cache_lets_the_oldest_go(chunks: list[int], window: int | None) -> None:
    """As a window of its size would."""
    net, tokens = make_net(window=window), make_tokens()
    cache = net.make_cache(2, 8)
    parts = [net(chunk, cache=cache) for chunk in tokens.split(chunks, 1)]
    assert_close(torch.cat(parts, 1), net(tokens, see=8))


def test_beyond_the_trained_length_positions_go_on() -> None:
    net, tokens = make_net(), make_tokens(60)
    cache = net.make_cache(2, LENGTH)
    parts = [net(chunk, cache=cache) for chunk in tokens.split([30, *([1] * 30)], 1)]
    assert_close(torch.cat(parts, 1), net(tokens, see=LENGTH))


def test_prompts_of_several_lengths_with_a_cache() -> None:
    net, tokens = make_net(), make_tokens(12)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    cache = net.make_cache(2, LENGTH, mask.bool())
    parts = [net(tokens[:, :9], cache=cache), *(net(tokens[:, i : i + 1], cache=cache) for i in range(9, 12))]
    logits = torch.cat(parts, 1)
    assert_close(logits[0], net(tokens[:1])[0])
    assert_close(logits[1, 5:], net(tokens[1:, 5:])[0])


@pytest.mark.parametrize("options", [*SHAPES, {"causal": False}, {"dropout": 0.3}])
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    net = make_net(**options).train()
    net(make_tokens()).square().sum().backward()
    missing = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert missing == []


def test_a_fresh_net_is_its_embedding() -> None:
    """Blocks add nothing at first, so that depth does not matter for the start."""
    torch.manual_seed(0)
    net = EfficientTransformer(vocab_size=VOCABULARY, max_length=LENGTH, embed_dim=32)
    tokens = make_tokens()
    assert_close(net(tokens), net.head(rms_norm(net.embedding(tokens))))


def test_rotary_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()

    def product(first: int, second: int) -> Tensor:
        cos, sin = (x.double() for x in rotary_table(torch.tensor([first, second]), 8, 100.0))
        return rotate(q, cos[:1], sin[:1]) @ rotate(k, cos[1:], sin[1:]).T

    assert_close(product(3, 1), product(13, 11), atol=1e-6, rtol=1e-6)
    assert not torch.isclose(product(3, 1), product(3, 2))
    assert_close(product(5, 5), q @ k.T, atol=1e-6, rtol=1e-6)


def test_tied_embeddings_are_one_matrix() -> None:
    tied, free = make_net(), make_net(tie_embeddings=False)
    assert tied.head.weight is tied.embedding.weight
    assert sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in tied.parameters()) == VOCABULARY * 32
    restored = make_net()
    restored.load_state_dict(tied.state_dict())
    assert restored.head.weight is restored.embedding.weight


def test_stages_hold_every_parameter_from_input_to_output() -> None:
    net = make_net(tie_embeddings=False)
    placed = [id(p) for stage in [*net.stages, [net.head]] for module in stage for p in module.parameters()]
    assert sorted([*placed, id(net.gain)]) == sorted(id(p) for p in net.parameters())
    assert len(net.stages) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 36}, r"embed_dim \(36\) must be a multiple of twice num_heads \(4\)"),
        ({"num_kv_heads": 3}, r"num_heads \(4\) must be a multiple of num_kv_heads \(3\)"),
        ({"window": 0}, r"window \(0\) must be at least 1"),
        ({"dropout": 1.0}, r"dropout \(1.0\) must be within \[0, 1\)"),
        ({"depth": 0}, r"depth \(0\) must be above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_net(**options)


def test_a_cache_needs_a_causal_net() -> None:
    with pytest.raises(ValueError, match="a cache needs a causal net"):
        make_net(causal=False).make_cache(1, 8)
