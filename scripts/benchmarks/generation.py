"""Generation with the key-value cache against generation that reads everything again for each token.

Both take turns in one process with the same net, of random weights, and greedy choice; the tokens must be the same.
"""

import argparse
import statistics
import time
from typing import Any

import torch

from models.generation import Sampling, generate
from models.nets.efficient_transformer import EfficientTransformer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--shapes", nargs="+", default=["4x128", "6x384"], help="blocks x width")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8], help="prompts at once")
    parser.add_argument("--new_tokens", type=int, default=256, help="tokens to make for each")
    parser.add_argument("--prompt", type=int, default=16, help="tokens to continue")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each shape and batch size."""
    return [compare(shape, batch_size, args) for shape in args.shapes for batch_size in args.batch_sizes]


def compare(shape: str, batch_size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Both ways on one net."""
    torch.manual_seed(0)
    depth, width = map(int, shape.split("x"))
    net = EfficientTransformer(
        vocab_size=2048,
        max_length=args.prompt + args.new_tokens,
        depth=depth,
        embed_dim=width,
        num_heads=width // 32,
        previous_token=True,
    )
    for parameter in net.parameters():  # blocks start as no change
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    net.eval()
    prompts = torch.randint(2048, (batch_size, args.prompt))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    tokens = {}
    for round_number in range(args.rounds + 1):  # the first warms up
        for use_cache in (True, False):
            start = time.perf_counter()
            options: dict[str, Any] = {"max_new_tokens": args.new_tokens, "sampling": Sampling(0.0)}
            tokens[use_cache] = torch.stack(list(generate(net, prompts, use_cache=use_cache, **options)))
            if round_number:
                seconds[use_cache].append(time.perf_counter() - start)
    if not torch.equal(tokens[True], tokens[False]):
        raise SystemExit("the cache changed the tokens")
    fast, slow = statistics.median(seconds[True]), statistics.median(seconds[False])
    made = batch_size * args.new_tokens
    return {
        "blocks x width": shape,
        "prompts": batch_size,
        "tokens/s with the cache": made / fast,
        "without": made / slow,
        "times as fast": slow / fast,
    }
