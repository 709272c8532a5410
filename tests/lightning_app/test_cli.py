"""The command line, in this process: a run in a process of its own costs six seconds of imports."""

import sys
from pathlib import Path

import pytest
import torch
import yaml

from lightning_app.cli import build, run
from lightning_app.main import main
from tests.tiny_run import TINY


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])


def fit(*extra: str) -> int:
    return run(["fit", *TINY, *extra])


def error_line(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    """Run a command that must fail, and return its one line."""
    capsys.readouterr()
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if "error:" in line]
    assert lines[-1] == errors[0], lines
    assert "Traceback" not in "".join(lines)
    return lines[-1]


# --- classes and checkpoints


def texts(path: Path, labels: tuple[str, str]) -> Path:
    path.write_text("\n".join(["text,label", *(f"a {labels[i % 2]} film {i},{labels[i % 2]}" for i in range(40))]))
    return path


def test_a_checkpoint_is_not_used_on_other_classes(
    in_tmp: Path, tiny_tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many classes with other names would go unnoticed: every shape fits."""
    config = "{model_type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32}"
    argv = [
        "--config=configs/text_file.yaml",
        "--config=configs/overlay/debug.yaml",
        f"--data.tokenizer={tiny_tokenizer}",
    ]
    argv += ["--model.net.model_name=null", f"--model.net.config={config}"]
    first, other = texts(in_tmp / "a.csv", ("bad", "good")), texts(in_tmp / "b.csv", ("no", "yes"))
    assert run(["fit", *argv, f"--data.path={first}"]) == 0
    checkpoint = f"--ckpt_path={in_tmp / 'logs/text_file/version_0/checkpoints/best.ckpt'}"
    line = error_line(capsys, ["fit", *argv, f"--data.path={other}", checkpoint])
    assert "knows the classes 2, 'bad', 'good', and TextFileDataModule has 2, 'no', 'yes'" in line
    assert "--model.net.pretrained FILE" in line
    line = error_line(capsys, ["test", checkpoint, f"--data.path={other}"])
    assert "b.csv, line 2: the label 'no' is not among the training rows', which are bad, good" in line
    # a test file that lacks a class is read with the checkpoint's classes, and a prediction needs no training file
    (in_tmp / "good.csv").write_text("text,label\na film,good\n")
    assert run(["test", checkpoint, f"--data.test_path={in_tmp / 'good.csv'}"]) == 0
    first.unlink()
    assert run(["predict", checkpoint, f"--data.predict_path={in_tmp / 'good.csv'}"]) == 0
    (predictions,) = in_tmp.glob("logs/text_file/*/predictions.csv")
    assert predictions.read_text().splitlines()[0] == "text,label,probability,label_2,probability_2"


@pytest.mark.usefixtures("minilm")
def test_the_tokenizer_is_the_encoders(tiny_tokenizer: str, tmp_path: Path) -> None:
    path = texts(tmp_path / "a.csv", ("bad", "good"))
    argv = ["fit", "--config=configs/text_file.yaml", f"--data.path={path}"]
    cli = build([*argv, "--model.net.pretrained=false"])
    assert cli.datamodule.vocab_size == cli.model.net.encoder.config.vocab_size == 30_522
    sizes = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32"
    other = ["--model.net.model_name=null", f"--model.net.config={{model_type: bert, {sizes}}}"]
    cli = build([*argv, *other, f"--data.tokenizer={tiny_tokenizer}"])
    assert cli.datamodule.vocab_size == cli.model.net.encoder.config.vocab_size < 200


@pytest.mark.usefixtures("minilm")
def test_texts_longer_than_the_encoder_has_positions_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = texts(tmp_path / "a.csv", ("bad", "good"))
    argv = ["fit", "--config=configs/text_file.yaml", f"--data.path={path}", "--model.net.pretrained=false"]
    line = error_line(capsys, [*argv, "--data.max_length=513"])
    assert "max_length (513) is more than the encoder's 512 positions" in line


@pytest.mark.usefixtures("minilm")
def test_images_and_an_encoder_of_texts_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(capsys, ["fit", "--config=configs/vision.yaml", "--model=configs/model/text_minilm.yaml"])
    assert "DigitsDataModule tells no vocab_size" in line


# --- what a run leaves behind


def test_fit_leaves_a_run_folder_and_reports(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit() == 0
    folder = in_tmp / "logs" / "vision" / "version_0"
    assert (folder / "config.yaml").is_file()
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert list(folder.glob("events.out.tfevents.*"))
    printed = capsys.readouterr().out
    for expected in ("test/accuracy", "best.ckpt", "config.yaml", "tensorboard --logdir logs", "predict --ckpt_path"):
        assert expected in printed


def test_a_second_run_gets_its_own_folder_and_a_fixed_one_is_continued(in_tmp: Path) -> None:
    assert fit() == 0
    assert fit() == 0
    assert sorted(path.name for path in (in_tmp / "logs/vision").iterdir()) == ["version_0", "version_1"]
    logger = "--trainer.logger={class_path: TensorBoardLogger, init_args: {save_dir: logs, name: mine, version: 0}}"
    assert fit(logger) == 0
    assert fit(logger) == 0
    assert [path.name for path in (in_tmp / "logs/mine").iterdir()] == ["version_0"]


def test_the_saved_configuration_reruns_as_it_is(in_tmp: Path) -> None:
    assert fit("--trainer.deterministic=true") == 0
    saved = in_tmp / "logs/vision/version_0/config.yaml"
    assert run(["fit", f"--config={saved}"]) == 0
    again = in_tmp / "logs/vision/version_1/config.yaml"
    old, new = (yaml.safe_load(path.read_text()) for path in (saved, again))
    old_logger, new_logger = (config["trainer"].pop("logger")["init_args"] for config in (old, new))
    assert new == old
    assert new_logger == new_logger | old_logger  # the second time with the logger's defaults spelled out
    first, second = (torch.load(p.parent / "checkpoints/last.ckpt", weights_only=True) for p in (saved, again))
    for name, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][name]), name


def test_another_seed_gives_other_weights(in_tmp: Path) -> None:
    nets = [build(["fit", *TINY, f"--seed_everything={seed}"]).model.net for seed in (1, 1, 2)]
    weights = [net.head[1].weight for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


# --- links between data and net


def test_facts_of_the_data_reach_net_and_task(in_tmp: Path) -> None:
    cli = build(["fit", *TINY])
    assert cli.model.net.head[-1].out_features == cli.datamodule.num_classes == 10
    assert cli.model.class_names == [str(digit) for digit in range(10)]
    assert cli.model.mean == cli.datamodule.mean


def test_an_explicit_value_that_contradicts_the_data_is_an_error(in_tmp: Path, capsys) -> None:
    line = error_line(capsys, ["fit", *TINY, "--model.net.num_classes=7"])
    assert "--model.net.num_classes is 7, but DigitsDataModule has num_classes 10" in line
    line = error_line(capsys, ["fit", *TINY, "--model.mean=[0.1]"])
    assert "--model.mean is [0.1]" in line
    assert build(["fit", *TINY, "--model.net.num_classes=10"]).model is not None


def test_a_link_that_reaches_nothing_is_a_warning(in_tmp: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "fixed_net.py").write_text(
        "from torch import nn\n\n\n"
        "class FixedNet(nn.Module):\n"
        "    def __init__(self, width: int = 4, image_size: int = 99):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n\n"
        "    def forward(self, x):\n"
        "        return self.layers(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    net = "--model={class_path: VisionClassifier, init_args: {net: {class_path: fixed_net.FixedNet, init_args: {}}}}"
    with pytest.warns(UserWarning, match="takes no num_classes; see that it fits DigitsDataModule's 10"):
        build(["fit", "--config=configs/vision.yaml", net])


def test_data_without_a_needed_fact_is_named(in_tmp: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "bare_data.py").write_text(
        "from pytorch_lightning import LightningDataModule\n\n\nclass BareData(LightningDataModule):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    argv = ["fit", "--config=configs/vision.yaml", "--data={class_path: bare_data.BareData}"]
    assert "BareData tells no num_classes: give it the attribute, or set --model.net" in error_line(capsys, argv)


# --- mistakes end in one line


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["fti"], "no subcommand 'fti'; did you mean fit?"),
        (["fit", "--config=configs/visoin.yaml"], "did you mean"),
        (["fit"], "--model is missing; start from a recipe"),
        (["fit", "--config=configs/vision_image_folder.yaml"], "--data.root is missing"),
        (["fit", *TINY, "--trainer.max_epoch=3"], "no option --trainer.max_epoch; did you mean --trainer.max_epochs?"),
        (["fit", *TINY, "--model.net.dropot=0.3"], "ResNet9 has no argument 'dropot'; did you mean dropout?"),
        (["fit", *TINY, "--data.batchsize=3"], "no argument 'batchsize'; did you mean batch_size?"),
        (["fit", *TINY, "--model.net=ResNett9"], "no class 'ResNett9'; did you mean ResNet9?"),
        (["fit", *TINY, "--model=VisionClasifier"], "no class 'VisionClasifier'; did you mean VisionClassifier?"),
        (["fit", *TINY, "--data=DigitDataModule"], "no class 'DigitDataModule'; did you mean DigitsDataModule?"),
        (["fit", *TINY, "--trainer.callbacks+=EarlyStoping"], "did you mean EarlyStopping?"),
        (["fit", *TINY, "--trainer.max_epochs=abc"], "trainer.max_epochs: 'abc' is not a valid int"),
        (["fit", *TINY, "--model.schedule.shape=cosin"], "'cosin' must be one of constant, linear, cosine, one_cycle"),
        (["fit", *TINY, "--model.optimizer=torch.optim.SDG"], "'SDG' can't be imported; did you mean SGD?"),
        (["fit", *TINY, "--data.batch_size=0"], "batch_size (0)"),
        (["fit", *TINY, "--model.label_smoothing=2"], "label_smoothing (2.0) must be within [0, 1)"),
        (["fit", *TINY, "--model.lr_multipliers={bakbone: 0.1}"], "'bakbone', which matches no parameter"),
        (["fit", *TINY, "--ckpt_path=nowhere.ckpt"], "no checkpoint nowhere.ckpt"),
        (["fit", *TINY, "--ckpt_path=last"], "no logs/vision/version_*/checkpoints/last.ckpt"),
        (["test", *TINY, "--ckpt_path=best"], "no logs/vision/version_*/checkpoints/best.ckpt"),
        (["fit", *TINY, "--trainer.accelerator=gpuu"], "gpuu"),
    ],
)
def test_a_mistake_is_named_with_the_nearest_right_spelling(in_tmp: Path, capsys, argv, expected) -> None:
    if argv == ["fti"]:
        assert main(argv) == 2
        assert expected in capsys.readouterr().out
        return
    assert expected in error_line(capsys, argv)
    assert not (in_tmp / "logs").exists() or "lr_multipliers" in str(argv)


def test_a_mistake_in_a_yaml_file_is_named(in_tmp: Path, capsys) -> None:
    Path("mine.yaml").write_text("trainer:\n  max_epoch: 3\n")
    assert "max_epochs" in error_line(capsys, ["fit", *TINY, "--config=mine.yaml"])
    Path("mine.yaml").write_text("trainer: {max_epochs: 3\n")
    assert "YAML" in error_line(capsys, ["fit", *TINY, "--config=mine.yaml"])


def test_scientific_notation_is_a_number(in_tmp: Path) -> None:
    Path("mine.yaml").write_text("model:\n  init_args:\n    optimizer:\n      init_args:\n        lr: 1e-4\n")
    cli = build(["fit", *TINY, "--config=mine.yaml"])
    assert cli.model.configure_optimizers()["optimizer"].param_groups[0]["lr"] == 1e-4


def test_a_fault_of_the_program_keeps_its_traceback(in_tmp: Path, monkeypatch) -> None:
    monkeypatch.setattr("models.vision_classifier.VisionClassifier.training_step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit()


@pytest.mark.parametrize("argument", ["--model.net.pretrained=null", "--model.net.init_args.pretrained=null"])
def test_null_on_the_command_line_is_null_at_any_depth(in_tmp: Path, argument: str) -> None:
    argv = ["fit", "--config=configs/vision.yaml", "--model.net.pretrained=DEFAULT", argument, "--model.optimizer=null"]
    config = build([*argv, "--trainer.fast_dev_run=true"]).config.fit
    assert config.model.init_args.net.init_args.pretrained is None
    assert config.model.init_args.optimizer is None


# --- callbacks and overlays


def test_appending_a_callback_keeps_the_defaults(in_tmp: Path) -> None:
    cli = build(["fit", *TINY, "--trainer.callbacks+=RichModelSummary", "--trainer.callbacks.max_depth=2"])
    names = [type(callback).__name__ for callback in cli.trainer.callbacks]
    assert {"Dashboard", "GracefulInterruption", "RichModelSummary", "ModelCheckpoint"} <= set(names)


def test_recipe_parts_and_single_fields_can_be_swapped(in_tmp: Path) -> None:
    cli = build(["fit", *TINY, "--model.optimizer=models.optim.MuonAdamW", "--model.optimizer.lr=0.01"])
    assert cli.model.optimizer_factory is not None
    Path("part.yaml").write_text("gradient_clip_val: 0.5\n")
    cli = build(["fit", *TINY, "--trainer=part.yaml"])
    assert cli.trainer.gradient_clip_val == 0.5
    assert cli.trainer.max_epochs == 1  # the part merges over the recipe


def test_switching_the_optimizer_carries_no_setting_of_the_default_over(in_tmp: Path) -> None:
    model = "--model={class_path: VisionClassifier, init_args: {net: {class_path: ResNet9}}}"
    argv = ["fit", "--data=DigitsDataModule", model]
    cli = build([*argv, "--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1"])
    assert cli.model.configure_optimizers()["optimizer"].defaults["weight_decay"] == 0


# --- checkpoints and the command line


def test_test_and_predict_need_only_the_checkpoint(in_tmp: Path, capsys) -> None:
    assert fit() == 0
    best = in_tmp / "logs/vision/version_0/checkpoints/best.ckpt"
    capsys.readouterr()
    assert run(["test", f"--ckpt_path={best}"]) == 0
    assert "test/accuracy" in capsys.readouterr().out
    assert run(["predict", f"--ckpt_path={best}", "--trainer.limit_predict_batches=null"]) == 0
    lines = next((in_tmp / "logs").glob("**/predictions.csv")).read_text().splitlines()
    assert lines[0] == "name,label,probability,label_2,probability_2,label_3,probability_3"
    assert len(lines) == 1 + 268


def test_the_command_line_beats_the_checkpoint_and_says_so(in_tmp: Path, capsys) -> None:
    assert fit() == 0
    last = in_tmp / "logs/vision/version_0/checkpoints/last.ckpt"
    capsys.readouterr()
    argv = ["fit", *TINY, f"--ckpt_path={last}", "--model.optimizer.lr=0.007", "--model.label_smoothing=0.3"]
    cli = build([*argv, "--trainer.max_epochs=2"])
    printed = capsys.readouterr().out
    assert "optimizer.lr: 0.03 -> 0.007" in printed
    assert "label_smoothing: 0.1 -> 0.3" in printed
    assert cli.model.label_smoothing == 0.3
    rates: list[float] = []
    cli.model.on_train_batch_start = lambda batch, batch_idx: rates.append(
        cli.trainer.optimizers[0].param_groups[0]["initial_lr"]
    )
    cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=str(last))
    assert rates == [0.007, 0.007]


def test_last_and_best_mean_the_newest_run(in_tmp: Path) -> None:
    assert fit() == 0
    assert fit() == 0
    cli = build(["fit", *TINY, "--ckpt_path=last"])
    assert "version_1" in cli.config.fit.ckpt_path


def test_a_damaged_checkpoint_is_named_and_the_earlier_one_loads(in_tmp: Path, capsys) -> None:
    assert fit() == 0
    folder = in_tmp / "logs/vision/version_0/checkpoints"
    content = (folder / "last.ckpt").read_bytes()
    (folder / "last.ckpt").write_bytes(content[: len(content) // 2])
    line = error_line(capsys, ["fit", *TINY, f"--ckpt_path={folder / 'last.ckpt'}"])
    assert "last.ckpt is damaged" in line
    assert run(["test", f"--ckpt_path={folder / 'best.ckpt'}"]) == 0


def test_resuming_with_another_number_of_classes_is_one_line(in_tmp: Path, capsys) -> None:
    assert fit() == 0
    last = in_tmp / "logs/vision/version_0/checkpoints/last.ckpt"
    content = torch.load(last, weights_only=True)
    content["state_dict"]["net.head.1.weight"] = torch.zeros(7, 16)
    torch.save(content, last)
    line = error_line(capsys, ["fit", *TINY, f"--ckpt_path={last}"])
    assert "net.head.1.weight" in line
