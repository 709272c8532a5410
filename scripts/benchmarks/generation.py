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
    parser.add_argument("--new_tokens", type=int, default=256, help="tokens to make")
    parser.add_argument("--prompt", type=int, default=16, help="tokens to continue")
    parser.add_argument("--depth", type=int, default=4, help="blocks")
    parser.add_argument("--embed_dim", type=int, default=128, help="width")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way."""
    torch.manual_seed(0)
    length = args.prompt + args.new_tokens
    net = EfficientTransformer(
        vocab_size=2048, max_length=length, depth=args.depth, embed_dim=args.embed_dim, previous_token=True
    )
    for parameter in net.parameters():  # blocks start as no change
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    net.eval()
    prompt = torch.randint(2048, (1, args.prompt))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    tokens = {}
    for round_number in range(args.rounds + 1):  # the first warms up
        for use_cache in (True, False):
            start = time.perf_counter()
            options: dict[str, Any] = {"max_new_tokens": args.new_tokens, "sampling": Sampling(0.0)}
            tokens[use_cache] = torch.stack(list(generate(net, prompt, use_cache=use_cache, **options)))
            if round_number:
                seconds[use_cache].append(time.perf_counter() - start)
    if not torch.equal(tokens[True], tokens[False]):
        raise SystemExit("the cache changed the tokens")
    slow = statistics.median(seconds[False])
    return [
        {
            "way": "with the cache" if use_cache else "without",
            "tokens a second": args.new_tokens / statistics.median(times),
            "times as fast": slow / statistics.median(times),
        }
        for use_cache, times in seconds.items()
    ]
