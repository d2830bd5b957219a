"""In which number format weights are computed with.

On a GPU they stay as stored. The CPU kernels of MLX for quantised and 16-bit products are slow
(docs/linux-cpu.md), so a machine without a GPU computes in float32.
"""

from __future__ import annotations

import os

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, get_total_parameters

from .dtype import Dtype

# Weights may take this share of the memory that is free, the rest is for caches and the system.
COMFORTABLE = 0.5


def on_cpu() -> bool:
    """Whether MLX computes on the CPU here."""
    return mx.default_device() == mx.Device(mx.cpu)


def available_memory() -> int:
    """Bytes of memory that are free for weights (on macOS: all of it)."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def apply(model: nn.Module, choice: Dtype) -> tuple[nn.Module, str | None]:
    """Bring a freshly loaded (lazy) model into the chosen format.

    Args:
        model: an mlx-lm model; its modules may be replaced.
        choice: `auto` decides by device and memory; `float32`, `bfloat16` and `float16` dequantise
            and convert; `quantized` keeps quantised weights and computes in float32.

    Returns:
        The model and, where `auto` changed something, a notice for the user.
    """
    notice = None
    if choice is Dtype.auto:
        choice, notice = _decide(model)
    if choice is Dtype.stored:
        return model, notice
    if choice is Dtype.quantized:
        model.set_dtype(mx.float32)
        return model, notice
    # Scales first: dequantising with float32 scales is faster on a CPU, and exact.
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    model.set_dtype(getattr(mx, choice.value))
    return model, notice


def compute_dtype(choice: Dtype) -> mx.Dtype:
    """The format a draft is computed in: bfloat16 or float32, never float16, which overflows."""
    if choice is Dtype.bfloat16 or (choice in (Dtype.auto, Dtype.stored) and not on_cpu()):
        return mx.bfloat16
    return mx.float32


def describe(model: nn.Module) -> str:
    """For reports: `float32`, or `4-bit + float16` for a quantised model."""
    floats: dict[str, int] = {}
    for _, array in tree_flatten(model.parameters()):
        if mx.issubdtype(array.dtype, mx.floating):
            name = str(array.dtype).removeprefix("mlx.core.")
            floats[name] = floats.get(name, 0) + array.size
    main = max(floats, key=lambda name: floats[name], default="?")
    bits = [m.bits for m in model.modules() if hasattr(m, "bits") and hasattr(m, "group_size")]
    return f"{max(set(bits), key=bits.count)}-bit + {main}" if bits else main


def _decide(model: nn.Module) -> tuple[Dtype, str | None]:
    if not on_cpu():
        return Dtype.stored, None
    stored = describe(model)
    if stored == "float32":
        return Dtype.stored, None
    needed, free = 4 * get_total_parameters(model), available_memory()
    if needed <= COMFORTABLE * free:
        return Dtype.float32, (
            f"no GPU: {stored} weights are computed in float32 ({needed / 1e9:.1f} GB), which is "
            "faster on a CPU; --dtype stored keeps them"
        )
    # Only the scales of a quantised model grow with float32; plain weights would double.
    choice = Dtype.quantized if "-bit" in stored else Dtype.stored
    return choice, (
        f"no GPU: float32 weights would take {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB free, "
        f"so they stay {stored}; expect it to be slow"
    )
