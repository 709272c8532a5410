"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon) on matrices of one shape at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_app.devices import has_bfloat16


class BatchedMuon(torch.optim.Muon):
    """`torch.optim.Muon` with the same options, state and result, that orthogonalises equal shapes in one go.

    A transformer's blocks have the same few shapes, and small matrices are multiplied much faster together.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            shapes: dict[tuple[Any, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    key = (parameter.shape, parameter.device, parameter.dtype)
                    shapes.setdefault(key, []).append(parameter)
            members = list(shapes.values())
            updates = [self._take_momentum(parameters, group) for parameters in members]
            matrices = orthogonalise(updates, group["ns_coefficients"], group["ns_steps"], group["eps"])
            rate = float(group["lr"])
            for parameters, stack in zip(members, matrices, strict=True):
                torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
                scale = rate * shape_factor(parameters[0].shape, group["adjust_lr_fn"])
                torch._foreach_add_(parameters, list(stack.to(parameters[0].dtype).unbind()), alpha=-scale)
        return loss

    def _take_momentum(self, parameters: list[Tensor], group: dict[str, Any]) -> Tensor:
        """Gradients with momentum of N parameters of one shape, (N, R, C)."""
        gradients: list[Tensor] = [parameter.grad for parameter in parameters]  # type: ignore[misc]
        buffers = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            buffers.append(state["momentum_buffer"])
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, buffers, group["momentum"]) if group["nesterov"] else buffers
        return torch.stack(list(updates))


Coefficients = tuple[float, float, float]


def orthogonalise(stacks: list[Tensor], coefficients: Coefficients, steps: int, eps: float) -> list[Tensor]:
    """Matrices with their singular values moved towards 1 by Newton and Schulz's iteration.

    In bfloat16, as torch does it; on a CPU that only emulates bfloat16 in float32, in the form that is cheaper there.

    Args:
        stacks: Matrices of a shape each, (N, R, C).
        coefficients: Those of x, x^3 and x^5 in a step's polynomial.
        steps: Steps of the iteration.
        eps: Least norm to divide by.
    """
    tall = [x.shape[1] > x.shape[2] for x in stacks]
    wide = [x.mT if turned else x for x, turned in zip(stacks, tall, strict=True)]
    if not stacks or has_bfloat16(stacks[0].device):
        results = [newton_schulz(normalised(x.bfloat16(), eps), coefficients, steps) for x in wide]
    else:
        results = list(wide)
        for rows in {x.shape[1] for x in wide}:
            indices = [index for index, x in enumerate(wide) if x.shape[1] == rows]
            together = gram_newton_schulz([normalised(wide[i].float(), eps) for i in indices], coefficients, steps)
            for index, result in zip(indices, together, strict=True):
                results[index] = result
    return [x.mT if turned else x for x, turned in zip(results, tall, strict=True)]


def normalised(x: Tensor, eps: float) -> Tensor:
    """Matrices (N, R, C) of Frobenius norm 1."""
    return x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)


def newton_schulz(x: Tensor, coefficients: Coefficients, steps: int) -> Tensor:
    """X becomes (a + b A + c A^2) x with A = x x^T, again and again; x is (N, R, C), no taller than wide."""
    a, b, c = coefficients
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def gram_newton_schulz(stacks: list[Tensor], coefficients: Coefficients, steps: int) -> list[Tensor]:
    """The same iteration on A alone, which is smaller than a wide x and of one shape for stacks (N, R, C) of one R.

    Every factor P = a + b A + c A^2 is a polynomial of the first A, so that they commute: A becomes P A P, and x is
    multiplied by the product of all P once. It squares what is small, so that it needs float32.
    """
    a, b, c = coefficients
    gram = torch.cat([x @ x.mT for x in stacks])
    product = gram
    for step in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor @ product if step else factor
        if step < steps - 1:
            gram = factor @ gram @ factor
    factors = product.split([len(x) for x in stacks])
    return [factor @ x for factor, x in zip(factors, stacks, strict=True)]


def shape_factor(shape: torch.Size, rule: str | None) -> float:
    """What the rate is multiplied by for a matrix (R, C), by torch's rules of these names."""
    rows, columns = shape
    if rule is None or rule == "original":
        return max(1.0, rows / columns) ** 0.5
    if rule == "match_rms_adamw":
        return 0.2 * max(rows, columns) ** 0.5
    return (rows / columns) ** 0.5 if rule == "spectral_unclamped" else 1.0
