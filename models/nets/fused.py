"""Norm, rotation and gate with gradients written by hand: fewer passes over memory than autograd makes of their parts.

On small nets on a CPU they are a good part of a step. Without gradients, exporters and the compiler see the plain
operations, which they know.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

EPS = 1e-6


def rms_norm(x: Tensor, gain: Tensor | None = None) -> Tensor:
    """`x` with a root mean square of `gain`, or 1, over its last dimension (Zhang & Sennrich, arXiv 1910.07467).

    Args:
        x: (..., E).
        gain: One factor for all, (1,).
    """
    if torch.is_grad_enabled():
        return _RMSNorm.apply(x, gain)
    if _exports():
        x = F.rms_norm(x, x.shape[-1:], eps=EPS)
        return x if gain is None else x * gain.to(x.dtype)
    return x * _rms_scale(x, gain)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i + D / 2}) by an angle: (..., T, D) to the same (Su et al., arXiv 2104.09864).

    Args:
        x: (..., T, D).
        cos: Cosines of the angles, (T, D / 2).
        sin: Sines of the angles, (T, D / 2).
    """
    if torch.is_grad_enabled():
        return _Rotate.apply(x, cos, sin)
    if not _exports():
        return _turn(x, cos, sin, 1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def silu_gate(x: Tensor) -> Tensor:
    """The SiLU of one half times the other: (..., 2 M) to (..., M) (Shazeer, arXiv 2002.05202)."""
    if torch.is_grad_enabled():
        return _SiluGate.apply(x)
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def _exports() -> bool:
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def _rms_scale(x: Tensor, gain: Tensor | None) -> Tensor:
    """What `x` is to be multiplied by, (..., 1)."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # squares of fp16 overflow
    square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
    scale = square.mul_(1 / x.shape[-1]).add_(EPS).rsqrt_().to(x.dtype)
    return scale if gain is None else scale * gain.to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None) -> Tensor:
        scale = _rms_scale(x, gain)
        y = x * scale
        ctx.save_for_backward(y, scale, gain)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        y, scale, gain = ctx.saved_tensors
        share = (grad * y).mean(-1, keepdim=True)  # (..., 1)
        if gain is None:
            return torch.addcmul(grad, y, share, value=-1).mul_(scale), None
        grad_gain = (share.sum() * y.shape[-1]).view(1) / gain
        share = share / gain.to(share.dtype).square()
        return torch.addcmul(grad, y, share, value=-1).mul_(scale), grad_gain.to(gain.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, sin, -1), None, None  # back by the same angle


class _SiluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        opened = F.silu(gate)
        ctx.save_for_backward(x, opened)
        return opened * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, opened = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        result = torch.empty_like(x)
        grad_gate, grad_up = result.chunk(2, dim=-1)
        torch.mul(grad, opened, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return result


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cos, out=result[..., :half]).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=result[..., half:]).addcmul_(first, sin, value=sign)
    return result
