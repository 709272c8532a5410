"""Any encoder of the transformers package with a pooling and a linear head (BERT: Devlin et al., arXiv 1810.04805).

Logits of classes only; no loss, no tokenizer.
"""

import difflib
import inspect
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lightning_app.assets import resolve_model
from models.nets.lora import LoRA, add_lora
from models.nets.pretrained import load_matching, pretrained_weights_wanted, read_state_dict

# B batch, T tokens, D width of the encoder, K classes

Pooling = Literal["mean", "cls"]


class TextEncoder(nn.Module):
    """Tokens (B, T) to logits (B, K).

    Args:
        num_classes: Number of classes K.
        model_name: Name on the Hugging Face hub, a local directory, or an asset (all-MiniLM-L6-v2). None: an encoder
            with random weights after `config`, which then names its `model_type`.
        config: Settings that differ from those of `model_name`, e.g. `{attention_probs_dropout_prob: 0.0}`.
        pretrained: Load the weights of `model_name` (true), leave them random (false), or load them from a checkpoint
            of ours with this encoder, whose classes may be others.
        pooling: What the head sees: the mean over the tokens, or the first token, which BERT calls CLS.
        dropout: Dropout ahead of the head.
        num_layers: Keep this many of the encoder's layers, evenly spread, the last one among them. None: all.
        freeze_layers: Train neither the embeddings nor this many layers, counted from the input; 0 trains all.
        lora: Train low-rank updates in place of the encoder's weights.
        vocab_size: Tokens that the tokenizer knows. None: not checked.
        max_length: Tokens of the longest sample. None: not checked.

    Raises:
        ValueError: There is no such encoder, it does not fit the tokenizer, or an option is out of range.
    """

    BLOCKS: tuple[type[nn.Module], ...] = ()  # each kind of encoder has its own, known once it is built

    def __init__(
        self,
        *,
        num_classes: int,
        model_name: str | None = "all-MiniLM-L6-v2",
        config: dict[str, Any] | None = None,
        pretrained: bool | str = True,
        pooling: Pooling = "mean",
        dropout: float = 0.1,
        num_layers: int | None = None,
        freeze_layers: int = 0,
        lora: LoRA | None = None,
        vocab_size: int | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise ValueError(f"pooling {pooling!r} must be one of {list(get_args(Pooling))}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout ({dropout}) must be within [0, 1)")
        settings = make_config(model_name, dict(config or {}), vocab_size)
        self.pooling = pooling
        self.encoder = make_encoder(model_name if pretrained is True else None, settings)
        accepted = inspect.signature(self.encoder.forward).parameters
        if "input_ids" not in accepted or not hasattr(settings, "hidden_size"):
            raise ValueError(f"{model_name or settings.model_type!r} is no encoder of text")
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # never used here, and DDP refuses parameters without gradients
        if pooling == "cls" and not first_token_sees_the_others(self.encoder):
            raise ValueError(f"pooling 'cls' sees nothing of the text in {settings.model_type}, a decoder: use mean")
        layers = find_layers(self.encoder)
        if num_layers is not None:
            if not 1 <= num_layers <= len(layers):
                raise ValueError(f"num_layers ({num_layers}) must be from 1 to {len(layers)}, those of the encoder")
            layers = keep_layers(self.encoder, layers, num_layers)
        if not 0 <= freeze_layers <= len(layers):
            raise ValueError(f"freeze_layers ({freeze_layers}) must be from 0 to {len(layers)}, those of the encoder")
        self.layers_path = next(name for name, module in self.encoder.named_modules() if module is layers)
        self.BLOCKS = (type(layers[0]),)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(settings.hidden_size, num_classes))
        self.vocab_size = vocab_size  # a teacher and its student have to agree on it
        # some encoders have no such argument, others know one type alone
        self.takes_token_types = "token_type_ids" in accepted and getattr(settings, "type_vocab_size", 0) > 1
        self.check_fit(vocab_size, max_length)
        if isinstance(pretrained, str) and pretrained_weights_wanted():
            load_matching(self, read_state_dict(pretrained))
        if lora is not None:
            add_lora(self.encoder, lora)
        self.frozen = (
            [module for stage in self.stages[: freeze_layers + 1] for module in stage] if freeze_layers else []
        )
        for module in self.frozen:
            module.requires_grad_(False)
        self.train()  # what from_pretrained loads comes in eval mode

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits (B, K) of tokens (B, T); `attention_mask` (B, T) is 1 for tokens and 0 for padding."""
        extra = {"token_type_ids": token_type_ids} if self.takes_token_types and token_type_ids is not None else {}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **extra).last_hidden_state
        if self.pooling == "cls":
            return self.head(states[:, 0])
        if attention_mask is None:
            return self.head(states.mean(1))
        weights = attention_mask.unsqueeze(-1).to(states.dtype)  # (B, T, 1)
        # a row of padding alone would divide by zero
        return self.head((states * weights).sum(1) / weights.sum(1).clamp(min=1))  # (B, D) -> (B, K)

    @property
    def stages(self) -> list[list[nn.Module]]:
        """Embeddings, then each layer; what follows the layers goes with the last."""
        layers: Any = self.encoder.get_submodule(self.layers_path)
        # the layers may stand in a module of their own (BERT's `encoder`), beside the embeddings or beside a last norm
        inside = self.layers_path.split(".")[0]
        parts = [(name, child) for name, child in self.encoder.named_children() if child is not None]
        position = [name for name, _ in parts].index(inside)
        siblings: list[nn.Module] = []
        if inside != self.layers_path:
            parent = self.encoder.get_submodule(self.layers_path.rpartition(".")[0])
            siblings = [child for child in parent.children() if child is not layers]
        before = [child for _, child in parts[:position]]
        after = [child for _, child in parts[position + 1 :]] + siblings
        blocks = [[layer] for layer in layers]
        return [before, *blocks[:-1], [*blocks[-1], *after]]

    def train(self, mode: bool = True) -> "TextEncoder":
        """Train mode, frozen layers excepted: their dropout stays off."""
        super().train(mode)
        for module in getattr(self, "frozen", []):
            module.eval()
        return self

    def check_fit(self, vocab_size: int | None, max_length: int | None) -> None:
        """Raise ValueError where the tokenizer has more tokens, or samples are longer, than the encoder knows."""
        rows = self.encoder.get_input_embeddings().num_embeddings
        if vocab_size is not None and vocab_size > rows:
            raise ValueError(
                f"the tokenizer has {vocab_size:,} tokens and the encoder {rows:,} embeddings: they belong to "
                "different models"
            )
        positions = count_positions(self.encoder)
        if max_length is not None and positions is not None and max_length > positions:
            raise ValueError(f"max_length ({max_length}) is more than the encoder's {positions} positions: lower it")


def make_config(model_name: str | None, changes: dict[str, Any], vocab_size: int | None) -> Any:
    """The encoder's configuration, with changes.

    Raises:
        ValueError: There is none, it has no such setting, or it is no encoder's.
    """
    from transformers import AutoConfig

    kind = changes.pop("model_type", None)
    if model_name is not None and kind is not None:
        raise ValueError(f"config.model_type ({kind!r}) is for a model_name of null; {model_name!r} has its own")
    if model_name is None and kind is None:
        raise ValueError("model_name is null, so config must name a model_type, e.g. {model_type: bert}")
    try:
        settings = AutoConfig.for_model(kind) if kind else AutoConfig.from_pretrained(resolve_model(str(model_name)))
    except (OSError, ValueError, KeyError) as error:
        if kind:
            raise ValueError(f"config.model_type {kind!r} is not known to transformers") from error
        raise ValueError(_no_model(str(model_name), error)) from error
    if settings.is_encoder_decoder:
        raise ValueError(f"{model_name or kind!r} is an encoder-decoder; an encoder is needed")
    for name in changes:
        if not hasattr(settings, name):  # transformers would keep it and read it nowhere
            near = difflib.get_close_matches(name, settings.to_dict(), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"config: {settings.model_type} has no setting {name!r}{hint}")
    try:
        if kind:  # some settings follow from others when a configuration is made
            settings = AutoConfig.for_model(
                kind, **({} if vocab_size is None else {"vocab_size": vocab_size}) | changes
            )
        else:
            for name, value in changes.items():
                setattr(settings, name, value)
    except Exception as error:  # each kind of model checks its settings in a way of its own
        raise ValueError(f"no encoder can be made from config: {_one_line(error)}") from error
    settings.use_cache = False  # of a decoder, for generation: it expects every layer, also those left out
    return settings


def make_encoder(weights_of: str | None, settings: Any) -> Any:
    """The encoder, with the weights of a model where they are given and wanted, else random ones.

    Raises:
        ValueError: The weights can't be had, don't fit, or are not all there.
    """
    from transformers import AutoModel
    from transformers.utils import logging

    if weights_of is None or not pretrained_weights_wanted():
        try:
            return AutoModel.from_config(settings)
        except Exception as error:  # an activation that is not known is a KeyError, a bad size something else
            raise ValueError(f"no encoder can be made from config: {_one_line(error)}") from error
    logging.disable_progress_bar()  # of reading the file, which takes no time
    try:
        encoder, found = AutoModel.from_pretrained(
            resolve_model(weights_of),
            config=settings,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # named below, in one line
            output_loading_info=True,
        )
    except Exception as error:  # a damaged file raises what its format's reader chooses
        raise ValueError(_no_model(weights_of, error)) from error
    # transformers leaves these random, with a warning; the pooler is taken away, and often not there
    lacking = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
    if lacking := [name for name in lacking if "pooler" not in name.split(".")]:
        raise ValueError(
            f"{weights_of!r} has no weights that fit {len(lacking)} tensors of the encoder, {lacking[0]} the first: "
            "leave its sizes out of config, or set pretrained to false"
        )
    return encoder


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"  # a KeyError's text alone tells nothing


def _no_model(name: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"no encoder can be loaded from {name!r}, which must be a name on the Hugging Face hub, a directory or "
        f"all-MiniLM-L6-v2 ({reason})"
    )


@torch.no_grad()
def first_token_sees_the_others(encoder: nn.Module) -> bool:
    """Whether the first token's state depends on what follows: not so in a decoder, which reads from left to right."""
    encoder.eval()
    tokens = torch.tensor([[0, 1, 2], [0, 1, 3]])
    states = encoder(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
    return not torch.equal(states[0, 0], states[1, 0])


def find_layers(encoder: nn.Module) -> nn.ModuleList:
    """The encoder's repeated layers: its longest list of modules of one class.

    Raises:
        ValueError: There is none.
    """
    lists = [
        module
        for module in encoder.modules()
        if isinstance(module, nn.ModuleList) and len(module) and len({type(layer) for layer in module}) == 1
    ]
    if not lists:
        raise ValueError(f"{type(encoder).__name__} has no list of layers")
    return max(lists, key=len)


def keep_layers(encoder: Any, layers: nn.ModuleList, count: int) -> nn.ModuleList:
    """Leave `count` layers, evenly spread and the last one among them (Sanh et al., arXiv 1910.01108)."""
    kept = nn.ModuleList(layers[(index + 1) * len(layers) // count - 1] for index in range(count))
    path = next(name for name, module in encoder.named_modules() if module is layers)
    parent, _, child = path.rpartition(".")
    setattr(encoder.get_submodule(parent), child, kept)
    encoder.config.num_hidden_layers = count
    return kept


def count_positions(encoder: Any) -> int | None:
    """How many tokens the encoder has positions for; None where it sets no limit."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa counts from the row after the padding's
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(encoder.config, "max_position_embeddings", None)
