"""mirror-sd trace: what a run decided, and what came of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from . import view


def trace(
    file: Annotated[Path, typer.Argument(help="A file that generate --trace wrote.")],
    plot: Annotated[Path | None, typer.Option(help="Also draw it into this PNG file.")] = None,
) -> None:
    """Summarise a trace: sources, lengths, reasons, costs, survival."""
    from ..bench import tracefile

    rows = tracefile.read(file)
    table = Table(title=f"{len(rows)} cycles")
    for column in ("source", "cycles", "tokens", "verified", "right", "draft", "verify", "a token"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for s in tracefile.by_source(rows):
        right = f"{s.accepted / s.verified:.0%}" if s.verified else ""
        table.add_row(
            s.source,
            str(s.cycles),
            str(s.tokens),
            str(s.verified),
            right,
            f"{s.draft_ms:.1f} ms" if s.draft_ms else "",
            f"{s.verify_ms:.1f} ms",
            f"{s.ms_per_token:.1f} ms",
        )
    view.out.print(table)
    costs = ", ".join(f"{n}: {ms:.0f}" for n, ms in tracefile.verify_costs(rows).items())
    view.out.print(f"target pass by rows, ms: {costs}", soft_wrap=True)
    for source in sorted({row["source"] for row in rows} - {"plain"}):
        chances = ", ".join(f"{chance:.2f}" for chance in tracefile.survival(rows, source))
        if chances:
            view.out.print(f"{source}: right by position, if reached: {chances}", soft_wrap=True)
    reasons = Counter(_kind(row.get("because", "")) for row in rows)
    said = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    view.out.print(f"because: {said}", soft_wrap=True)
    again, spent = tracefile.run_again(rows)
    if again:
        view.out.print(f"exact decoding ran {again} rows again: {spent:.1%} of the time")
    if plot is not None:
        tracefile.plot(rows, plot)
        view.out.print(f"plot: {plot}")


def _kind(reason: str) -> str:
    """Reasons alike but for their numbers count together."""
    return "drafting pays" if reason.startswith("expected") else reason
