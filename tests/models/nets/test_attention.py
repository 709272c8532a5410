"""Every kernel and every mask against the oracle, in both precisions, forward and gradients."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from models.nets.attention import FlexAttention, Mask, make_kernel, naive_attention, sdpa_attention

B, H, G, T, D = 2, 4, 2, 37, 8


def make_inputs(dtype: torch.dtype = torch.float64, length: int = T, queries: int | None = None) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, H, queries or length, D), (B, G, length, D), (B, G, length, D))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes)


def documents(length: int = T) -> Tensor:
    return torch.stack([torch.arange(length) // 11, torch.arange(length) // 17])


def padding(length: int = T, *, left: bool = True) -> Tensor:
    lengths = torch.tensor([[length], [length - 9]])
    return torch.arange(length) >= length - lengths if left else torch.arange(length) < lengths


RULES: dict[str, Any] = {"causal": True, "window": 5, "documents": documents(), "padding": padding()}
MASKS = [
    {name: RULES[name] for name, chosen in zip(RULES, choice, strict=True) if chosen}
    for choice in product([False, True], repeat=4)
]


def naming(mask: dict[str, Any]) -> str:
    return "+".join(mask) or "none"


def seen(mask: Mask, queries: int, keys: int) -> Tensor:
    """Which queries see anything, (B, Q): what the others give is of no use to anyone."""
    allowed = mask.allowed(queries, keys, torch.device("cpu"))
    everything = torch.ones(B, queries, dtype=torch.bool)
    return everything if allowed is None else (allowed.expand(B, 1, queries, keys).any(-1)[:, 0])


@pytest.mark.parametrize("mask", MASKS, ids=naming)
def test_the_rules_are_what_they_say(mask: dict[str, Any]) -> None:
    allowed = Mask(**mask).allowed(T, T, torch.device("cpu"))
    for b, q, k in product(range(B), range(T), range(T)):
        expected = not ("causal" in mask and k > q)
        expected &= not ("window" in mask and abs(q - k) >= 5)
        expected &= not ("documents" in mask and documents()[b, q] != documents()[b, k])
        expected &= not ("padding" in mask and not padding()[b, k])
        found = True if allowed is None else bool(allowed.expand(B, 1, T, T)[b, 0, q, k])
        assert found == expected, (b, q, k)


def test_the_oracle_is_the_formula() -> None:
    q, k, v = make_inputs()
    for b, h, t in ((0, 0, 0), (1, 3, 20), (0, 2, 36)):
        weights = (k[b, h // 2, : t + 1] @ q[b, h, t] / D**0.5).softmax(0)
        assert_close(naive_attention(q, k, v, Mask(causal=True))[b, h, t], weights @ v[b, h // 2, : t + 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mask", MASKS, ids=naming)
def test_sdpa_is_the_oracle(mask: dict[str, Any], dtype: torch.dtype) -> None:
    check(make_kernel("sdpa"), Mask(**mask), make_inputs(dtype))


@pytest.mark.parametrize("mask", [{}, {"causal": True}], ids=naming)
def test_flash_is_the_oracle(mask: dict[str, Any]) -> None:
    check(make_kernel("flash"), Mask(**mask), make_inputs(torch.float32))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [20, 37, 40, 61])
@pytest.mark.parametrize("extra", [[], ["documents"], ["padding"], ["documents", "padding"]])
def test_a_short_window_by_blocks_is_the_oracle(causal: bool, length: int, extra: list[str]) -> None:
    given = {"documents": documents(length), "padding": padding(length)}
    mask = Mask(causal=causal, window=5, **{name: given[name] for name in extra})
    check(sdpa_attention, mask, make_inputs(length=length))


def check(kernel: Any, mask: Mask, inputs: tuple[Tensor, ...]) -> None:
    queries, keys = inputs[0].shape[-2], inputs[1].shape[-2]
    of_use = seen(mask, queries, keys)[:, None, :, None]
    weights = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=inputs[0].dtype) * of_use
    results = []
    for function in (naive_attention, kernel):
        output = function(*inputs, mask)
        assert output.isfinite().all()
        gradients = torch.autograd.grad((output * weights).sum(), inputs)
        assert all(gradient.isfinite().all() for gradient in gradients)
        results.append((output * of_use, *gradients))
    tolerance = {"atol": 1e-10, "rtol": 1e-8} if inputs[0].dtype == torch.float64 else {"atol": 2e-5, "rtol": 1e-4}
    assert_close(results[1], results[0], **tolerance)


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_few_queries_are_the_last_ones(kernel: str) -> None:
    q, k, v = make_inputs(queries=3)
    whole = torch.zeros(B, H, T, D, dtype=torch.float64)
    whole[:, :, -3:] = q.detach()
    for mask in (Mask(causal=True), Mask(causal=True, window=5), Mask(causal=True, documents=documents())):
        assert_close(make_kernel(kernel)(q, k, v, mask), naive_attention(whole, k, v, mask)[:, :, -3:])


def test_positions_may_come_in_any_order() -> None:
    """As in a ring, whose oldest place is written over."""
    q, k, v = make_inputs(queries=2)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(0))
    mask = Mask(True, 9, query_positions=torch.tensor([35, 36]), key_positions=order)
    expected = naive_attention(q, k, v, Mask(causal=True, window=9))
    for kernel in ("naive", "sdpa"):
        assert_close(make_kernel(kernel)(q, k[:, :, order], v[:, :, order], mask), expected)


def test_a_row_that_sees_nothing_is_finite() -> None:
    q, k, v = make_inputs(torch.float32)
    nothing = torch.zeros(B, T, dtype=torch.bool)
    for kernel in ("naive", "sdpa"):
        output = make_kernel(kernel)(q, k, v, Mask(padding=nothing))
        assert output.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), (q, k, v)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_fit_the_type(dtype: torch.dtype) -> None:
    inputs = [part.detach().to(dtype) for part in make_inputs()]
    for mask in (Mask(causal=True), Mask(causal=True, window=5), Mask(padding=padding(), documents=documents())):
        expected = naive_attention(*(part.double() for part in inputs), mask)
        for kernel in ("naive", "sdpa"):
            found = make_kernel(kernel)(*inputs, mask)
            assert found.dtype == dtype
            used = seen(mask, T, T)[:, None, :, None]
            assert_close(found.double() * used, expected * used, atol=0.03, rtol=0.03)


def test_dropped_weights_keep_their_mean() -> None:
    q, k, v = make_inputs()
    torch.manual_seed(0)
    for kernel in ("naive", "sdpa"):
        mean = torch.stack([make_kernel(kernel)(q, k, v, Mask(causal=True), 0.2) for _ in range(400)]).mean(0)
        assert_close(mean, naive_attention(q, k, v, Mask(causal=True)), atol=0.35, rtol=0.0)


def test_flex_says_what_it_can_not_do() -> None:
    q, k, v = make_inputs(torch.float32)
    with pytest.raises(ValueError, match="kernel flex computes no gradients on a CPU: use sdpa"):
        FlexAttention("error")(q, k, v, Mask(causal=True))
    with torch.no_grad(), pytest.raises(ValueError, match="kernel flex drops no attention weights"):
        FlexAttention("error")(q, k, v, Mask(causal=True), 0.1)
    assert_close(FlexAttention()(q, k, v, Mask(causal=True)), naive_attention(q, k, v, Mask(causal=True)))


@pytest.mark.slow
@pytest.mark.parametrize("mask", [{}, {"causal": True}, MASKS[-1], {"documents": documents()}], ids=naming)
def test_flex_is_the_oracle(mask: dict[str, Any]) -> None:
    """Compiles, which takes a while."""
    inputs = [part.detach() for part in make_inputs(torch.float32)]
    with torch.no_grad():
        used = seen(Mask(**mask), T, T)[:, None, :, None]
        found = make_kernel("flex")(*inputs, Mask(**mask))
        assert_close(found * used, naive_attention(*inputs, Mask(**mask)) * used, atol=2e-5, rtol=1e-4)


def test_varlen_says_where_it_runs() -> None:
    with pytest.raises(ValueError, match="kernel varlen runs on CUDA devices only: use sdpa"):
        make_kernel("varlen")(*make_inputs(torch.float32), Mask(causal=True))


@pytest.mark.gpu
def test_varlen_is_the_oracle() -> None:
    inputs = [part.detach().to("cuda", torch.bfloat16) for part in make_inputs()]
    mask = Mask(causal=True, documents=documents().cuda())
    expected = naive_attention(*(part.double() for part in inputs), mask)
    assert_close(make_kernel("varlen")(*inputs, mask).double(), expected, atol=0.03, rtol=0.03)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel 'sdap' must be one of \['naive', 'sdpa'"):
        make_kernel("sdap")  # type: ignore[arg-type]
