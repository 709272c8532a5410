"""Text classifiers."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from callbacks.export.deliverable import Deliverable, Positional, TensorSpec
from lightning_app.deliverables.base import accuracy, describe
from models import TextClassifier
from models.nets.lora import merge_lora

# B batch, T tokens, K classes


@describe.register
def describe_text(task: TextClassifier, data: Any) -> list[Deliverable]:
    """Tokens and their masks to logits."""
    names = ["input_ids", "attention_mask"]
    if getattr(task.net, "takes_token_types", False):
        names.append("token_type_ids")
    meanings = {
        "input_ids": "tokens",
        "attention_mask": "1 for a token, 0 for padding",
        "token_type_ids": "0 for the first text, 1 for the second",
    }
    given = Deliverable(
        task="text",
        net=Positional(merge_lora(task.net)),
        inputs=[TensorSpec(name, "int64", ("batch", "length"), meanings[name]) for name in names],
        outputs=[TensorSpec("logits", "float32", ("batch", len(task.class_names)), "before the softmax")],
        facts={"class_names": task.class_names, "max_length": data.max_length}
        | {"pad_id": data.tokenizer.pad_token_id, "pad_token": data.tokenizer.pad_token}
        | {"pairs": data.tables["val"].pairs is not None},
        to_inputs=lambda batch: {name: batch.get(name, torch.zeros_like(batch["input_ids"])) for name in names},
        metric="accuracy",
        score=lambda outputs, batches: accuracy(outputs, [batch["labels"] for batch in batches]),
        limits={"length": data.max_length},
        raw_samples=partial(texts, data),
    )
    return [given]


def texts(data: Any, folder: Path, most: int) -> tuple[list[str], Any]:
    """Texts of the validation split, two by two for pairs, and as a batch."""
    dataset, table = data.datasets["val"], data.tables["val"]
    positions = list(range(min(most, len(dataset))))
    indices = dataset.order[torch.as_tensor(positions)].tolist()  # by length
    samples = [[table.texts[index], *([table.pairs[index]] if table.pairs else [])] for index in indices]
    return [part for sample in samples for part in sample], data.collate_fn(dataset.__getitems__(positions))
