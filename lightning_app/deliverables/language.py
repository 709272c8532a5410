"""Language models."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from callbacks.export.deliverable import Deliverable, Inputs, Positional, TensorSpec
from lightning_app.deliverables.base import describe
from models import LanguageModel
from models.nets.decode_step import DecodeStep

# B batch, T tokens, V vocabulary


@describe.register
def describe_language(task: LanguageModel, data: Any) -> list[Deliverable]:
    """Tokens to logits of those that follow; and, of a net with a cache, one step with the cache in and out."""
    net: Any = task.net
    whole = Deliverable(
        task="language",
        net=Positional(net),
        inputs=[TensorSpec("input_ids", "int64", ("batch", "length"), "tokens")],
        outputs=[TensorSpec("logits", "float32", ("batch", "length", net.vocab_size), "of the token after each")],
        facts={"vocab_size": net.vocab_size, "max_length": net.max_length},
        to_inputs=lambda batch: {"input_ids": batch["input_ids"]},
        metric="perplexity",
        score=lambda outputs, batches: perplexity(outputs, [batch["labels"] for batch in batches]),
        higher_is_better=False,
        limits={"length": net.max_length},
        scored=128,
    )
    return [whole, describe_decode_step(net, whole)] if hasattr(net, "make_cache") and net.causal else [whole]


def describe_decode_step(net: Any, whole: Deliverable) -> Deliverable:
    """A token with the cache of those before it, to logits and the cache with it."""
    step = DecodeStep(net)
    sizes = len(net.blocks), net.num_kv_heads, net.head_dim
    state = [
        TensorSpec(name, "float32", ("batch", sizes[0], sizes[1], "past", sizes[2]), f"{name} of the tokens before it")
        for name in ("keys", "values")
    ]
    if step.looks_back:
        state.append(TensorSpec("last_embedding", "float32", ("batch", 1, net.embed_dim), "of the token before it"))
    after = [
        TensorSpec(f"{spec.name}_after", "float32", tuple("total" if s == "past" else s for s in spec.shape), "with it")
        for spec in state
    ]

    def to_inputs(batch: Any) -> Inputs:
        """The last token of each row, after the others were read."""
        tokens, cache = batch["input_ids"], step.start(len(batch["input_ids"]))
        with torch.no_grad():
            for place in range(tokens.shape[1] - 1):
                _, *cache = step(tokens[:, place : place + 1], *cache)
        return {"input_ids": tokens[:, -1:]} | {spec.name: part for spec, part in zip(state, cache, strict=True)}

    return replace(
        whole,
        net=Positional(step),
        inputs=[TensorSpec("input_ids", "int64", ("batch", 1), "the newest token"), *state],
        outputs=[TensorSpec("logits", "float32", ("batch", net.vocab_size), "of the token after it"), *after],
        to_inputs=to_inputs,
        score=lambda outputs, batches: perplexity(
            [logits[:, None] for logits in outputs], [batch["labels"][:, -1:] for batch in batches]
        ),
        limits={"past": net.max_length - 1},
        name="decode",
    )


def perplexity(outputs: list[Tensor], labels: list[Tensor]) -> float:
    """Exponential of the mean loss of logits (B, T, V) against labels (B, T), those of -100 left out."""
    losses = [
        F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="none")
        for logits, wanted in zip(outputs, labels, strict=True)
    ]
    counted = sum(int((wanted >= 0).sum()) for wanted in labels)
    return float(torch.exp(torch.cat(losses).double().sum() / counted))
