"""Knowledge distillation (Hinton et al., arXiv 1503.02531) for any classifier, images or text.

The teacher is a checkpoint of ours, and no part of the student: its parameters, its state, its checkpoint.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from models.nets.lora import merge_lora
from models.nets.pretrained import without_pretrained_weights

# B batch, K classes, T tokens, D width, C channels


@dataclass(frozen=True)
class Distillation:
    """How a student learns from a teacher.

    Args:
        teacher: A checkpoint of a task with the same classes, trained from the command line.
        temperature: Divides both logits before they are compared: more shows more of what the teacher holds possible.
        weight: Share of the teacher in the loss; the labels have the rest.
        hidden_weight: Weight of the distance between hidden states, added to the loss; needs nets of one width.
        initialise: Start from the teacher's weights: the student's stages take those of evenly spread stages of it.
    """

    teacher: str
    temperature: float = 2.0
    weight: float = 0.5
    hidden_weight: float = 0.0
    initialise: bool = False

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"distillation.temperature ({self.temperature}) must be above 0")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"distillation.weight ({self.weight}) must be within [0, 1]")
        if self.hidden_weight < 0:
            raise ValueError(f"distillation.hidden_weight ({self.hidden_weight}) must not be negative")


def load_teacher(path: str, class_names: list[str]) -> Any:
    """The trained task of a checkpoint, in eval mode and without gradients.

    Raises:
        ValueError: The file can't be read as one, or its classes are others.
    """
    try:
        with without_pretrained_weights():
            teacher: Any = LightningModule.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"distillation.teacher: {path} can't be loaded as a checkpoint of ours ({reason})") from error
    names = getattr(teacher, "class_names", None)
    if names != class_names:
        raise ValueError(f"distillation.teacher: {path} knows the classes {names}, and the data has {class_names}")
    merge_lora(teacher.net)  # so that its layers are named, and shaped, as a plain net's
    return teacher.eval().requires_grad_(False)


def match_stages(student: int, teacher: int) -> list[int]:
    """For each of the student's stages one of the teacher's: first to first, last to last, evenly spread between."""
    return [round(index * (teacher - 1) / (student - 1)) for index in range(student)] if student > 1 else [teacher - 1]


def initialise_from(student: Any, teacher: Any) -> None:
    """Copy the weights of evenly spread stages, and of the head, into the student.

    Raises:
        ValueError: A net declares no stages, or a stage does not fit; it is named.
    """
    ours, theirs = _stages(student), _stages(teacher)
    pairs = [("the head", [student.head], [teacher.head])]
    for index, match in enumerate(match_stages(len(ours), len(theirs))):
        pairs.append((f"stage {index}", ours[index], theirs[match]))
    for name, to, source in pairs:
        try:
            nn.ModuleList(to).load_state_dict(nn.ModuleList(source).state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split(":", 1)[-1].split())
            raise ValueError(f"distillation.initialise: {name} does not fit the teacher's ({reason[:200]})") from error


class Distiller:
    """Runs the teacher beside the student and compares them; no module, so that nothing counts it to the student."""

    def __init__(self, options: Distillation, student: nn.Module, class_names: list[str]) -> None:
        self.options = options
        self.teacher = load_teacher(options.teacher, class_names).net
        self.student = student
        ours, theirs = (getattr(net, "vocab_size", None) for net in (student, self.teacher))
        if None not in (ours, theirs) and ours != theirs:
            raise ValueError(
                f"distillation.teacher: {options.teacher} knows {theirs:,} tokens, and the student {ours:,}: they need "
                "one tokenizer"
            )
        if options.hidden_weight:
            _stages(student), _stages(self.teacher)

    def __call__(self, run_student: Callable[[], Tensor], inputs: Any) -> tuple[Tensor, Tensor]:
        """The student's logits (B, K) in float32, and what the teacher adds to the loss.

        Args:
            run_student: Runs the student on `inputs`.
            inputs: A tensor, or a dict of tensors that go by keyword.
        """
        first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        self.teacher.to(first.device)
        hidden = bool(self.options.hidden_weight)
        with Record(self.student, hidden) as ours, Record(self.teacher, hidden) as theirs:
            logits = run_student().float()
            with torch.no_grad():
                output = self.teacher(**inputs) if isinstance(inputs, Mapping) else self.teacher(inputs)
        loss = self.options.weight * soft_loss(logits, output.float(), self.options.temperature)
        if hidden:
            mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
            matches = match_stages(len(ours.states), len(theirs.states))
            distances = [
                hidden_loss(state, theirs.states[match], mask)
                for state, match in zip(ours.states, matches, strict=True)
            ]
            loss = loss + self.options.hidden_weight * torch.stack(distances).mean()
        return logits, loss


class Record:
    """The outputs of a net's stages while the context is open: for each that of its module which runs last."""

    def __init__(self, net: Any, active: bool) -> None:
        self.stages = _stages(net) if active else []
        self.states: list[Tensor] = [torch.empty(0)] * len(self.stages)

    def __enter__(self) -> "Record":
        # the order in a stage is that of declaration: rotary positions stand behind the layers, and run before them
        self.handles = [
            module.register_forward_hook(lambda _, __, output, index=index: self.keep(index, output))
            for index, stage in enumerate(self.stages)
            for module in stage
        ]
        return self

    def keep(self, index: int, output: Any) -> None:
        """Note a stage's output; some layers return it in a tuple."""
        self.states[index] = output if isinstance(output, Tensor) else output[0]

    def __exit__(self, *_: Any) -> None:
        for handle in self.handles:
            handle.remove()


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of logits (B, K) from the teacher's, times the squared temperature.

    The square keeps gradients of one size whatever the temperature (Hinton et al., section 2).
    """
    soft = F.log_softmax(teacher / temperature, -1)
    loss = F.kl_div(F.log_softmax(student / temperature, -1), soft, log_target=True, reduction="batchmean")
    return loss * temperature**2


def hidden_loss(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of 1 - cosine between states (B, T, D) of tokens that `mask` (B, T) keeps, or between maps (B, C, H, W).

    The distance of DistilBERT (Sanh et al., arXiv 1910.01108), for each layer.

    Raises:
        ValueError: The shapes differ.
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"distillation.hidden_weight needs states of one shape: the student's are {tuple(student.shape)}, the "
            f"teacher's {tuple(teacher.shape)}; set it to 0"
        )
    distance = 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1 if student.ndim == 3 else 1)
    if mask is None or student.ndim != 3:
        return distance.mean()
    return (distance * mask).sum() / mask.sum()


def _stages(net: Any) -> list[list[nn.Module]]:
    stages = getattr(net, "stages", None)
    if not stages:
        raise ValueError(f"distillation by stages needs a net with `stages`; {type(net).__name__} has none")
    return stages
