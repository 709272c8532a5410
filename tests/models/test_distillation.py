"""Distillation against naive formulas, and what a student keeps of its teacher: nothing but what it learned."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_app.cli import build, run
from models import TextClassifier, VisionClassifier
from models.distillation import Distillation, Distiller, Record, hidden_loss, initialise_from, match_stages, soft_loss
from models.nets.resnet9 import ResNet9
from models.nets.text_encoder import TextEncoder
from tests.tiny_run import TINY


def softmax(values: np.ndarray) -> np.ndarray:
    shifted = np.exp(values - values.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_soft_loss_is_the_divergence(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)).unbind()
    p, q = softmax(teacher.numpy() / temperature), softmax(student.numpy() / temperature)
    expected = temperature**2 * (p * (np.log(p) - np.log(q))).sum(1).mean()
    assert float(soft_loss(student, teacher, temperature)) == pytest.approx(expected)
    assert float(soft_loss(teacher, teacher, temperature)) == pytest.approx(0.0, abs=1e-12)


def test_the_gradient_does_not_fade_with_the_temperature() -> None:
    """At high temperatures it tends to (student - teacher) / K, centred, whatever the temperature (Hinton, eq. 4)."""
    teacher = torch.tensor([[1.0, -2.0, 0.5]])
    for temperature in (50.0, 100.0):
        student = torch.zeros(1, 3, requires_grad=True)
        soft_loss(student, teacher, temperature).backward()
        assert_close(student.grad, -(teacher - teacher.mean()) / 3, atol=0.02, rtol=0.02)


def test_hidden_loss_leaves_padding_out() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 3, 5, 8, generator=generator).unbind()
    mask = (torch.arange(5) < torch.tensor([[5], [2], [3]])).long()
    distances = [
        1 - float(torch.dot(student[b, t], teacher[b, t]) / (student[b, t].norm() * teacher[b, t].norm()))
        for b in range(3)
        for t in range(5)
        if mask[b, t]
    ]
    assert float(hidden_loss(student, teacher, mask)) == pytest.approx(np.mean(distances), abs=1e-6)
    teacher[1, 3] = 100.0  # padding
    assert float(hidden_loss(student, teacher, mask)) == pytest.approx(np.mean(distances), abs=1e-6)


def test_hidden_loss_of_maps_compares_channels() -> None:
    student, teacher = torch.randn(2, 2, 6, 3, 3, generator=torch.Generator().manual_seed(0)).unbind()
    flat = (x.permute(0, 2, 3, 1).reshape(2, 9, 6) for x in (student, teacher))
    assert_close(hidden_loss(student, teacher), hidden_loss(*flat))
    with pytest.raises(
        ValueError, match=r"the student's are \(2, 6, 3, 3\), the teacher's \(2, 5, 3, 3\); set it to 0"
    ):
        hidden_loss(student, teacher[:, :5])


@pytest.mark.parametrize(
    ("student", "teacher", "expected"),
    [(4, 7, [0, 2, 4, 6]), (2, 5, [0, 4]), (3, 3, [0, 1, 2]), (1, 4, [3]), (7, 4, [0, 0, 1, 2, 2, 2, 3])],
)
def test_stages_are_matched_evenly(student: int, teacher: int, expected: list[int]) -> None:
    assert match_stages(student, teacher) == expected


def make_bert(layers: int, seed: int = 0, **options: Any) -> TextEncoder:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = {"model_type": "bert", "num_hidden_layers": layers, **sizes} | options
    return TextEncoder(num_classes=3, model_name=None, config=config, vocab_size=config.get("vocab_size", 50))


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "electra", "gpt2"])
def test_states_of_stages_are_those_of_the_encoder(family: str) -> None:
    """Whatever else the encoder declares between or behind its layers."""
    torch.manual_seed(0)
    names = (
        ("n_embd", "n_layer", "n_head")
        if family == "gpt2"
        else ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    tokens = {name: 0 for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")}
    config = {"model_type": family, **dict(zip(names, (16, 3, 2), strict=True))}
    config |= tokens if family == "modernbert" else {}
    net = TextEncoder(num_classes=3, model_name=None, config=config, vocab_size=50).eval()
    inputs = {"input_ids": torch.arange(5, 17).view(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.int64)}
    with Record(net, True) as record:
        net(**inputs)
    output = net.encoder(**inputs, output_hidden_states=True)
    assert_close(record.states, [*output.hidden_states[:3], output.last_hidden_state])


def test_a_student_starts_from_evenly_spread_layers() -> None:
    teacher, student = make_bert(4), make_bert(2, seed=1)
    initialise_from(student, teacher)
    assert_close(student.stages[0][0].state_dict(), teacher.stages[0][0].state_dict())
    assert_close(student.stages[1][0].state_dict(), teacher.stages[2][0].state_dict())
    assert_close(student.stages[2][0].state_dict(), teacher.stages[4][0].state_dict())
    assert_close(student.head.state_dict(), teacher.head.state_dict())


def test_an_equal_student_starts_as_the_teacher() -> None:
    torch.manual_seed(0)
    teacher, student = (ResNet9(num_classes=4, in_channels=1, widths=(4, 8)) for _ in range(2))
    initialise_from(student, teacher)
    assert_close(student.state_dict(), teacher.state_dict())


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"distillation.initialise: the head does not fit .*\[3, 16\].*\[3, 24\]"):
        initialise_from(make_bert(2, hidden_size=24), make_bert(2))
    with pytest.raises(ValueError, match=r"distillation.initialise: stage 1 does not fit .*\[32, 16\]"):
        initialise_from(make_bert(2, intermediate_size=64), make_bert(2))
    bare = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="needs a net with `stages`; Linear has none"):
        initialise_from(bare, bare)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"distillation.temperature \(0.0\) must be above 0"),
        ({"weight": 1.5}, r"distillation.weight \(1.5\) must be within \[0, 1\]"),
        ({"hidden_weight": -1.0}, r"distillation.hidden_weight \(-1.0\) must not be negative"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Distillation("teacher.ckpt", **options)


def test_a_wrong_teacher_is_named(tmp_path: Path) -> None:
    net = make_bert(1)
    for path in (tmp_path / "gone.ckpt", tmp_path / "broken.ckpt"):
        (tmp_path / "broken.ckpt").write_bytes(b"no checkpoint")
        with pytest.raises(
            ValueError, match=r"distillation.teacher: .*can't be loaded as a checkpoint of ours"
        ) as caught:
            Distiller(Distillation(str(path)), net, ["a", "b", "c"])
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_teacher_with_another_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read other words than the student, in silence."""
    teacher = SimpleNamespace(net=make_bert(2, vocab_size=60))
    monkeypatch.setattr("models.distillation.load_teacher", lambda *_: teacher)
    with pytest.raises(ValueError, match=r"distillation.teacher: a.ckpt knows 60 tokens, and the student 50"):
        Distiller(Distillation("a.ckpt"), make_bert(1), ["a", "b", "c"])


class Fixed(Distiller):
    """A distiller with a net for a teacher, in the place of a checkpoint."""

    def __init__(self, options: Distillation, student: nn.Module, teacher: nn.Module) -> None:
        self.options, self.student, self.teacher = options, student, teacher.eval().requires_grad_(False)


def text_task(student: TextEncoder, **options: Any) -> TextClassifier:
    task = TextClassifier(student, class_names=["a", "b", "c"])
    task.distiller = Fixed(Distillation("", **options), student, make_bert(4, seed=5))
    return task


def text_batch() -> dict[str, Tensor]:
    mask = (torch.arange(6) < torch.tensor([[6], [3]])).long()
    return {"input_ids": torch.arange(5, 17).view(2, 6) * mask, "attention_mask": mask, "labels": torch.tensor([0, 2])}


def test_the_loss_is_the_sum_of_its_parts() -> None:
    batch = text_batch()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    student = make_bert(2).eval()
    task = text_task(student, temperature=3.0, weight=0.3, hidden_weight=0.7)
    teacher = task.distiller.teacher
    logits, wanted = student(**inputs), teacher(**inputs)
    ours = student.encoder(**inputs, output_hidden_states=True).hidden_states
    theirs = teacher.encoder(**inputs, output_hidden_states=True).hidden_states
    distances = [hidden_loss(ours[i], theirs[2 * i], inputs["attention_mask"]) for i in range(3)]
    expected = (
        0.7 * nn.functional.cross_entropy(logits, batch["labels"])
        + 0.3 * soft_loss(logits, wanted, 3.0)
        + 0.7 * torch.stack(distances).mean()
    )
    assert_close(task.training_step(batch, 0), expected)


def test_without_weight_the_teacher_does_not_count() -> None:
    batch = text_batch()
    plain = TextClassifier(make_bert(2).eval(), class_names=["a", "b", "c"])
    assert_close(text_task(make_bert(2).eval(), weight=0.0).training_step(batch, 0), plain.training_step(batch, 0))


def test_with_all_the_weight_the_labels_do_not_count() -> None:
    batch, task = text_batch(), text_task(make_bert(2).eval(), weight=1.0)
    other = batch | {"labels": torch.tensor([1, 1])}
    assert_close(task.training_step(batch, 0), task.training_step(other, 0))


def test_the_teacher_is_no_part_of_the_student() -> None:
    task = text_task(make_bert(2), hidden_weight=1.0)
    teacher = task.distiller.teacher
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    task.train()
    assert not any(module.training for module in teacher.modules())
    task.training_step(text_batch(), 0).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert {id(p) for p in task.parameters()} == {id(p) for p in task.net.parameters()}
    assert set(task.state_dict()) == {f"net.{name}" for name in task.net.state_dict()}
    assert_close(teacher.state_dict(), before)
    assert not any(module._forward_hooks for module in [*task.net.modules(), *teacher.modules()])


def test_mixed_images_go_to_both() -> None:
    torch.manual_seed(0)
    student, teacher = (ResNet9(num_classes=3, in_channels=1, widths=(4, 8)) for _ in range(2))
    task = VisionClassifier(student, class_names=list("abc"), image_size=8, mean=[0.5], std=[0.2], mixup=0.5)
    task.distiller = Fixed(Distillation("", weight=1.0), student, teacher)
    seen = []
    teacher.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    student.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    task.training_step((torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])), 0).backward()
    assert_close(seen[0], seen[1])


# --- From the command line


@pytest.fixture
def teacher(in_tmp: Path) -> Path:
    assert run(["fit", *TINY, "--test_after_fit=false"]) == 0
    return in_tmp / "logs/vision/version_0/checkpoints/last.ckpt"


def test_a_student_on_the_command_line(teacher: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*TINY, f"--model.distillation.teacher={teacher}", "--model.distillation.temperature=3"]
    argv += ["--model.distillation.hidden_weight=0.1", "--model.distillation.initialise=true"]
    cli = build(["fit", *argv])
    assert cli.model.distillation == Distillation(str(teacher), 3.0, 0.5, 0.1, True)
    loaded = torch.load(teacher, weights_only=True)["state_dict"]
    assert_close(cli.model.state_dict(), loaded)
    assert run(["fit", *argv]) == 0
    student = in_tmp / "logs/vision/version_1/checkpoints/last.ckpt"
    assert not any("teacher" in name for name in torch.load(student, weights_only=True)["state_dict"])
    # a run that is resumed needs its teacher again, one that only tests does not
    assert run(["fit", *argv, f"--ckpt_path={student}", "--trainer.max_epochs=2"]) == 0
    teacher.unlink()
    assert run(["test", f"--ckpt_path={student}"]) == 0
    capsys.readouterr()
    assert run(["fit", *argv, f"--ckpt_path={student}", "--trainer.max_epochs=3"]) == 2
    assert "distillation.teacher: " in capsys.readouterr().err


def test_a_student_in_a_file_of_settings(teacher: Path, in_tmp: Path) -> None:
    (in_tmp / "student.yaml").write_text(f"model:\n  distillation: {{teacher: {teacher}, weight: 0.25}}\n")
    cli = build(["fit", *TINY, "--config=student.yaml"])
    assert cli.model.distillation == Distillation(str(teacher), weight=0.25)
    cli = build(["fit", *TINY, "--config=student.yaml", "--model.distillation=null"])
    assert cli.model.distillation is None


def test_a_teacher_is_only_read(teacher: Path, in_tmp: Path) -> None:
    """A fit leaves it in eval mode and as it was, its running statistics too."""
    cli = build(["fit", *TINY, f"--model.distillation.teacher={teacher}", "--test_after_fit=false"])
    cli.trainer.fit(cli.model, cli.datamodule)
    net = cli.model.distiller.teacher
    assert not any(module.training for module in net.modules())
    loaded = torch.load(teacher, weights_only=True)["state_dict"]
    assert_close({f"net.{name}": value for name, value in net.state_dict().items()}, loaded, rtol=0, atol=0)
    assert any(not torch.equal(value, loaded[name]) for name, value in cli.model.state_dict().items())


@pytest.fixture
def text_argv(in_tmp: Path, tiny_tokenizer: str) -> list[str]:
    """A file of reviews for a tiny encoder with low-rank updates."""
    rows = [f"the film was {('bad', 'good')[i % 2]} {i},{('no', 'yes')[i % 2]}" for i in range(60)]
    (in_tmp / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    sizes = "{model_type: bert, hidden_size: 16, num_hidden_layers: 3, num_attention_heads: 2, intermediate_size: 32}"
    argv = ["--config=configs/text_file.yaml", "--config=configs/overlay/debug.yaml", "--data.path=reviews.csv"]
    argv += [f"--data.tokenizer={tiny_tokenizer}", "--test_after_fit=false"]
    return [*argv, "--model.net.model_name=null", f"--model.net.config={sizes}"]


def test_a_student_of_texts(text_argv: list[str], in_tmp: Path) -> None:
    """The teacher has low-rank updates, the student is a plain encoder with one layer less."""
    assert run(["fit", *text_argv, "--model.net.lora.rank=2"]) == 0
    (path,) = in_tmp.glob("logs/*/version_0/checkpoints/last.ckpt")
    argv = [*text_argv, f"--model.distillation.teacher={path}", "--model.distillation.hidden_weight=1"]
    argv += ["--model.distillation.initialise=true", "--model.net.num_layers=2"]
    cli = build(["fit", *argv])
    student, teacher = cli.model.net, cli.model.distiller.teacher
    assert not [name for name in teacher.state_dict() if "lora" in name]
    assert_close(student.stages[2][0].state_dict(), teacher.stages[3][0].state_dict(), rtol=0, atol=0)
    assert teacher.vocab_size == student.vocab_size == cli.datamodule.vocab_size
    assert run(["fit", *argv]) == 0


def test_a_teacher_of_other_classes_is_refused(teacher: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torchvision.io import write_jpeg

    for name in ("cat", "dog"):
        (in_tmp / "photos" / name).mkdir(parents=True)
        write_jpeg(torch.zeros(3, 32, 32, dtype=torch.uint8), str(in_tmp / "photos" / name / "0.jpg"))
        for index in range(1, 20):
            shutil.copy(in_tmp / "photos" / name / "0.jpg", in_tmp / "photos" / name / f"{index}.jpg")
    argv = ["--config=configs/vision_image_folder_scratch.yaml", "--config=configs/overlay/debug.yaml"]
    argv += [f"--data.root={in_tmp / 'photos'}", f"--model.distillation.teacher={teacher}"]
    assert run(["fit", *argv]) == 2
    assert "knows the classes ['0', '1'" in capsys.readouterr().err


def test_a_misspelled_setting_is_named(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["fit", *TINY, "--model.distillation.teacher=x.ckpt", "--model.distillation.temprature=3"])
    assert "temprature" in capsys.readouterr().err.splitlines()[-1]
