"""torch.compile for a task's net, in place."""

import os
import shutil
import sys
from typing import Literal

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


def find_cpp_compiler() -> str | None:
    """The C++ compiler that inductor would call on this machine's CPU, or None."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX", default))


class CompileNet(Callback):
    """Compiles the task's net in place: checkpoints stay interchangeable with those of uncompiled runs.

    `torch.compile(net)` would wrap it and put `_orig_mod.` into every state-dict key; `net.compile()` does
    not.

    Args:
        mode: What the compiler optimises for.
        dynamic: Whether shapes are compiled as variable. None lets them become so at the second shape.
        backend: `inductor` generates code; `eager` and `aot_eager` help to find what can't be compiled.
        fullgraph: Whether a part that can't be compiled is an error.

    Raises:
        ValueError: If the backend needs a C++ compiler that is not there.
    """

    def __init__(
        self,
        *,
        mode: Mode = "default",
        dynamic: bool | None = None,
        backend: str = "inductor",
        fullgraph: bool = False,
    ) -> None:
        self.mode, self.dynamic, self.backend, self.fullgraph = mode, dynamic, backend, fullgraph

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Compile, unless an earlier stage of this process has done so."""
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if self.backend == "inductor" and on_cpu and find_cpp_compiler() is None:
            raise ValueError(
                "CompileNet with backend 'inductor' needs a C++ compiler on the CPU: install one (Debian and"
                " Ubuntu: `apt install g++`) or name it in the environment variable CXX"
            )
        if pl_module.net._compiled_call_impl is None:  # type: ignore[union-attr]
            pl_module.net.compile(  # type: ignore[union-attr]
                mode=self.mode, dynamic=self.dynamic, backend=self.backend, fullgraph=self.fullgraph
            )
