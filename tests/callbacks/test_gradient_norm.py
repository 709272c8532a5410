from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import MixedPrecision

from callbacks.gradient_norm import GradientNorm, gradient_norm


class ByHand(pl.Callback):
    """The norm of the loss's gradient at each step, from a backward pass of its own in full precision."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        net: Any = pl_module.net
        loss = torch.nn.functional.cross_entropy(net(batch[0]), batch[1])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        self.norms.append(sum(float((g.double() ** 2).sum()) for g in gradients) ** 0.5)


def precision_options(precision: str) -> dict[str, Any]:
    # On the CPU Lightning turns precision="16-mixed" into bfloat16, without a scaler; the plugin stays.
    return {"plugins": MixedPrecision("16-mixed", "cpu")} if precision == "16-mixed" else {"precision": precision}


def test_norm_is_that_of_one_long_vector() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3, 1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.full((3, 1), 4.0 / 3**0.5)
    unused = torch.nn.Parameter(torch.zeros(1))
    assert gradient_norm(torch.optim.SGD([*parameters, unused])).item() == pytest.approx(5.0)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_logged_norm_is_unscaled_and_before_clipping(tiny: Any, read_events: Any, precision: str) -> None:
    by_hand = ByHand()
    trainer = tiny.trainer(
        max_epochs=2,
        log_every_n_steps=2,
        gradient_clip_val=0.01,
        callbacks=[by_hand, GradientNorm()],
        **precision_options(precision),
    )
    trainer.fit(tiny.Task(learning_rate=0.0), tiny.loader())
    events = read_events(trainer.log_dir).Scalars("train/gradient_norm")
    assert [e.step for e in events] == [1, 3, 5]  # Lightning's own x-axis: steps 2, 4 and 6 counted from 0
    tolerance = 1e-4 if precision == "32-true" else 0.05
    assert [e.value for e in events] == pytest.approx(by_hand.norms[1::2], rel=tolerance)


def test_a_fused_optimizer_under_fp16_is_unscaled_too(tiny: Any, read_events: Any) -> None:
    class Fused(tiny.Task):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.0, fused=True)

    by_hand = ByHand()
    trainer = tiny.trainer(log_every_n_steps=1, callbacks=[by_hand, GradientNorm()], **precision_options("16-mixed"))
    trainer.fit(Fused(), tiny.loader())
    values = [e.value for e in read_events(trainer.log_dir).Scalars("train/gradient_norm")]
    assert values == pytest.approx(by_hand.norms, rel=0.05)


def test_accumulated_steps_count_once(tiny: Any, read_events: Any) -> None:
    trainer = tiny.trainer(log_every_n_steps=2, accumulate_grad_batches=2, callbacks=[GradientNorm()])
    trainer.fit(tiny.Task(), tiny.loader(count=32))
    assert [e.step for e in read_events(trainer.log_dir).Scalars("train/gradient_norm")] == [1, 3]


def test_without_a_logger_it_does_nothing(tiny: Any) -> None:
    trainer = tiny.trainer(logger=False, log_every_n_steps=1, callbacks=[GradientNorm()])
    trainer.fit(tiny.Task(), tiny.loader())
    assert "train/gradient_norm" not in trainer.callback_metrics
