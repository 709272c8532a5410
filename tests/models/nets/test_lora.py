"""Low-rank updates on tiny encoders: what trains, what merging leaves."""

import sys

import pytest
import torch
from torch.testing import assert_close

from models.nets.lora import LoRA, merge_lora
from models.nets.text_encoder import TextEncoder

CONFIG = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TOKENS = torch.arange(5, 25).view(2, 10)


def make_net(lora: LoRA | None = None) -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(num_classes=3, model_name=None, config=CONFIG, vocab_size=50, lora=lora)


def train(net: TextEncoder) -> None:
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        net(TOKENS).square().sum().backward()
        optimizer.step()


def test_updates_and_head_train_and_nothing_else() -> None:
    net = make_net(LoRA(rank=2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trainable = {name for name, p in net.named_parameters() if p.requires_grad}
    assert trainable == {name for name in before if "lora_" in name or name.startswith("head.")}
    train(net)
    assert {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])} == trainable


def test_the_start_is_the_plain_net() -> None:
    assert_close(make_net(LoRA()).eval()(TOKENS), make_net().eval()(TOKENS))


def test_merging_keeps_the_logits_and_leaves_a_plain_net() -> None:
    net = make_net(LoRA(rank=2, alpha=4))
    train(net)
    expected = net.eval()(TOKENS)
    merged = merge_lora(net)
    assert_close(merged(TOKENS), expected, atol=1e-5, rtol=1e-4)
    assert not [module for module in merged.modules() if type(module).__module__.startswith("peft")]
    plain = make_net().eval()
    plain.load_state_dict(merged.state_dict())
    assert_close(plain(TOKENS), expected, atol=1e-5, rtol=1e-4)


def test_layers_of_gpt2_are_linear_too() -> None:
    """They are of a class of their own, with transposed weights."""
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2}
    net = TextEncoder(num_classes=3, model_name=None, config=config, vocab_size=50, lora=LoRA(rank=2))
    updated = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in net.state_dict() if "lora_" in name}
    assert updated == {"c_attn", "c_fc", "c_proj"}
    train(net)
    expected = net.eval()(TOKENS)
    assert_close(merge_lora(net)(TOKENS), expected, atol=1e-5, rtol=1e-4)


def test_merging_a_net_without_updates_changes_nothing() -> None:
    net = make_net().eval()
    expected = net(TOKENS)
    assert_close(merge_lora(net)(TOKENS), expected, rtol=0, atol=0)


def test_named_layers_alone_get_an_update() -> None:
    net = make_net(LoRA(rank=2, target_modules=["query", "value"]))
    updated = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in net.state_dict() if "lora_" in name}
    assert updated == {"query", "value"}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lora.rank \(0\) must be at least 1"):
        LoRA(rank=0)
    with pytest.raises(ValueError, match=r"lora.dropout \(1.0\)"):
        LoRA(dropout=1.0)
    with pytest.raises(ValueError, match=r"\['qury'\] match no linear layer; they are called .*'query'"):
        make_net(LoRA(target_modules=["qury", "value"]))
    with pytest.raises(ValueError, match=r"\['attention', 'LayerNorm'\] match no linear layer"):
        make_net(LoRA(target_modules=["attention", "LayerNorm"]))


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r'peft: pip install ".\[text\]"'):
        make_net(LoRA())
