"""Make images: `python scripts/sample.py --ckpt best.ckpt --num 64 --out samples/`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Write one PNG an image and a grid of all."""
    parser = argparse.ArgumentParser(description="Make images with a trained diffusion model.")
    parser.add_argument("--ckpt", required=True, help="a checkpoint of a diffusion model")
    parser.add_argument("--num", type=int, default=64, help="images to make (64)")
    parser.add_argument("--out", type=Path, default=Path("samples"), help="folder to write to (samples)")
    parser.add_argument("--class", dest="label", help="name or number of a class; by itself all take turns")
    parser.add_argument("--guidance", type=float, default=1.0, help="above 1 the class shows more clearly (1)")
    parser.add_argument(
        "--sampler", choices=["ddpm", "ddim", "dpm++", "heun"], help="dpm++, or heun for a net that predicts flow"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of the sampler (20)")
    parser.add_argument("--eta", type=float, default=0.0, help="share of DDPM's noise in ddim (0)")
    parser.add_argument(
        "--clipping", choices=["none", "static", "dynamic"], default="static", help="of predicted images (static)"
    )
    parser.add_argument("--seed", type=int, default=0, help="image number i follows from this and i (0)")
    parser.add_argument("--batch_size", type=int, default=64, help="images made at once; changes none of them (64)")
    parser.add_argument(
        "--evaluate", metavar="CLASSIFIER", help="checkpoint of a vision classifier whose features FID and KID are of"
    )
    args = parser.parse_args()

    import json

    import torch
    from torchvision.utils import save_image
    from tqdm import tqdm

    from callbacks.image_samples import make_picture
    from lightning_app.checkpoints import load_task

    try:
        if args.num < 1 or args.batch_size < 1:
            raise ValueError(f"--num ({args.num}) and --batch_size ({args.batch_size}) must be at least 1")
        task = load_task(args.ckpt)
        if not hasattr(task, "stream_images"):
            raise ValueError(f"{args.ckpt} is of a {type(task).__name__}, which makes no images")
        judge = load_judge(args.evaluate, task) if args.evaluate else None
        labels = labels_for(args.label, args.num, task.class_names if task.num_classes else [])
        options = {"sampler": args.sampler, "steps": args.steps, "guidance": args.guidance, "eta": args.eta}
        options |= {"clipping": args.clipping, "seed": args.seed}
        args.out.mkdir(parents=True, exist_ok=True)
        start, made = time.perf_counter(), []
        with tqdm(total=-(-args.num // args.batch_size) * args.steps, unit="step", file=sys.stderr) as bar:
            for first in range(0, args.num, args.batch_size):
                count = min(args.batch_size, args.num - first)
                part = labels[first : first + count] if labels else None
                images = torch.empty(0)
                for images in task.stream_images(part, num=count, first=first, **options):  # noqa: B007 (the last)
                    bar.update()
                made.append(images)
        seconds = time.perf_counter() - start
        samples = torch.cat(made)
        for index, image in enumerate(samples):
            name = f"{index:05d}_{task.class_names[labels[index]]}" if labels else f"{index:05d}"
            save_image(image, args.out / f"{name.replace('/', '-')}.png")
        columns = min(args.num, 10 * max(1, round(args.num**0.5 / 10)))  # tens, so that ten classes stand in columns
        save_image(make_picture(samples, columns), args.out / "grid.png")
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


def load_judge(path: str, task: Any) -> Any:
    """The classifier that judges, before any image is made.

    Raises:
        ValueError: It is none, or of other images or classes.
    """
    from lightning_app.image_quality import ClassifierFeatures

    judge = ClassifierFeatures(path)
    channels = len(judge.task.mean)
    if channels != task.image_shape[0]:
        raise ValueError(f"--evaluate {path} sees images of {channels} channels, these have {task.image_shape[0]}")
    if task.num_classes and judge.task.class_names != task.class_names:
        raise ValueError(f"--evaluate {path} knows other classes: {', '.join(judge.task.class_names)}")
    return judge


def evaluate(judge: Any, checkpoint: str, samples: Any, labels: list[int] | None) -> dict[str, Any]:
    """Scores against the training images, and by whom."""
    import torch

    from lightning_app.image_quality import compare, look_at_all, training_images

    real, _ = look_at_all(judge, training_images(checkpoint))
    made, seen = look_at_all(judge, samples.split(256))
    scores: dict[str, Any] = compare(real, made)
    if labels is not None:  # recognised as the class that was asked for
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
