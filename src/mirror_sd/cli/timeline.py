"""mirror-sd timeline: which device worked when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..errors import PromptError
from . import view

if TYPE_CHECKING:
    from ..bench.timeline import Timeline

SHOWN_CYCLES = 12
MARGIN = 14  # characters before a line's first


def timeline(
    file: Annotated[Path, typer.Argument(help="A file that generate --trace wrote.")],
    begin: Annotated[
        float, typer.Option("--from", help="Draw from here on, ms since the first cycle.")
    ] = 0.0,
    end: Annotated[
        float | None,
        typer.Option("--to", help=f"Draw until here, ms; without it {SHOWN_CYCLES} cycles."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it into this PNG file.")] = None,
) -> None:
    """Draw which device worked when, and how much of the drafting the verify hid."""
    from ..bench import timeline as timelines
    from ..bench import tracefile

    rows = tracefile.read(file)
    found = timelines.read(rows)
    until = _end(rows, begin) if end is None else end
    if not 0 <= begin < until:
        raise PromptError(f"there is nothing between {begin:g} and {until:g} ms")
    width = max(20, view.out.width - MARGIN)
    view.out.print(f"{begin:.0f} to {until:.0f} ms of {found.span:.0f}, {len(rows)} cycles in all")
    for line in timelines.text(found, begin, until, width):
        view.out.print(line, markup=False, highlight=False, soft_wrap=True)
    view.out.print(_legend(found), style="dim")
    view.out.print(_table(found))
    if plot is not None:
        timelines.plot(found, begin, until, plot)
        view.out.print(f"plot: {plot}")


def _end(rows: list[dict[str, Any]], begin: float) -> float:
    """Where so many cycles from `begin` on have ended."""
    later = [row for row in rows if row.get("at_ms", 0.0) + row["cycle_ms"] > begin]
    return max((r.get("at_ms", 0.0) + r["cycle_ms"] for r in later[:SHOWN_CYCLES]), default=0.0)


def _legend(found: Timeline) -> str:
    from ..bench.timeline import LETTERS

    kinds = dict.fromkeys(bar.what for bar in found.bars)
    return ", ".join(f"{LETTERS[kind]} {kind}" for kind in kinds) + ", . idle"


def _table(found: Timeline) -> Table:
    table = Table(show_header=False)
    for lane in found.lanes:
        table.add_row(f"{lane} busy", f"{found.busy(lane):.1f} ms")
        table.add_row(f"{lane} idle", f"{found.idle(lane):.1f} ms")
    table.add_row("drafting that the target waited for", f"{found.exposed:.1f} ms")
    if found.overlap is not None:
        table.add_row("of the device's work, beside the target's", f"{found.overlap:.1%}")
    if found.hit_rate is not None:
        table.add_row("proposals that were ready", f"{found.ready} of {found.launched}")
    return table
