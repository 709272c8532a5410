"""FID and time of samplers, and of averaged against raw weights, for checkpoints of diffusion models.

All make images from the same noises and of the same classes, and one network judges all, as in
`scripts/sample.py --evaluate`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--ckpts", nargs="+", required=True, help="checkpoints of runs on the same data")
    parser.add_argument("--judge", required=True, help="the checkpoint of a vision classifier, or inception")
    parser.add_argument(
        "--samplers", nargs="+", default=["dpm++:20", "ddpm:1000"], help="sampler:steps, or sampler:steps:eta"
    )
    parser.add_argument("--raw", action="store_true", help="raw weights too, with the first sampler")
    parser.add_argument("--num", type=int, default=1000, help="images of each")
    parser.add_argument("--batch_size", type=int, default=100, help="images at once")
    parser.add_argument("--guidance", type=float, default=1.0, help="classifier-free guidance")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each checkpoint, weights and sampler."""
    from lightning_app.checkpoints import load_task
    from lightning_app.image_features import load_features, look_at_all
    from lightning_app.image_quality import compare, reference_features

    judge, rows = load_features(args.judge), []
    for path in args.ckpts:
        task: Any = load_task(path)
        real = reference_features(judge, path)
        settings = [(False, sampler) for sampler in args.samplers]
        settings += [(True, args.samplers[0])] if args.raw else []
        for raw, setting in settings:
            if raw:
                load_raw_weights(task, path)
            sampler, steps, *eta = setting.split(":")
            labels = [index % task.num_classes for index in range(args.num)] if task.num_classes else None
            start = time.perf_counter()
            made = make(task, labels, args, sampler=sampler, steps=int(steps), eta=float(*eta), guidance=args.guidance)
            seconds = time.perf_counter() - start
            seen, classes = look_at_all(judge, made.split(256))
            scores = compare(real, seen)
            right = labels is not None and (classes == torch.tensor(labels)).float().mean()
            rows.append(
                {
                    "run": Path(path).resolve().parents[1].name,
                    "prediction, noising": f"{task.process.prediction}, {task.hparams.get('noising', '')}",
                    "weights": "raw" if raw else "averaged",
                    "sampler": setting,
                    "FID": scores["fid"],
                    "KID": scores["kid"],
                    "recognised": float(right) if labels is not None else "",
                    "seconds": seconds,
                }
            )
    return rows


def make(task: Any, labels: list[int] | None, args: argparse.Namespace, **options: Any) -> Tensor:
    """Images (N, C, H, W) in [0, 1]."""
    parts = []
    for first in tqdm(range(0, args.num, args.batch_size), desc=options["sampler"], unit="batch"):
        count = min(args.batch_size, args.num - first)
        part = labels[first : first + count] if labels else None
        parts.append(task.generate_images(part, num=count, first=first, **options))
    return torch.cat(parts)


def load_raw_weights(task: Any, path: str) -> None:
    """The weights that the optimizer was at, which a checkpoint of an averaging run keeps beside the averaged ones."""
    raw = torch.load(path, map_location="cpu", weights_only=True).get("current_model_state")
    if raw is None:
        raise SystemExit(f"{path} is not of a run that averages weights: leave out --raw")
    task.load_state_dict(raw)
