"""Traces read back: what was decided, what it cost, and what came of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..errors import MirrorError

FIELDS = ("source", "planned", "verified", "accepted", "tokens", "draft_ms", "verify_ms")


@dataclass(frozen=True)
class SourceSummary:
    """The cycles of one source.

    Attributes:
        source: "plain" or a drafter's name.
        cycles: how many.
        tokens: that came out of them.
        verified: drafted tokens that were verified.
        accepted: how many of those were right.
        draft_ms: median time of a draft.
        verify_ms: median time of a target pass.
        ms_per_token: time of these cycles over their tokens.
    """

    source: str
    cycles: int
    tokens: int
    verified: int
    accepted: int
    draft_ms: float
    verify_ms: float
    ms_per_token: float


def read(file: Path) -> list[dict[str, Any]]:
    """The cycles of a trace.

    Raises:
        MirrorError: the file is missing or is no trace.
    """
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    except OSError as error:
        raise MirrorError(f"cannot read the trace {file}: {error.strerror}") from error
    except ValueError as error:
        raise MirrorError(f"{file} is no trace: {error}") from error
    if not rows or any(not isinstance(row, dict) or set(FIELDS) - set(row) for row in rows):
        raise MirrorError(f"{file} is no trace; `mirror-sd generate --trace FILE` writes one")
    return rows


def by_source(rows: Sequence[dict[str, Any]]) -> list[SourceSummary]:
    """A summary per source, the most used first."""
    found = []
    for source, _ in Counter(row["source"] for row in rows).most_common():
        chosen = [row for row in rows if row["source"] == source]
        tokens = sum(len(row["tokens"]) for row in chosen)
        spent = sum(row["draft_ms"] + row["verify_ms"] for row in chosen)
        found.append(
            SourceSummary(
                source=source,
                cycles=len(chosen),
                tokens=tokens,
                verified=sum(row["verified"] for row in chosen),
                accepted=sum(row["accepted"] for row in chosen),
                draft_ms=median(row["draft_ms"] for row in chosen),
                verify_ms=median(row["verify_ms"] for row in chosen),
                ms_per_token=spent / tokens if tokens else 0.0,
            )
        )
    return found


def verify_costs(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Median milliseconds of a target pass, by its rows."""
    counts = sorted({row["verified"] + 1 for row in rows})
    return {n: median(row["verify_ms"] for row in rows if row["verified"] + 1 == n) for n in counts}


def run_again(rows: Sequence[dict[str, Any]]) -> tuple[int, float]:
    """Rows that exact decoding ran again, and the share of the time that took."""
    spent = sum(row.get("redo_ms", 0.0) for row in rows)
    whole = spent + sum(row["draft_ms"] + row["verify_ms"] for row in rows)
    return sum(row.get("redone", 0) for row in rows), spent / whole if whole else 0.0


def survival(rows: Sequence[dict[str, Any]], source: str) -> list[float]:
    """For each drafted position, how often it was right when all before it were."""
    chosen = [row for row in rows if row["source"] == source]
    longest = max((row["verified"] for row in chosen), default=0)
    chances = []
    for position in range(longest):
        reached = [
            row["accepted"] > position
            for row in chosen
            if row["verified"] > position and row["accepted"] >= position
        ]
        if not reached:
            break
        chances.append(mean(reached))
    return chances


def plot(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the cycles, the cost of a pass by its rows, and survival by position, as a PNG.

    Raises:
        MirrorError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplot_mosaic([["cycles", "cycles"], ["costs", "survival"]])
    _draw_cycles(axes["cycles"], rows)
    costs = verify_costs(rows)
    axes["costs"].bar(list(costs), list(costs.values()), width=0.6, color="#7a7a7a")
    axes["costs"].set(xlabel="rows of a target pass", ylabel="ms (median)", ylim=(0, None))
    axes["costs"].set_title("what verifying costs")
    for source in _drafters(rows):
        chances = survival(rows, source)
        positions = range(1, len(chances) + 1)
        axes["survival"].plot(positions, chances, "o-", label=source, color=_colour(source))
    axes["survival"].set(xlabel="drafted position", ylabel="right, if reached", ylim=(0, 1.05))
    axes["survival"].set_title("survival")
    if axes["survival"].lines:
        axes["survival"].legend(frameon=False)
    for panel in axes.values():
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise MirrorError(f"cannot write the plot {file}: {error.strerror}") from error


def _drafters(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({row["source"] for row in rows} - {"plain"})


def _colour(source: str) -> str:
    return {"dflash": "#2c7fb8", "ngram": "#e08214"}.get(source, "#41ab5d")


def _draw_cycles(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    """A bar per cycle: what was verified, and of that what was accepted."""
    from matplotlib.ticker import MaxNLocator

    numbers = range(1, len(rows) + 1)
    verified = [row["verified"] for row in rows]
    axes.bar(numbers, verified, width=0.9, color="#d0d0d0", label="verified, not accepted")
    for source in _drafters(rows):
        accepted = [row["accepted"] if row["source"] == source else 0 for row in rows]
        axes.bar(numbers, accepted, width=0.9, color=_colour(source), label=f"accepted, {source}")
    plain = [n for n, row in zip(numbers, rows, strict=True) if not row["verified"]]
    if plain:
        axes.plot(plain, [0] * len(plain), "|", color="#444444", markersize=9, label="one row")
    axes.set(xlabel="cycle", ylabel="drafted tokens", ylim=(-0.4, max(verified, default=0) + 0.5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0))
