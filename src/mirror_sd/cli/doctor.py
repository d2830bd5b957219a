"""mirror-sd doctor: what is installed and what works here."""

from __future__ import annotations

import platform
import time
from importlib import metadata

from rich.table import Table

from . import view

ROWS, INNER, OUTER = 256, 576, 1536  # a matrix product of the demo pair


def doctor() -> None:
    """Show versions, device, BLAS, memory, and what works on this machine."""
    import mlx.core as mx

    from .. import blas
    from ..models import demo, precision
    from ..models.cachedir import cache_dir

    table = Table(show_header=False)
    for name in ("mirror-sd", "mlx", "mlx-lm", "transformers", "numpy"):
        table.add_row(name, metadata.version(name))
    table.add_row("Python", f"{platform.python_version()} on {platform.platform()}")
    table.add_row("device", f"{_device_name()} ({mx.default_device().type.name})")
    table.add_row("BLAS", str(blas.activate()))
    table.add_row("float32 product", f"{_speed():.0f} GFLOP/s at {ROWS}x{INNER}x{OUTER}")
    table.add_row("free memory", f"{precision.available_memory() / 1e9:.1f} GB")
    table.add_row("cache directory", str(cache_dir()))
    table.add_row("demo target", "ready" if demo.is_ready() else "fetched on first use")
    table.add_row("weights", "as stored" if not precision.on_cpu() else "float32 where they fit")
    table.add_row("draft runs on", "the same device as the target")
    view.out.print(table)


def _device_name() -> str:
    import mlx.core as mx

    info = mx.device_info()
    return str(info.get("device_name") or info.get("architecture") or platform.processor() or "?")


def _speed() -> float:
    """GFLOP/s of a float32 product, the best of a few."""
    import mlx.core as mx

    a = mx.random.normal((ROWS, INNER))
    b = mx.random.normal((OUTER, INNER))
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        mx.eval(a @ b.T)
        best = min(best, time.perf_counter() - start)
    return 2 * ROWS * INNER * OUTER / best / 1e9
