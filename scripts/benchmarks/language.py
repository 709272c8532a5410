"""The small language recipe against a plain GPT of the same shape: step time, loss, and time to the GPT's loss.

Both train on the same blocks, taking turns a hundred steps at a time in one process. The GPT is the one that nanoGPT
made known (LayerNorm, learned positions, GELU), trained as its README trains it on a CPU: AdamW at 1e-3, a cosine to a
tenth, betas 0.9 and 0.99, weight decay 0.1. Validation is over the whole split and outside of the time.
"""

import argparse
import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_app.cli import build
from models.optim import start_scheduler

TURN = 100  # steps of one before it is the other's turn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--paths", nargs="+", required=True, help="the corpus, e.g. tinyshakespeare.txt")
    parser.add_argument("--config", default="configs/language_shakespeare.yaml", help="the recipe")
    parser.add_argument("--steps", type=int, default=2000, help="of each")
    parser.add_argument("--every", type=int, default=50, help="steps between validations of the recipe's net")
    parser.add_argument("--target", type=float, default=1.874, help="the loss to reach")
    parser.add_argument("--override", nargs="*", default=[], help="arguments of train.py, as --override=--X=Y")


class PlainGPT(nn.Module):
    """Tokens (B, T) to logits (B, T, V), as in 2019."""

    def __init__(self, vocab_size: int, max_length: int, depth: int, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, embed_dim), nn.Embedding(max_length, embed_dim)
        self.blocks = nn.ModuleList(PlainBlock(embed_dim, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim, bias=False)
        self.head = nn.Linear(embed_dim, vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth) if name.endswith("out.weight") else 0.02)
        self.tokens.weight = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainBlock(nn.Module):
    """(B, T, E) to the same."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(embed_dim, bias=False) for _ in range(2))
        self.qkv, self.out = (
            nn.Linear(embed_dim, 3 * embed_dim, bias=False),
            nn.Linear(embed_dim, embed_dim, bias=False),
        )
        self.up, self.mlp_out = (
            nn.Linear(embed_dim, 4 * embed_dim, bias=False),
            nn.Linear(4 * embed_dim, embed_dim, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(F.gelu(self.up(self.mlp_norm(x))))


class Runner:
    """A net in training: its steps, the seconds they took, and the losses on the way."""

    def __init__(self, net: nn.Module, optimizer: Any, step_scheduler: Any, loss_of: Any) -> None:
        self.net, self.optimizer, self.step_scheduler, self.loss_of = net, optimizer, step_scheduler, loss_of
        self.seconds, self.steps = 0.0, 0
        self.turns: list[float] = []
        self.losses: list[tuple[int, float, float]] = []  # step, seconds, validation loss

    def train(self, batches: list[Any]) -> None:
        """Train on batches."""
        self.net.train()
        start = time.perf_counter()
        for batch in batches:
            loss = self.loss_of(batch)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.step_scheduler()
        self.turns.append((time.perf_counter() - start) / len(batches))
        self.seconds += time.perf_counter() - start
        self.steps += len(batches)

    @torch.no_grad()
    def validate(self, batches: list[Any]) -> float:
        """Mean loss of the validation split."""
        self.net.eval()
        total, count = 0.0, 0
        for batch in batches:
            logits, labels = self.net(batch["input_ids"]), batch["labels"]
            total += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
            count += int((labels != -100).sum())
        self.losses.append((self.steps, self.seconds, total / count))
        return total / count


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each net."""
    argv = [
        "fit",
        "--config",
        args.config,
        f"--data.paths={list(args.paths)}",
        "--trainer.logger=false",
        *args.override,
    ]
    cli = build(argv)
    task, data = cli.model, cli.datamodule
    data.setup("fit")
    total = args.steps
    configured = task.configure_optimizers()
    scheduler = configured["lr_scheduler"]["scheduler"]
    start_scheduler(scheduler, task.schedule, total)
    ours = Runner(task.net, configured["optimizer"], scheduler.step, lambda batch: task.training_step(batch, 0))

    net = task.net
    torch.manual_seed(42)
    gpt = PlainGPT(net.vocab_size, net.max_length, len(net.blocks), net.embed_dim, net.embed_dim // net.head_dim)
    groups = [
        {"params": [p for p in gpt.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in gpt.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    cosine = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: plain_rate(step, total))

    def plain_loss(batch: Any) -> Tensor:
        return F.cross_entropy(gpt(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    plain = Runner(gpt, adamw, cosine.step, plain_loss)
    val_batches = merge(list(data.val_dataloader()), 20)
    for first in range(0, total, TURN):
        count = min(TURN, total - first)
        batches = take(data, first, count)
        plain.train(batches)
        for start in range(0, count, args.every):
            ours.train(batches[start : start + args.every])
            if not ours.losses or ours.losses[-1][2] > args.target:
                ours.validate(val_batches)
    for runner in (plain, ours):
        runner.validate(val_batches)
    reached = next((entry for entry in ours.losses if entry[2] <= args.target), None)
    return [
        {
            "net": name,
            "parameters (M)": sum(p.numel() for p in runner.net.parameters()) / 1e6,
            "ms a step": 1e3 * runner.seconds / runner.steps,
            "seconds": runner.seconds,
            "validation loss": f"{runner.losses[-1][2]:.4f}",
            f"steps to {args.target}": reached[0] if runner is ours and reached else "",
            "seconds to it": reached[1] if runner is ours and reached else "",
            "step time / GPT's": runner.seconds / plain.seconds,
            "time to it / GPT's whole": reached[1] / plain.seconds if runner is ours and reached else "",
        }
        for name, runner in (("plain GPT", plain), ("recipe", ours))
    ]


def plain_rate(step: int, total: int) -> float:
    """Warm-up of 100 steps, then a cosine down to a tenth."""
    if step < 100:
        return (step + 1) / 101
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 100) / max(1, total - 100)))


def take(data: Any, first: int, count: int) -> list[Any]:
    """Training batches `first` to `first + count` of the run."""
    loader = data.train_dataloader()
    per_epoch = len(loader)
    batches: list[Any] = []
    epoch = first // per_epoch
    while len(batches) < count:
        loader.sampler.set_epoch(epoch)
        skip = first + len(batches) - epoch * per_epoch
        for index, batch in enumerate(loader):
            if index >= skip and len(batches) < count:
                batches.append(batch)
        epoch += 1
    return batches


def merge(batches: list[Any], size: int) -> list[Any]:
    """Fewer, larger batches."""
    groups = [batches[start : start + size] for start in range(0, len(batches), size)]
    return [{name: torch.cat([batch[name] for batch in group]) for name in group[0]} for group in groups]
