"""Predict from an exported artifact, without Lightning: `python predict.py --artifact model.onnx photos/*.jpg`.

Needs the artifact's folder and its runtime alone: numpy; onnxruntime for .onnx, else torch (executorch for .pte, with
torchao for .int8.pt2); pillow for images, tokenizers for texts. A copy of this file lies in every artifact folder.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]


def main() -> int:
    """A line for each file or text; the continuation of a prompt."""
    parser = argparse.ArgumentParser(description="Predict from an exported artifact.")
    parser.add_argument("--artifact", type=Path, required=True, help="a file that scripts/export.py made")
    parser.add_argument("inputs", nargs="+", help="image files, or texts (two by two for pairs), or a prompt")
    parser.add_argument("--batch_size", type=int, default=8, help="inputs at once (8)")
    parser.add_argument("--max_new_tokens", type=int, default=100, help="tokens to make at most, after a prompt (100)")
    args = parser.parse_args()
    try:
        sidecar = read_sidecar(args.artifact)
        run = load(args.artifact)
        if sidecar["task"] == "language":
            for prompt in args.inputs:
                print(continue_text(run, sidecar, args.artifact.parent, prompt, args.max_new_tokens))
            return 0
        size = args.batch_size * (2 if sidecar.get("pairs") else 1)
        for start in range(0, len(args.inputs), size):
            part = args.inputs[start : start + size]
            names = [" | ".join(pair) for pair in in_pairs(part)] if sidecar.get("pairs") else part
            for name, probabilities in zip(names, predict(run, sidecar, args.artifact.parent, part), strict=True):
                best = int(probabilities.argmax())
                print(f"{name}\t{sidecar['class_names'][best]}\t{probabilities[best]:.4f}")
    except (ValueError, OSError, ImportError) as error:
        print(f"predict.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def read_sidecar(artifact: Path) -> dict[str, Any]:
    """What the file of facts beside an artifact, `model.json` for `model.onnx`, says.

    Raises:
        ValueError: There is none, or the task has nothing to predict.
    """
    file = artifact.parent / f"{artifact.name.split('.')[0]}.json"
    if not artifact.exists() or not file.exists():
        raise ValueError(f"{artifact} and {file} must both be there: the folder that scripts/export.py wrote")
    sidecar = json.loads(file.read_text())
    if sidecar["task"] == "diffusion":
        raise ValueError("a diffusion model makes images: python scripts/sample.py --artifact")
    return sidecar


def load(artifact: Path) -> Run:
    """The artifact as a function of arrays by name, in the order of `model.json`."""
    if artifact.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(artifact), providers=["CPUExecutionProvider"])
        return lambda arrays: session.run(None, arrays)
    import torch

    net: Any
    if artifact.suffix == ".pte":
        from executorch.runtime import Runtime

        method = Runtime.get().load_program(artifact).load_method("forward")

        def net(*tensors: Any) -> Any:
            return method.execute(list(tensors))
    elif artifact.name.endswith(".aoti.pt2"):
        net = torch._inductor.aoti_load_package(str(artifact))
    elif artifact.suffix == ".pt2":
        if ".int8" in artifact.name:
            import torchao.quantization.pt2e  # noqa: F401  # the operators of int8 graphs register themselves
        net = torch.export.load(artifact).module()
    else:
        net = torch.jit.load(str(artifact))

    def run(arrays: Arrays) -> list[np.ndarray]:
        with torch.no_grad():
            made = net(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays.values()))
        return [part.numpy() for part in (made if isinstance(made, tuple | list) else (made,))]

    return run


def predict(run: Run, sidecar: dict[str, Any], folder: Path, inputs: list[str]) -> np.ndarray:
    """Probabilities (N, K) of files or texts."""
    prepare = {"vision": images, "text": texts}[sidecar["task"]]
    made = run(prepare(inputs, sidecar, folder))[0]
    return made if sidecar["outputs"][0]["name"] == "probabilities" else softmax(made)


def images(paths: list[str], sidecar: dict[str, Any], folder: Path) -> Arrays:
    """Files as a batch: upright, the shorter side to the net's size, the middle, normalised."""
    name = sidecar["inputs"][0]["name"]
    return {name: np.stack([image(path, sidecar, normalised=name == "images") for path in paths])}


def image(path: str, sidecar: dict[str, Any], *, normalised: bool) -> np.ndarray:
    """One file, (C, H, W) float32, or uint8 where the net normalises.

    Raises:
        ValueError: It can't be read.
    """
    from PIL import Image, ImageOps

    size, mean, std = sidecar["image_size"], *(np.array(sidecar[name], np.float32) for name in ("mean", "std"))
    try:
        with Image.open(path) as file:
            picture: Image.Image = ImageOps.exif_transpose(file)
            if picture.mode.startswith("I"):
                wide = np.asarray(picture).astype(np.float64)
                picture = Image.fromarray((wide / 257).round().clip(0, 255).astype(np.uint8))
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            picture = picture.convert("L" if len(mean) == 1 else "RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"can't read the image {path!r}: {error}") from error
    shorter = min(picture.size)
    if shorter != size:
        width, height = (int(size * side / shorter) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in picture.size)
    pixels = np.asarray(picture.crop((left, top, left + size, top + size))).reshape(size, size, len(mean))
    return (((pixels.astype(np.float32) / 255 - mean) / std) if normalised else pixels).transpose(2, 0, 1)


def texts(inputs: list[str], sidecar: dict[str, Any], folder: Path) -> Arrays:
    """Texts as tokens, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(sidecar["max_length"])
    tokenizer.enable_padding(pad_id=sidecar["pad_id"], pad_token=sidecar["pad_token"])
    encoded = tokenizer.encode_batch(in_pairs(inputs) if sidecar["pairs"] else inputs)
    parts = {
        "input_ids": [part.ids for part in encoded],
        "attention_mask": [part.attention_mask for part in encoded],
        "token_type_ids": [part.type_ids for part in encoded],
    }
    return {spec["name"]: np.array(parts[spec["name"]], np.int64) for spec in sidecar["inputs"]}


def in_pairs(inputs: list[str]) -> list[tuple[str, str]]:
    """First and second texts, which take turns.

    Raises:
        ValueError: One is left over.
    """
    if len(inputs) % 2:
        raise ValueError("this net compares pairs: give first and second text in turns")
    return list(zip(inputs[::2], inputs[1::2], strict=True))


def continue_text(run: Run, sidecar: dict[str, Any], folder: Path, prompt: str, max_new_tokens: int) -> str:
    """The prompt and the likeliest continuation."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode(prompt or "\n", add_special_tokens=False).ids
    logits_after = with_cache(run, sidecar) if len(sidecar["inputs"]) > 1 else without_cache(run, sidecar["max_length"])
    for _ in range(max_new_tokens):
        tokens.append(int(logits_after(tokens).argmax()))
    return tokenizer.decode(tokens)


def without_cache(run: Run, max_length: int) -> Callable[[list[int]], np.ndarray]:
    """Logits (V,) of the token after some, of which the last `max_length` are read each time."""
    return lambda tokens: run({"input_ids": np.array([tokens[-max_length:]], np.int64)})[0][0, -1]


def with_cache(run: Run, sidecar: dict[str, Any]) -> Callable[[list[int]], np.ndarray]:
    """As `without_cache`; each token is read once."""
    sizes = {"batch": 1, "past": 0}
    state = {
        spec["name"]: np.zeros([sizes.get(size, size) for size in spec["shape"]], np.float32)
        for spec in sidecar["inputs"][1:]
    }
    read: list[int] = []

    def logits_after(tokens: list[int]) -> np.ndarray:
        if len(tokens) > sidecar["max_length"]:
            raise ValueError(
                f"prompt and continuation must have at most {sidecar['max_length']} tokens: give a smaller "
                "--max_new_tokens, or the artifact without the cache"
            )
        logits = np.zeros(0)
        for token in tokens[len(read) :]:
            made = run({"input_ids": np.array([[token]], np.int64), **state})
            logits, state_after = made[0][0], made[1:]
            state.update(zip(state, state_after, strict=True))
            read.append(token)
        return logits

    return logits_after


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits (N, K)."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


if __name__ == "__main__":
    sys.exit(main())
