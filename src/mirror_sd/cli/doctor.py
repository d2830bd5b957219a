"""mirror-sd doctor: what is installed and what works here."""

from __future__ import annotations

from rich.table import Table

from . import view


def doctor() -> None:
    """Show versions, device, BLAS, memory, and what works on this machine."""
    from ..bench import environment as env
    from ..models import demo, precision
    from ..models.cachedir import cache_dir

    table = Table(show_header=False)
    for label, value in env.describe().items():
        table.add_row(label, value)
    size = f"{env.ROWS}x{env.INNER}x{env.OUTER}"
    table.add_row("float32 product", f"{env.matmul_speed():.0f} GFLOP/s at {size}")
    table.add_row("cache directory", str(cache_dir()))
    table.add_row("demo target", "ready" if demo.is_ready() else "fetched on first use")
    weights = "float32 where they fit (no GPU)" if precision.on_cpu() else "as stored"
    table.add_row("weights", weights)
    table.add_row("draft runs on", "the same device as the target")
    view.out.print(table)
