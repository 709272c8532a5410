"""Every recipe and every overlay runs. A new file in configs/ is picked up by itself."""

import re
import struct
import sys
from pathlib import Path

import pytest
import torch

from datamodules.sentiment import FILES as SENTENCES
from lightning_app.cli import build, run
from lightning_app.main import header

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RECIPES = sorted(path.name for path in CONFIGS.glob("*.yaml") if path.name != "defaults.yaml")
OVERLAYS = [
    pytest.param(path.name, marks=[pytest.mark.slow] if path.name.startswith("quantize_") else [])
    for path in sorted((CONFIGS / "overlay").glob("*.yaml"))
]


def photos(folder: Path) -> Path:
    """A folder of small JPEGs in two classes."""
    from torchvision.io import write_jpeg

    generator = torch.Generator().manual_seed(0)
    for name, level in (("cat", 40), ("dog", 200)):
        (folder / name).mkdir(parents=True)
        for index in range(12):
            noise = torch.randint(0, 50, (3, 48, 40), generator=generator, dtype=torch.uint8)
            write_jpeg(noise + level, str(folder / name / f"{index}.jpg"))
    return folder


def idx_files(folder: Path) -> Path:
    """Fashion-MNIST's four files with a few random images."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 600), ("t10k", 20)):
        images = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8) % 10
        header_ = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header_ + images.numpy().tobytes())
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.numpy().tobytes())
    return folder


def reviews(path: Path) -> Path:
    """A small table of labelled texts."""
    lines = [f'"{("a good film", "a bad, bad film")[i % 2]} {i}",{i % 2 * 4 + 1}' for i in range(60)]
    path.write_text("\n".join(["text,label", *lines]))
    return path


def tiny_encoder(tokenizer: str) -> list[str]:
    """Arguments that put an encoder with random weights in the place of a pretrained one."""
    sizes = "hidden_size: 16, num_hidden_layers: 4, num_attention_heads: 2, intermediate_size: 32"
    config = f"{{model_type: bert, {sizes}}}"
    return ["--model.net.model_name=null", f"--model.net.config={config}", f"--data.tokenizer={tokenizer}"]


def ratings(folder: Path) -> Path:
    """Sentences in the files of SentimentDataModule."""
    folder.mkdir()
    for name in SENTENCES.values():
        lines = [f"{i}\t{i % 3 - 1}\t{('bad', 'it is', 'good')[i % 3]} film {i}" for i in range(60)]
        (folder / name).write_text("\n".join(lines))
    return folder


def stand_ins(recipe: str, folder: Path, tokenizer: str) -> list[str]:
    """Arguments that put small local data, and no download, in the place of what a recipe fetches."""
    if recipe == "text_file.yaml":
        return [f"--data.path={reviews(folder / 'reviews.csv')}", *tiny_encoder(tokenizer)]
    if recipe == "text_scratch.yaml":
        return [f"--data.root={ratings(folder / 'ratings')}", f"--data.tokenizer={tokenizer}"]
    if recipe.startswith("language"):
        for index in range(20):
            (folder / f"{index}.txt").write_text(f"text number {index}, " * 200)
        small = ["--trainer.val_check_interval=1", "--data.max_length=32", "--trainer.callbacks.max_new_tokens=4"]
        return [f"--data.paths=['{folder}/*.txt']", *small]
    if recipe == "text.yaml":
        return [f"--data.root={ratings(folder / 'ratings')}", *tiny_encoder(tokenizer)]
    if recipe == "text_distill.yaml":
        argv = ["--config=configs/text.yaml", "--config=configs/overlay/debug.yaml"]
        argv += stand_ins("text.yaml", folder, tokenizer)
        assert run(["fit", *argv, "--model.net.num_layers=4"]) == 0
        return argv[2:]  # the recipe's teacher is where that run has left it
    if recipe == "vision_image_folder.yaml":
        return [f"--data.root={photos(folder / 'photos')}", "--data.image_size=32", "--model.net.pretrained=null"]
    if recipe == "vision_image_folder_scratch.yaml":
        return [f"--data.root={photos(folder / 'photos')}"]
    if recipe.endswith("fashion_mnist.yaml"):
        return [f"--data.root={idx_files(folder / 'fashion')}"]
    return []


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_tests_and_predicts(
    recipe: str, tmp_path: Path, tiny_tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        f"--config=configs/{recipe}",
        "--config=configs/overlay/debug.yaml",
        *stand_ins(recipe, tmp_path, tiny_tokenizer),
    ]
    assert run(["fit", *argv]) == 0
    runs = tmp_path / "logs" / Path(recipe).stem
    assert "test/" in capsys.readouterr().out
    assert run(["validate", *argv, "--ckpt_path=best"]) == 0
    makes = {"language": "scripts/generate.py writes texts", "diffusion": "scripts/sample.py"}
    for kind, advice in makes.items():  # texts and images in the place of a table
        if recipe.startswith(kind):
            assert run(["predict", *argv, "--ckpt_path=best"]) == 2
            assert advice in capsys.readouterr().err
            return
    assert run(["predict", *argv, "--ckpt_path=best"]) == 0
    assert list(runs.glob("version_*/predictions.csv"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_applies_to_the_recipe_that_its_header_names(
    overlay: str, tmp_path: Path, tiny_tokenizer: str
) -> None:
    recipe = re.findall(r"^# python .*--config configs/(\w+\.yaml)", (CONFIGS / "overlay" / overlay).read_text(), re.M)[
        0
    ]
    quick = ["--trainer.max_steps=2", "--test_after_fit=false", *stand_ins(recipe, tmp_path, tiny_tokenizer)]
    if recipe == "vision.yaml":
        quick += ["--model.net=ResNet9", "--model.net.widths=[4,8]"]
    argv = [f"--config=configs/{recipe}", f"--config=configs/overlay/{overlay}", *quick]
    if overlay == "compile.yaml":
        argv.append("--trainer.callbacks.backend=aot_eager")  # the compiler itself is tested with the callback
    if overlay.startswith("quantize_"):
        argv.append("--trainer.callbacks.report_only=true")  # nets that small and untrained gain nothing
    assert run(["fit", *argv]) == 0


def test_the_overfit_overlay_brings_the_loss_to_zero() -> None:
    argv = ["fit", "--config=configs/vision.yaml", "--config=configs/overlay/overfit.yaml"]
    cli = build([*argv, "--model.net=ResNet9", "--model.net.widths=[16,32]"])
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert float(cli.trainer.callback_metrics["train/loss"]) < 0.01
    assert cli.trainer.current_epoch < 199  # stopped because it was reached


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_short_and_its_header_tells_what_it_is(recipe: str) -> None:
    lines = (CONFIGS / recipe).read_text().splitlines()
    assert len(lines) <= 40
    assert len(header(CONFIGS / recipe)) > 20
    assert f"--config configs/{recipe}" in "\n".join(line for line in lines if line.startswith("#"))


def test_every_part_is_used_or_named() -> None:
    """A part of a recipe that no recipe points to rots; a spare one stands in the docs."""
    recipes = "\n".join((CONFIGS / recipe).read_text() for recipe in RECIPES)
    docs = "\n".join(path.read_text() for path in [CONFIGS.parent / "README.md", *CONFIGS.parent.glob("docs/*.md")])
    for part in [*CONFIGS.glob("model/*.yaml"), *CONFIGS.glob("data/*.yaml"), *CONFIGS.glob("overlay/*.yaml")]:
        name = f"{part.parent.name}/{part.name}"
        assert name in recipes or name in docs, name
