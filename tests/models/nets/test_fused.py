"""Hand-written gradients against numerical ones and against torch's own operations."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from models.nets.fused import EPS, rms_norm, rotate, silu_gate


def make(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def test_rms_norm_is_torchs() -> None:
    x, gain = make(2, 3, 8), torch.tensor([1.7], dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 3, 8, dtype=torch.float64)
    found = torch.autograd.grad((rms_norm(x, gain) * weights).sum(), (x, gain))
    expected = torch.autograd.grad((F.rms_norm(x, (8,), eps=EPS) * gain * weights).sum(), (x, gain))
    assert_close(found, expected)
    assert_close(rms_norm(x), F.rms_norm(x, (8,), eps=EPS))
    with torch.no_grad():
        assert_close(rms_norm(x, gain), F.rms_norm(x, (8,), eps=EPS) * gain)


def test_gradients_are_the_numerical_ones() -> None:
    gain = torch.tensor([0.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rms_norm(x), (make(2, 3, 6),))
    assert torch.autograd.gradcheck(rms_norm, (make(2, 3, 6), gain))
    angles = torch.rand(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, angles.cos(), angles.sin()), (make(2, 3, 8),))
    assert torch.autograd.gradcheck(silu_gate, (make(2, 3, 8),))


def test_silu_gate_is_torchs() -> None:
    x = make(2, 3, 8)
    expected = F.silu(x[..., :4]) * x[..., 4:]
    assert_close(silu_gate(x), expected)
    with torch.no_grad():
        assert_close(silu_gate(x), expected)


def test_rotation_is_a_complex_product() -> None:
    x, angles = make(2, 5, 8), torch.rand(5, 4, dtype=torch.float64)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag], -1)
    assert_close(rotate(x, angles.cos(), angles.sin()), expected)
    with torch.no_grad():
        assert_close(rotate(x, angles.cos(), angles.sin()), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_type_and_its_range(dtype: torch.dtype) -> None:
    x = (200 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    y = rms_norm(x)
    assert y.dtype == dtype
    assert_close(y.float(), F.rms_norm(x.float(), (64,), eps=EPS), atol=0.02, rtol=0.02)
    y.sum().backward()
    assert x.grad.isfinite().all()
