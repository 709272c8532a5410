"""Gradients are the same to the bit, memory is less, and nothing else about the net changes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from callbacks.activation_checkpointing import ActivationCheckpointing, checkpoint_blocks, restore_blocks


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.3), nn.Linear(4 * width, width), nn.LayerNorm(width)
        )

    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return x + self.layers(x) * mask


class Outer(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.inner = Block(width)

    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return self.inner(super().forward(x, mask=mask), mask=mask)


class Net(nn.Module):
    BLOCKS = (Block,)

    def __init__(self, blocks: int = 4, kind: type[Block] = Block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(kind(16) for _ in range(blocks))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, mask=torch.ones(16))
        return self.head(x)


INPUT = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def gradients(net: nn.Module) -> dict[str, Tensor]:
    net.zero_grad()
    torch.manual_seed(1)  # of the dropout
    net(INPUT).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def kept_bytes(net: nn.Module) -> int:
    """Bytes that the forward pass keeps for the backward pass, parameters left out."""
    sizes: dict[int, int] = {}
    own = {p.data_ptr() for p in net.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = net(INPUT)
    del output
    return sum(sizes.values())


@pytest.mark.parametrize("kind", [Block, Outer])
@pytest.mark.parametrize("every_k", [1, 2, 3])
def test_gradients_are_the_same_to_the_bit(kind: type[Block], every_k: int) -> None:
    net = Net(kind=kind)
    expected = gradients(net)
    blocks = checkpoint_blocks(net, every_k=every_k)
    assert [block in blocks for block in net.blocks] == [index % every_k == 0 for index in range(4)]
    found = gradients(net)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_gradients_behind_a_frozen_stem() -> None:
    net = Net()
    net.stem.requires_grad_(False)
    expected = gradients(net)
    checkpoint_blocks(net)
    found = gradients(net)
    assert len(found) == len(expected) == 4 * 6 + 2
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_memory_is_less() -> None:
    net = Net(blocks=8)
    full = kept_bytes(net)
    checkpoint_blocks(net, every_k=2)
    half = kept_bytes(net)
    restore_blocks(list(net.blocks[::2]))
    checkpoint_blocks(net)
    assert kept_bytes(net) < 0.35 * full
    assert kept_bytes(net) < half < full


def test_nothing_else_about_the_net_changes() -> None:
    net = Net()
    names, kinds = list(net.state_dict()), [type(module) for module in net.modules()]
    parameters = [name for name, _ in net.named_parameters()]
    blocks = checkpoint_blocks(net)
    assert list(net.state_dict()) == names
    assert [name for name, _ in net.named_parameters()] == parameters
    assert [type(module) for module in net.modules()] == kinds
    restore_blocks(blocks)
    assert not any("forward" in vars(module) for module in net.modules())


def test_evaluation_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    checkpoint_blocks(net)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("callbacks.activation_checkpointing.checkpoint", refuse)
    net.eval()(INPUT)
    with torch.no_grad():
        net.train()(INPUT)
    with pytest.raises(AssertionError):
        net(INPUT)


def test_an_encoder_of_transformers() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False).train()
    tokens, mask = torch.arange(5, 25).view(2, 10), torch.ones(2, 10, dtype=torch.int64)
    mask[1, 6:] = 0

    def run(net: nn.Module) -> list[Tensor]:
        torch.manual_seed(1)
        net(input_ids=tokens, attention_mask=mask).last_hidden_state.square().sum().backward()
        return [parameter.grad for parameter in net.parameters()]

    other = copy.deepcopy(encoder)
    other.BLOCKS = (type(other.encoder.layer[0]),)
    assert len(checkpoint_blocks(other)) == 3
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(encoder), run(other), strict=True))


def test_a_net_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="BLOCKS of Linear names none"):
        checkpoint_blocks(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"every_k \(0\) must be at least 1"):
        ActivationCheckpointing(every_k=0)


def test_a_fit_is_checkpointed_and_leaves_no_trace(tiny: Any) -> None:
    task = tiny.Task()
    task.net.BLOCKS = (nn.Sequential,)
    seen = []

    class Look(ActivationCheckpointing):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            seen.append(["forward" in vars(block) for block in pl_module.net.blocks])

    tiny.trainer(callbacks=[Look(every_k=2)]).fit(task, tiny.loader(8))
    assert seen == [[True, False, True]] * 2
    assert not any("forward" in vars(module) for module in task.modules())
