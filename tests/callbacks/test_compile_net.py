from typing import Any

import pytest
import torch

from callbacks import compile_net
from callbacks.compile_net import CompileNet


def test_compiled_training_equals_eager_and_keeps_its_state_dict_keys(tiny: Any) -> None:
    states = []
    for callbacks in ([], [CompileNet(backend="aot_eager")]):
        torch.manual_seed(0)
        task = tiny.Task()
        trainer = tiny.trainer(callbacks=callbacks, logger=False)
        trainer.fit(task, tiny.loader())
        trainer.test(task, tiny.loader(), verbose=False)
        assert (task.net._compiled_call_impl is None) == (not callbacks)
        states.append(task.state_dict())
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)
    tiny.Task().load_state_dict(states[1])


def test_the_options_reach_the_compiler(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[dict[str, Any]] = []
    monkeypatch.setattr(tiny.Net, "compile", lambda self, **options: received.append(options))
    options: dict[str, Any] = {"mode": "max-autotune", "dynamic": True, "backend": "eager", "fullgraph": True}
    CompileNet(**options).setup(tiny.trainer(logger=False), tiny.Task(), "fit")
    assert received == [options]


def test_a_missing_compiler_is_named_before_training(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compile_net.find_cpp_compiler() is None
    with pytest.raises(ValueError, match=r"C\+\+ compiler"):
        tiny.trainer(callbacks=[CompileNet()], logger=False).fit(tiny.Task(), tiny.loader())
