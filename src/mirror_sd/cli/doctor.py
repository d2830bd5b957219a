"""mirror-sd doctor: what is installed and what works here."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from . import view

LONG = 8192  # tokens: a long conversation, for the memory estimate


def doctor(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Also estimate the memory that this target takes."),
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Its draft. Default: the registry's.")] = None,
) -> None:
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
    if model is not None:
        table.add_section()
        for label, value in _memory(model, draft):
            table.add_row(label, value)
    view.out.print(table)


def _memory(model: str, draft: str | None) -> list[tuple[str, str]]:
    """Rows about the memory of a pair."""
    from ..models import loading, precision

    with view.Loading(f"Looking at {model}") as progress:
        target, draft_bytes = loading.measure(model, draft, progress)
    on_cpu = precision.on_cpu()
    shown = "none known" if draft_bytes is None else _size(draft_bytes * (2 if on_cpu else 1))
    computed = 4 * target.parameters if on_cpu else target.stored
    width = 4 if on_cpu else 2
    total = computed + (draft_bytes or 0) * width // 2 + target.caches(LONG, width)
    free = precision.available_memory()
    verdict = "fits" if total < free else "does NOT fit"
    return [
        ("target's weights", f"{_size(target.stored)} stored, {_size(computed)} as computed here"),
        ("draft's weights", shown),
        ("caches per 1,000 tokens", _size(target.caches(1000, width))),
        (f"together at {LONG:,} tokens", f"{_size(total)} of {_size(free)} free: {verdict}"),
    ]


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
