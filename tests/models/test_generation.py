"""Choosing tokens against naive loops, and generation with and without a cache."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from models.generation import Sampling, generate, pad_left
from models.nets.efficient_transformer import EfficientTransformer

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, -3.0], [0.0, 0.1, 3.0, 2.9, 0.2]])


def naive_probabilities(logits: list[float], s: Sampling) -> list[float]:
    values = torch.tensor(logits).double().div(s.temperature).softmax(0).tolist()
    order = sorted(range(len(values)), key=lambda i: -values[i])
    if s.top_k is not None:
        order = order[: s.top_k]
    total = sum(values[i] for i in order)
    kept, reached = [], 0.0
    for i in order:
        if reached >= s.top_p:
            break
        kept.append(i)
        reached += values[i] / total
    total = sum(values[i] for i in kept)
    kept = [i for i in kept if values[i] / total >= s.min_p * values[kept[0]] / total]
    total = sum(values[i] for i in kept)
    return [values[i] / total if i in kept else 0.0 for i in range(len(values))]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [None, 1, 3, 99])
@pytest.mark.parametrize("top_p", [1.0, 0.7, 0.05])
@pytest.mark.parametrize("min_p", [0.0, 0.3])
def test_probabilities_are_those_of_a_loop(temperature: float, top_k: int | None, top_p: float, min_p: float) -> None:
    sampling = Sampling(temperature, top_k, top_p, min_p)
    expected = [naive_probabilities(row, sampling) for row in LOGITS.tolist()]
    assert_close(sampling.probabilities(LOGITS), torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = Counter(Sampling().choose(LOGITS[:1].expand(4000, 5), generator).tolist())
    expected = LOGITS[0].softmax(0)
    assert [drawn[i] / 4000 for i in range(5)] == pytest.approx(expected.tolist(), abs=0.03)


def test_no_temperature_takes_the_likeliest() -> None:
    assert Sampling(0.0).choose(LOGITS).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature \(-1.0\)"),
        ({"top_k": 0}, r"top_k \(0\) must be at least 1"),
        ({"top_p": 0.0}, r"top_p \(0.0\) must be above 0"),
        ({"min_p": 2.0}, r"min_p \(2.0\) must be within"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def make_net(**options: Any) -> EfficientTransformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "max_length": 32, "depth": 2, "embed_dim": 32, "num_heads": 4}
    net = EfficientTransformer(**(sizes | options))
    for block in net.blocks:
        nn.init.normal_(block.attention.out.weight, std=0.3)
        nn.init.normal_(block.mlp.down.weight, std=0.3)
    if net.previous_share is not None:
        nn.init.normal_(net.previous_share)
    return net.eval()


def run(
    net: EfficientTransformer, tokens: Tensor, mask: Tensor | None = None, count: int = 15, **options: Any
) -> Tensor:
    return torch.stack(list(generate(net, tokens, mask, max_new_tokens=count, **options)), 1)


GREEDY = Sampling(0.0)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"window": 6}, {"previous_token": True}])
@pytest.mark.parametrize("count", [15, 60])
def test_the_cache_gives_the_same_tokens(options: Any, count: int) -> None:
    """Also beyond the context length, where the oldest tokens go."""
    net, tokens = make_net(**options), torch.randint(20, (3, 9), generator=torch.Generator().manual_seed(1))
    cached = run(net, tokens, count=count, sampling=GREEDY)
    assert torch.equal(cached, run(net, tokens, count=count, sampling=GREEDY, use_cache=False))
    assert len(cached.unique()) > 3


def test_greedy_tokens_are_those_of_a_plain_loop() -> None:
    net, tokens = make_net(), torch.tensor([[3, 1, 4]])
    found = run(net, tokens, sampling=GREEDY)
    for token in found[0]:
        assert int(net(tokens)[0, -1].argmax()) == int(token)
        tokens = torch.cat([tokens, token.view(1, 1)], 1)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 5])
def test_prompts_of_several_lengths_are_as_if_alone(use_cache: bool, window: int | None) -> None:
    net, prompts = make_net(window=window), [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]
    tokens, mask = pad_left(prompts)
    together = run(net, tokens, mask, count=40, sampling=GREEDY, use_cache=use_cache)
    for row, prompt in zip(together, prompts, strict=True):
        assert torch.equal(row, run(net, torch.tensor([prompt]), count=40, sampling=GREEDY)[0])


def test_a_seed_gives_the_same_tokens() -> None:
    net, tokens = make_net(), torch.tensor([[3, 1, 4]])
    first, again, other = (run(net, tokens, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_beyond_the_context_length_an_error_may_be_chosen() -> None:
    net, tokens = make_net(), torch.ones(1, 20, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"20 tokens and 13 new ones are more than the net was trained for \(32\)"):
        run(net, tokens, count=13, when_full="error")
    assert run(net, tokens, count=12, when_full="error").shape == (1, 12)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        pad_left([[1], []])
