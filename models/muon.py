"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon) on matrices of one shape at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
            for parameters in shapes.values():
                self._step_together(parameters, group)
        return loss

    def _step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients: list[Tensor] = [parameter.grad for parameter in parameters]  # type: ignore[misc]
        buffers = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            buffers.append(state["momentum_buffer"])
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, buffers, group["momentum"]) if group["nesterov"] else buffers
        matrices = orthogonalise(torch.stack(list(updates)), group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = float(group["lr"])
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        scale = rate * shape_factor(parameters[0].shape, group["adjust_lr_fn"])
        torch._foreach_add_(parameters, list(matrices.to(parameters[0].dtype).unbind()), alpha=-scale)


def orthogonalise(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Matrices (N, R, C) with their singular values moved towards 1, in bfloat16, by Newton and Schulz's iteration."""
    a, b, c = coefficients
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def shape_factor(shape: torch.Size, rule: str | None) -> float:
    """What the rate is multiplied by for a matrix (R, C), by torch's rules of these names."""
    rows, columns = shape
    if rule is None or rule == "original":
        return max(1.0, rows / columns) ** 0.5
    if rule == "match_rms_adamw":
        return 0.2 * max(rows, columns) ** 0.5
    return (rows / columns) ** 0.5 if rule == "spectral_unclamped" else 1.0
