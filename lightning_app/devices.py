"""What a device can do that decides how to run on it."""

import torch


def has_bfloat16(device: str | torch.device) -> bool:
    """Whether a device multiplies bfloat16 by itself; a CPU that emulates it is many times slower than in float32."""
    if torch.device(device).type != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


def trains_on_cpu(accelerator: object) -> bool:
    """Whether the Trainer's `accelerator` means the CPU on this machine."""
    if accelerator in (None, "auto"):
        return not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return accelerator == "cpu"
