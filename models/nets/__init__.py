"""Plain `torch.nn.Module`s, tensors in and tensors out. Nothing here imports Lightning.

A net declares `BLOCKS`, its repeated block classes (activation checkpointing and FSDP wrapping read it), `stages`, its
modules from input to output, and `head` (progressive unfreezing and layer-wise learning rates read them).
"""
