"""Parameter groups, learning-rate schedules and the Muon + AdamW optimizer. Plain torch, no Lightning.

Any torch optimizer works by class path; what it lacks is here: which parameters decay, which learn slower, and how the
rate moves over the run.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from models.muon import BatchedMuon

OptimizerFactory = Callable[[Iterable[Any]], Optimizer]
Shape = Literal["constant", "linear", "cosine", "one_cycle"]


@dataclass(frozen=True)
class Schedule:
    """Learning rate over the run, as a factor of the optimizer's `lr`, stepped once per optimizer step.

    Args:
        shape: What follows the warm-up: `constant`; `linear` or `cosine` down to `floor`; `one_cycle`, a cosine up from
            1/25 and a cosine down to `floor` (Smith & Topin, arXiv 1708.07120), whose default warm-up is 0.3.
        warmup: Length of the warm-up: a fraction of the run when below 1, else a number of optimizer steps.
        floor: The factor reached on the last step.
    """

    shape: Shape = "cosine"
    warmup: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise ValueError(f"schedule.shape {self.shape!r} must be one of {list(get_args(Shape))}")
        if self.warmup < 0:
            raise ValueError(f"schedule.warmup ({self.warmup}) must be a fraction in [0, 1) or a number of steps >= 1")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"schedule.floor ({self.floor}) must be within [0, 1]")

    def warmup_steps(self, total_steps: int) -> int:
        """Number of optimizer steps before the rate is at its peak."""
        warmup = self.warmup or (0.3 if self.shape == "one_cycle" else 0.0)
        return round(warmup * total_steps) if warmup < 1 else round(warmup)

    def factor(self, step: int, total_steps: int) -> float:
        """Factor of optimizer step `step`, of 0 to `total_steps` - 1; the last step runs at `floor`.

        `total_steps` of 0 or less means an open-ended run, which only `constant` allows.
        """
        if total_steps <= 0 and (self.shape != "constant" or 0 < self.warmup < 1):
            needs = (
                "a warm-up in steps"
                if self.shape == "constant"
                else "max_steps, or max_epochs and a loader with a length"
            )
            raise ValueError(f"schedule.shape {self.shape!r} on a run without an end needs {needs}")
        warmup = self.warmup_steps(total_steps)
        if step < warmup:
            if self.shape == "one_cycle":
                return 1 / 25 + (1 - 1 / 25) * _cosine_up(step / warmup)
            return (step + 1) / (warmup + 1)
        if self.shape == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
        decay = 1 - progress if self.shape == "linear" else 1 - _cosine_up(progress)
        return self.floor + (1 - self.floor) * decay


def _cosine_up(progress: float) -> float:
    return 0.5 - 0.5 * math.cos(math.pi * progress)


class ScheduledFactor:
    """The callable that `LambdaLR` evaluates: a `Schedule` whose number of steps is told when training starts.

    `LambdaLR` puts a callable object's attributes into its state, so they are plain values. A resumed run sets
    `total_steps` anew, so that a longer `max_epochs` on the command line counts.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.shape, self.warmup, self.floor = schedule.shape, schedule.warmup, schedule.floor
        self.total_steps: int | None = None

    def __call__(self, step: int) -> float:
        if self.total_steps is None:  # before training starts
            return 1.0
        return Schedule(self.shape, self.warmup, self.floor).factor(step, self.total_steps)


def make_scheduler(optimizer: Optimizer, schedule: Schedule) -> LambdaLR:
    """A scheduler that holds the optimizer's rates until `start_scheduler` is told the length of the run."""
    return LambdaLR(optimizer, ScheduledFactor(schedule))


def start_scheduler(scheduler: LambdaLR, schedule: Schedule, total_steps: int) -> None:
    """Tell the scheduler how many optimizer steps the run has, and set the rates for the step it stands at."""
    factor = ScheduledFactor(schedule)
    factor.total_steps = total_steps
    scheduler.lr_lambdas = [factor] * len(scheduler.base_lrs)
    rates = [base * factor(scheduler.last_epoch) for base in scheduler.base_lrs]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates


def stage_of_parameters(net: nn.Module) -> tuple[dict[str, int], int]:
    """Stage index of every parameter by name, counted from the input, and the number of stages.

    The head counts as the last stage. A parameter that belongs to no stage (a positional embedding) goes with stage 0.
    """
    stages = [
        *getattr(net, "stages", []),
        [net.head] if isinstance(getattr(net, "head", None), nn.Module) else [],
    ]
    index = {
        id(parameter): number
        for number, modules in enumerate(stages)
        for module in modules
        for parameter in module.parameters()
    }
    return {name: index.get(id(parameter), 0) for name, parameter in net.named_parameters()}, len(stages)


def parameter_groups(
    net: nn.Module, *, lr_multipliers: Mapping[str, float] | None = None, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Parameters of `net` in groups that share a learning-rate multiplier and whether they decay.

    Norms, biases and other vectors take no weight decay. Each group is `{"params", "name", "lr_multiplier", "decay",
    "hidden"}`; `hidden` is false for the head, embeddings and the first convolution, which Muon leaves to AdamW.

    Args:
        net: The net. `net.stages` and `net.head` place a parameter for `layer_decay`.
        lr_multipliers: Multiplier by prefix of parameter name, e.g. `{"backbone": 0.1}`; the longest match counts.
        layer_decay: Multiplier per stage below the head: the stage at distance d learns at `layer_decay ** d`
            (Howard & Ruder, arXiv 1801.06146; Clark et al., arXiv 2003.10555).

    Raises:
        ValueError: Where a prefix matches no parameter, or `layer_decay` needs stages that the net does not declare.
    """
    multipliers = dict(lr_multipliers or {})
    names = [name for name, _ in net.named_parameters()]
    for prefix in multipliers:
        if not any(_has_prefix(name, prefix) for name in names):
            known = sorted({name.split(".")[0] for name in names})
            raise ValueError(f"lr_multipliers names {prefix!r}, which matches no parameter; the net has {known}")
    if layer_decay != 1.0 and not hasattr(net, "stages"):
        raise ValueError(f"layer_decay ({layer_decay}) needs a net with `stages`; {type(net).__name__} has none")
    stages, num_stages = stage_of_parameters(net)
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    kernels = {id(module.weight) for module in convolutions}
    outer: list[nn.Module] = [module for module in net.modules() if isinstance(module, nn.Embedding)]
    outer += convolutions[:1]
    if isinstance(head := getattr(net, "head", None), nn.Module):
        outer.append(head)
    not_hidden = {id(parameter) for module in outer for parameter in module.parameters()}

    groups: dict[tuple[float, bool, bool], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        matches = [prefix for prefix in multipliers if _has_prefix(name, prefix)]
        multiplier = multipliers[max(matches, key=len)] if matches else 1.0
        multiplier *= layer_decay ** (num_stages - 1 - stages[name])
        decay = parameter.ndim > 1
        # more than two dimensions is a kernel or, say, a positional embedding, which is no matrix
        hidden = id(parameter) not in not_hidden and (parameter.ndim <= 2 or id(parameter) in kernels)
        name = f"x{multiplier:.4g}" + ("" if hidden else "_outer") + ("" if decay else "_no_decay")
        group = {"params": [], "name": name, "lr_multiplier": multiplier, "decay": decay, "hidden": hidden}
        groups.setdefault((multiplier, decay, hidden), group)["params"].append(parameter)
    return list(groups.values())


def _has_prefix(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def build_optimizer(factory: OptimizerFactory, groups: list[dict[str, Any]]) -> Optimizer:
    """Build the optimizer, then scale each group's rate by its multiplier and free vectors of weight decay.

    Raises:
        ValueError: Where the optimizer refuses the parameters; for Muon it names what takes them.
    """
    try:
        optimizer = factory(groups)
    except ValueError as error:
        if "Muon only supports 2D" in str(error):
            raise ValueError(
                f"torch.optim.Muon takes matrices only ({error}); use models.optim.MuonAdamW, which leaves biases, "
                "norms, convolutions and the head to AdamW"
            ) from error
        raise
    for group in optimizer.param_groups:
        # a tensor rate (fused and capturable optimizers) is shared between groups: never scale it in place
        group["lr"] = group["lr"] * group["lr_multiplier"]
        if not group["decay"] and "weight_decay" in group:
            group["weight_decay"] = 0.0
    return optimizer


@contextlib.contextmanager
def _as_matrices(groups: list[dict[str, Any]]) -> Iterator[None]:
    """Show parameters (and gradients) of more than two dimensions as matrices (len, rest), which share their memory.

    The order of the columns follows the memory, so that channels-last weights need no copy; Muon's update does not
    depend on it.
    """
    shaped = [p for group in groups for p in group["params"] if p.ndim > 2]
    kept = [(p, p.data, p.grad) for p in shaped]
    for parameter, data, grad in kept:
        order = [0, *sorted(range(1, data.ndim), key=data.stride, reverse=True)]
        parameter.grad = None
        parameter.data = data.permute(order).flatten(1)
        assert parameter.data_ptr() == data.data_ptr()
        if grad is not None:
            parameter.grad = grad.permute(order).flatten(1)
    try:
        yield
    finally:
        for parameter, data, grad in kept:
            parameter.grad = None
            parameter.data = data
            parameter.grad = grad


class MuonAdamW(Optimizer):
    """Muon on hidden matrices and convolutions, AdamW on everything else, as one optimizer with one schedule.

    Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon) is meant for hidden layers: embeddings, the
    first convolution, heads, norms and biases go to AdamW. A convolution's weight (O, I, K, K) counts as the matrix
    (O, I * K * K), as in that post; `torch.optim.Muon` itself refuses it.

    Args:
        params: Groups as `parameter_groups` makes them, or an iterable of parameters.
        lr: Learning rate of the matrices.
        momentum: Muon's momentum.
        weight_decay: Decoupled weight decay of both.
        adamw_lr: Learning rate of the rest.
        betas: AdamW's betas.
        ns_steps: Steps of Muon's iteration; fewer are cheaper and less exact.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adamw_lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        ns_steps: int = 5,
    ) -> None:
        groups = [g if isinstance(g, dict) else {"params": [g]} for g in params]
        shared = {"weight_decay": weight_decay}
        muon, adamw = [], []
        for group in groups:
            members = list(group["params"])
            extra = shared | {key: value for key, value in group.items() if key != "params"}
            is_muon = [group.get("hidden", True) and parameter.ndim >= 2 for parameter in members]
            chosen = list(zip(members, is_muon, strict=True))
            muon.append({**extra, "lr": lr, "params": [p for p, yes in chosen if yes]})
            # a group of both kinds is split, and Lightning's LearningRateMonitor refuses two groups of one name
            name = {"name": f"{group['name']}_adamw"} if "name" in group else {}
            adamw.append({**extra, **name, "lr": adamw_lr, "params": [p for p, yes in chosen if not yes]})
        muon = [group for group in muon if group["params"]]
        adamw = [group for group in adamw if group["params"]]
        if not muon:
            raise ValueError("MuonAdamW needs a hidden matrix and this net has none; use torch.optim.AdamW")
        with _as_matrices(muon):
            self.parts: list[Optimizer] = [
                BatchedMuon(muon, lr=lr, momentum=momentum, weight_decay=weight_decay, ns_steps=ns_steps)
            ]
        if adamw:
            self.parts.append(torch.optim.AdamW(adamw, lr=adamw_lr, betas=betas, weight_decay=weight_decay))
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts and the whole hold the same group dicts and the same state."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step both parts."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with _as_matrices(self.parts[0].param_groups):
            self.parts[0].step()
        for part in self.parts[1:]:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, then share the loaded groups with the parts again."""
        super().load_state_dict(state_dict)
        self._share()
