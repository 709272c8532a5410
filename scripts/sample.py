"""Make images: `python scripts/sample.py --ckpt best.ckpt --num 64 --out samples/`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Write one PNG an image, a grid of all, and how the first few came out of noise."""
    parser = argparse.ArgumentParser(description="Make images with a trained diffusion model.")
    add_arguments(parser)
    args = parser.parse_args()

    import json

    import torch
    from torchvision.utils import save_image

    from callbacks.image_samples import make_picture

    try:
        if args.num < 1 or args.batch_size < 1:
            raise ValueError(f"--num ({args.num}) and --batch_size ({args.batch_size}) must be at least 1")
        task = load_model(args)
        judge = load_judge(args.evaluate, task) if args.evaluate else None
        labels = labels_for(args.label, args.num, task.class_names if task.num_classes else [])
        noise = noise_between(args, labels, task) if args.interpolate else None
        args.out.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        samples, strip = make_images(task, args, labels, noise)
        seconds = time.perf_counter() - start
        for index, image in enumerate(samples):
            name = f"{index:05d}_{task.class_names[labels[index]]}" if labels else f"{index:05d}"
            save_image(image, args.out / f"{name.replace('/', '-')}.png")
        columns = min(args.num, 10 * max(1, round(args.num**0.5 / 10)))  # tens, so that ten classes stand in columns
        save_image(make_picture(samples, columns), args.out / "grid.png")
        save_image(make_picture(torch.stack(strip, dim=1).flatten(0, 1), len(strip)), args.out / "steps.png")
        scores = evaluate(judge, args.ckpt, samples, labels) if judge else None
    except ValueError as error:
        print(f"sample.py: error: {error}", file=sys.stderr)
        return 2
    print(f"{args.num} images in {seconds:.1f} s, {seconds / args.num:.3f} s each: {args.out}/grid.png")
    if scores:
        for name, value in scores.items():
            print(f"  {name:<14}{value:.4f}" if isinstance(value, float) else f"  {name:<14}{value}")
        scores["seconds"] = round(seconds, 2)
        (args.out / "quality.json").write_text(json.dumps(scores, indent=2) + "\n")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ckpt", help="a checkpoint of a diffusion model")
    source.add_argument("--artifact", help="in its place, a file that scripts/export.py made of one")
    parser.add_argument("--num", type=int, default=64, help="images to make (64)")
    parser.add_argument("--out", type=Path, default=Path("samples"), help="folder to write to (samples)")
    parser.add_argument("--class", dest="label", help="name or number of a class; by itself all take turns")
    parser.add_argument("--guidance", type=float, default=1.0, help="above 1 the class shows more clearly (1)")
    parser.add_argument(
        "--sampler", choices=["ddpm", "ddim", "dpm++", "heun"], help="dpm++, or heun for a net that predicts flow"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of the sampler (20)")
    parser.add_argument("--eta", type=float, default=0.0, help="share of chance in ddim and dpm++, 0 to 1 (0)")
    parser.add_argument(
        "--clipping", choices=["none", "static", "dynamic"], default="static", help="of predicted images (static)"
    )
    parser.add_argument("--seed", type=int, default=0, help="image number i follows from this and i (0)")
    parser.add_argument(
        "--interpolate", action="store_true", help="the images lie between the noise of image 0 and that of image 1"
    )
    parser.add_argument("--batch_size", type=int, default=64, help="images made at once; changes none of them (64)")
    parser.add_argument(
        "--evaluate",
        metavar="NETWORK",
        help="whose features FID and KID are of: the checkpoint of a vision classifier, or inception",
    )


def load_model(args: argparse.Namespace) -> Any:
    """The diffusion model of a checkpoint or an artifact.

    Raises:
        ValueError: It can't be read, or is of another task.
    """
    if args.artifact:
        from lightning_app.artifacts import load_diffusion_artifact

        if args.evaluate:
            raise ValueError("--evaluate compares with the images of a run: give its --ckpt")
        return load_diffusion_artifact(args.artifact)
    from lightning_app.checkpoints import load_task

    task = load_task(args.ckpt)
    if not hasattr(task, "stream_images"):
        raise ValueError(f"{args.ckpt} is of a {type(task).__name__}, which makes no images")
    return task


def make_images(task: Any, args: argparse.Namespace, labels: list[int] | None, noise: Any) -> tuple[Any, list[Any]]:
    """The samples (N, C, H, W), and the first four of them (4, C, H, W) after about ten of the sampler's steps.

    Raises:
        ValueError: The sampler's options do not fit the net.
    """
    import torch
    from tqdm import tqdm

    options = {"sampler": args.sampler, "steps": args.steps, "guidance": args.guidance, "eta": args.eta}
    options |= {"clipping": args.clipping, "seed": args.seed}
    shown = {round(index * (args.steps - 1) / 9) for index in range(10)}
    made, strip = [], []
    with tqdm(total=-(-args.num // args.batch_size) * args.steps, unit="step", file=sys.stderr) as bar:
        for first in range(0, args.num, args.batch_size):
            part = slice(first, min(first + args.batch_size, args.num))
            options["noise"] = None if noise is None else noise[part]
            images = torch.empty(0)
            stream = task.stream_images(labels and labels[part], num=part.stop - first, first=first, **options)
            for step, images in enumerate(stream):
                bar.update()
                if first == 0 and step in shown:
                    strip.append(images[:4])
            made.append(images)
    return torch.cat(made), strip


def noise_between(args: argparse.Namespace, labels: list[int] | None, task: Any) -> Any:
    """Noises (N, C, H, W) on the way from image 0's to image 1's.

    Raises:
        ValueError: The images would differ in more than where they start.
    """
    from models.diffusion_samplers import interpolate

    if labels is not None and args.label is None:
        raise ValueError("--interpolate goes between images of one class: give --class")
    if args.sampler == "ddpm" or args.eta:
        raise ValueError("--interpolate needs a sampler without chance: heun, or dpm++ or ddim with --eta 0")
    return interpolate(*task.starting_noise(2, seed=args.seed), args.num)


def load_judge(path: str, task: Any) -> Any:
    """The network that judges, before any image is made.

    Raises:
        ValueError: It is none, or of other images or classes.
    """
    from lightning_app.image_features import load_features

    judge = load_features(path)
    if judge.channels not in (None, task.image_shape[0]):
        raise ValueError(
            f"--evaluate {path} sees images of {judge.channels} channels, these have {task.image_shape[0]}"
        )
    if task.num_classes and judge.class_names and judge.class_names != task.class_names:
        raise ValueError(f"--evaluate {path} knows other classes: {', '.join(judge.class_names)}")
    return judge


def evaluate(judge: Any, checkpoint: str, samples: Any, labels: list[int] | None) -> dict[str, Any]:
    """Scores against the training images, and by whom."""
    import torch

    from lightning_app.image_features import look_at_all
    from lightning_app.image_quality import compare, reference_features

    real = reference_features(judge, checkpoint)
    made, seen = look_at_all(judge, samples.split(256))
    scores: dict[str, Any] = compare(real, made)
    if labels is not None and judge.class_names:  # recognised as the class that was asked for
        scores["recognised"] = float((seen == torch.tensor(labels)).float().mean())
    return scores | {"features": judge.name, "real": len(real), "samples": len(made)}


def labels_for(chosen: str | None, num: int, class_names: list[str]) -> list[int] | None:
    """A label for each of `num` images; None where the net knows no classes.

    Raises:
        ValueError: There is no such class.
    """
    if not class_names:
        if chosen is not None:
            raise ValueError(f"--class {chosen}: this net was not told classes in training")
        return None
    if chosen is None:
        return [index % len(class_names) for index in range(num)]
    if chosen in class_names:
        return [class_names.index(chosen)] * num
    if chosen.isdecimal() and int(chosen) < len(class_names):
        return [int(chosen)] * num
    raise ValueError(f"--class {chosen}: the classes are {', '.join(class_names)}, or their numbers from 0")


if __name__ == "__main__":
    sys.exit(main())
