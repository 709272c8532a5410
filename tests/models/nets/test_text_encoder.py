"""Tiny encoders of several families with random weights; pooling against naive loops, BERT against transformers."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from models.nets.pretrained import without_pretrained_weights
from models.nets.text_encoder import TextEncoder, count_positions
from models.optim import build_optimizer, parameter_groups

BERT_LIKE = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": BERT_LIKE,
    "roberta": BERT_LIKE | {"type_vocab_size": 1},
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32},
    "modernbert": BERT_LIKE
    | {name: index for index, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id"))}
    | {"cls_token_id": 1, "sep_token_id": 2},
    "electra": BERT_LIKE | {"embedding_size": 8},
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
}


LAYERS = {"distilbert": "n_layers", "gpt2": "n_layer"}  # what the number of layers is called


def make_net(family: str = "bert", **options: Any) -> TextEncoder:
    torch.manual_seed(0)
    config = {"model_type": family, **FAMILIES[family], **options.pop("config", {})}
    return TextEncoder(**({"num_classes": 3, "model_name": None, "config": config, "vocab_size": 50} | options))


def make_batch(padding: int = 0) -> dict[str, torch.Tensor]:
    """Three texts of 5, 7 and 2 tokens, padded to 7 and `padding` more."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 7, 2])
    mask = (torch.arange(7 + padding) < lengths[:, None]).long()
    tokens = torch.randint(5, 50, (3, 7), generator=generator)
    tokens = torch.nn.functional.pad(tokens, (0, padding)) * mask + (1 - mask) * (1 if padding else 0)
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": torch.zeros_like(tokens)}


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT of four layers as transformers saves it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    folder = str(tmp_path_factory.mktemp("bert"))
    BertModel(BertConfig(vocab_size=50, **(BERT_LIKE | {"num_hidden_layers": 4}))).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_every_family_gets_a_gradient(family: str) -> None:
    """DDP refuses a parameter without one."""
    net = make_net(family)
    logits = net(**make_batch())
    assert logits.shape == (3, 3)
    logits.square().sum().backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_hold_every_parameter_once_from_input_to_output(family: str) -> None:
    net = make_net(family)
    placed = [id(p) for stage in net.stages for module in stage for p in module.parameters()]
    assert sorted(placed) == sorted(id(p) for p in net.encoder.parameters())
    assert len(net.stages) == 4
    assert [type(stage[0]) for stage in net.stages[1:]] == [net.BLOCKS[0]] * 3
    assert id(net.encoder.get_input_embeddings().weight) in {id(p) for m in net.stages[0] for p in m.parameters()}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"gpt2"}))
def test_padding_does_not_count(family: str, pooling: str) -> None:
    net = make_net(family, pooling=pooling).eval()
    assert_close(net(**make_batch(padding=50)), net(**make_batch()), atol=1e-5, rtol=1e-4)


def test_padding_does_not_count_for_a_decoder() -> None:
    net = make_net("gpt2").eval()
    assert_close(net(**make_batch(padding=50)), net(**make_batch()), atol=1e-5, rtol=1e-4)


def test_mean_pooling_is_the_mean_over_tokens() -> None:
    net, batch = make_net().eval(), make_batch()
    states = net.encoder(**batch).last_hidden_state
    rows = [states[i, :n].mean(0) for i, n in enumerate(batch["attention_mask"].sum(1).tolist())]
    assert_close(net(**batch), net.head(torch.stack(rows)))
    assert_close(net(batch["input_ids"]), net.head(net.encoder(batch["input_ids"]).last_hidden_state.mean(1)))


def test_cls_pooling_is_the_first_token() -> None:
    net, batch = make_net(pooling="cls").eval(), make_batch()
    assert_close(net(**batch), net.head(net.encoder(**batch).last_hidden_state[:, 0]))


def test_a_row_of_padding_alone_is_finite() -> None:
    net, batch = make_net().eval(), make_batch()
    batch["attention_mask"][1] = 0
    assert net(**batch).isfinite().all()


def test_token_types_count_where_the_encoder_knows_them() -> None:
    net, batch = make_net().eval(), make_batch()
    other = batch | {"token_type_ids": torch.ones_like(batch["input_ids"])}
    assert not torch.allclose(net(**batch), net(**other))
    for family in ("roberta", "distilbert", "modernbert"):
        net = make_net(family).eval()
        assert_close(net(**batch), net(**other))


def test_pretrained_weights_are_those_of_transformers(bert_folder: str) -> None:
    from transformers import BertModel

    net = TextEncoder(num_classes=3, model_name=bert_folder, vocab_size=50)
    assert net.training
    assert all(module.training for module in net.modules())  # from_pretrained gives eval mode: dropout off
    batch = make_batch()
    expected = BertModel.from_pretrained(bert_folder).eval()(**batch).last_hidden_state
    assert_close(net.eval().encoder(**batch).last_hidden_state, expected)
    with without_pretrained_weights():
        other = TextEncoder(num_classes=3, model_name=bert_folder)
    random = TextEncoder(num_classes=3, model_name=bert_folder, pretrained=False)
    name = "encoder.encoder.layer.0.attention.self.query.weight"
    for fresh in (other, random):
        assert fresh.state_dict().keys() == net.state_dict().keys()
        assert not torch.equal(fresh.state_dict()[name], net.state_dict()[name])


@pytest.mark.parametrize(("count", "kept"), [(1, [3]), (2, [1, 3]), (3, [0, 1, 3]), (4, [0, 1, 2, 3])])
def test_kept_layers_are_evenly_spread(bert_folder: str, count: int, kept: list[int]) -> None:
    whole = TextEncoder(num_classes=3, model_name=bert_folder)
    net = TextEncoder(num_classes=3, model_name=bert_folder, num_layers=count)
    assert len(net.stages) == count + 1
    for ours, index in zip(net.encoder.encoder.layer, kept, strict=True):
        assert_close(ours.state_dict(), whole.encoder.encoder.layer[index].state_dict(), rtol=0, atol=0)
    net(**make_batch()).sum().backward()


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_layers_run_by_themselves(family: str) -> None:
    """A decoder's cache, for one, expects every layer."""
    net = make_net(family, num_layers=2, config={LAYERS.get(family, "num_hidden_layers"): 4}).eval()
    batch = make_batch()
    seen: list[torch.Tensor] = []
    for stage in net.stages[1:]:
        stage[0].register_forward_hook(lambda *call: seen.append(call[2] if torch.is_tensor(call[2]) else call[2][0]))
    assert net(**batch).shape == (3, 3)
    assert len(seen) == 2
    whole = make_net(family, config={LAYERS.get(family, "num_hidden_layers"): 4})
    for ours, theirs in zip(net.stages[1:], (whole.stages[2], whole.stages[4]), strict=True):
        assert_close(ours[0].state_dict(), theirs[0].state_dict(), rtol=0, atol=0)


def test_frozen_layers_stay_as_they_are() -> None:
    net = make_net(freeze_layers=2, config={"hidden_dropout_prob": 0.5})
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    frozen = [module for stage in net.stages[:3] for module in stage]
    assert not any(module.training for part in frozen for module in part.modules())
    assert net.stages[3][0].training
    optimizer = build_optimizer(
        lambda groups: torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1), parameter_groups(net)
    )
    for _ in range(2):
        optimizer.zero_grad()
        net(**make_batch()).square().sum().backward()
        optimizer.step()
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    names = {id(p): name for name, p in net.named_parameters()}
    free = {names[id(p)] for module in (*net.stages[3], net.head) for p in module.parameters()}
    assert moved == free


def test_layers_learn_the_slower_the_nearer_to_the_input() -> None:
    net = make_net()
    groups = parameter_groups(net, layer_decay=0.5)
    optimizer = build_optimizer(lambda groups: torch.optim.AdamW(groups, lr=1.0, weight_decay=0.1), groups)
    of = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    rates = [{of[id(p)][0] for module in stage for p in module.parameters()} for stage in [*net.stages, [net.head]]]
    assert rates == [{0.0625}, {0.125}, {0.25}, {0.5}, {1.0}]
    for name, parameter in net.named_parameters():
        assert of[id(parameter)][1] == (0.0 if name.endswith("bias") or "LayerNorm" in name else 0.1), name


def test_a_checkpoint_with_other_classes_gives_its_encoder(tmp_path: Path) -> None:
    source = make_net()
    torch.save(
        {"state_dict": {f"net.{name}": value for name, value in source.state_dict().items()}}, tmp_path / "a.ckpt"
    )
    net = make_net(num_classes=5, pretrained=str(tmp_path / "a.ckpt"), config={"initializer_range": 0.5})
    assert_close(net.encoder.state_dict(), source.encoder.state_dict(), rtol=0, atol=0)
    assert net(**make_batch()).shape == (3, 5)


def test_positions_leave_room_for_an_offset() -> None:
    from transformers import RobertaModel

    net = make_net("roberta", config={"max_position_embeddings": 20, "pad_token_id": 1})
    assert count_positions(net.encoder) == 18
    assert isinstance(net.encoder, RobertaModel)
    with pytest.raises(ValueError, match=r"max_length \(19\) is more than the encoder's 18 positions"):
        make_net("roberta", config={"max_position_embeddings": 20, "pad_token_id": 1}, max_length=19)
    net(torch.full((1, 18), 7))  # and the next one would be an index error deep inside
    with pytest.raises((IndexError, RuntimeError)):
        net(torch.full((1, 19), 7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, r"pooling 'max' must be one of \['mean', 'cls'\]"),
        ({"dropout": 1.0}, r"dropout \(1.0\) must be within \[0, 1\)"),
        ({"num_layers": 4}, r"num_layers \(4\) must be from 1 to 3"),
        ({"num_layers": 0}, r"num_layers \(0\) must be from 1 to 3"),
        ({"freeze_layers": 4}, r"freeze_layers \(4\) must be from 0 to 3"),
        ({"max_length": 513}, r"max_length \(513\) is more than the encoder's 512 positions"),
        ({"config": {"hiden_size": 8}}, r"bert has no setting 'hiden_size'; did you mean hidden_size\?"),
        ({"config": {"num_attention_heads": 3}}, r"no encoder can be made from config: .*\b16\b"),
        ({"config": {"hidden_act": "gelou"}}, r"no encoder can be made from config: KeyError: 'gelou'"),
        ({"config": {"hidden_size": "wide"}}, r"no encoder can be made from config: .*'hidden_size' .*'wide'"),
        ({"config": {"model_type": "bart"}}, r"'bart' is an encoder-decoder"),
        ({"config": {"model_type": "t5"}}, r"'t5' is an encoder-decoder"),
        ({"config": {"model_type": "bertt"}}, r"model_type 'bertt' is not known"),
        ({"config": {"model_type": "vit", **BERT_LIKE}}, r"'vit' is no encoder of text"),
        ({"config": {"model_type": "gpt2", **FAMILIES["gpt2"]}, "pooling": "cls"}, r"'cls' sees nothing of the text"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    options, config = dict(options), options.get("config", {})
    if "model_type" not in config:
        options["config"] = {"model_type": "bert", **BERT_LIKE, **config}
    with pytest.raises(ValueError, match=message) as caught:
        TextEncoder(**{"num_classes": 3, "model_name": None, "vocab_size": 50, **options})
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_model_is_refused(bert_folder: str) -> None:
    with pytest.raises(ValueError, match="the tokenizer has 51 tokens and the encoder 50 embeddings"):
        TextEncoder(num_classes=3, model_name=bert_folder, vocab_size=51)
    with pytest.raises(ValueError, match="model_name is null, so config must name a model_type"):
        TextEncoder(num_classes=3, model_name=None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 5}, r"no weights that fit 16 tensors of the encoder, encoder.layer.4.attention"),
        ({"intermediate_size": 64}, r"no weights that fit 12 tensors of the encoder, encoder.layer.0.intermediate"),
        ({"model_type": "roberta"}, r"config.model_type \('roberta'\) is for a model_name of null"),
    ],
)
def test_pretrained_weights_are_not_made_up(bert_folder: str, config: dict[str, Any], message: str) -> None:
    """What a file lacks transformers leaves random, with no more than a warning."""
    with pytest.raises(ValueError, match=message) as caught:
        TextEncoder(num_classes=3, model_name=bert_folder, config=config)
    assert "\n" not in str(caught.value)


def test_weights_without_a_pooler_are_whole(bert_folder: str, tmp_path: Path) -> None:
    """As a masked language model saves them."""
    from transformers import BertModel

    source = BertModel.from_pretrained(bert_folder, add_pooling_layer=False)
    source.save_pretrained(tmp_path)
    net = TextEncoder(num_classes=3, model_name=str(tmp_path))
    assert_close(net.encoder.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_damaged_weights_are_named_in_one_line(bert_folder: str, tmp_path: Path) -> None:
    shutil.copytree(bert_folder, tmp_path / "bert")
    (tmp_path / "bert" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"no encoder can be loaded from .*bert") as caught:
        TextEncoder(num_classes=3, model_name=str(tmp_path / "bert"))
    assert "\n" not in str(caught.value)


def test_a_model_that_is_not_there_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in (str(tmp_path), "no-such-encoder-anywhere"):
        with pytest.raises(ValueError, match="no encoder can be loaded from") as caught:
            TextEncoder(num_classes=3, model_name=name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
