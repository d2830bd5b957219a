"""What a measurement ran on: the head of every report, and the body of `mirror-sd doctor`."""

from __future__ import annotations

import platform
import time
from importlib import metadata

import mlx.core as mx

from .. import blas
from ..models import precision

ROWS, INNER, OUTER = 256, 576, 1536  # a matrix product of the demo pair
PACKAGES = ("mirror-sd", "mlx", "mlx-lm", "transformers", "numpy")
# Each brings its own copy of the same library file, so whichever was installed last is used.
BACKENDS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-metal")


def describe() -> dict[str, str]:
    """Versions, machine, device and BLAS, as label and value."""
    rows = {name: metadata.version(name) for name in PACKAGES}
    rows["Python"] = f"{platform.python_version()} on {platform.platform()}"
    rows["device"] = f"{device_name()} ({mx.default_device().type.name})"
    rows["MLX backend"] = backend()
    rows["BLAS"] = str(blas.activate())
    rows["free memory"] = f"{precision.available_memory() / 1e9:.1f} GB"
    return rows


def device_name() -> str:
    """The chip's name as MLX or the system tells it."""
    info = mx.device_info()
    return str(info.get("device_name") or info.get("architecture") or platform.processor() or "?")


def backend() -> str:
    """The installed MLX backend; more than one is a broken installation, and said so."""
    installed = []
    for name in BACKENDS:
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    if len(installed) > 1:
        return (
            f"CONFLICT: {' and '.join(installed)} overwrite each other's files; uninstall all of "
            "them and install one (docs/linux-cpu.md)"
        )
    return installed[0] if installed else "built from source"


def matmul_speed() -> float:
    """GFLOP/s of a float32 product, the best of a few."""
    a = mx.random.normal((ROWS, INNER))
    b = mx.random.normal((OUTER, INNER))
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        mx.eval(a @ b.T)
        best = min(best, time.perf_counter() - start)
    return 2 * ROWS * INNER * OUTER / best / 1e9
