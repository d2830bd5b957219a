"""Measured speeds as Markdown, JSON and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import MirrorError
from . import markdown
from .speed import Result, Way

HEAD = (
    "context", "way", "tok/s", "acceptance", "draft ms", "verify ms", "overlap", "exposed ms",
    "hits", "over plain", "lossless",
)  # fmt: skip
COLOURS = {
    Way.plain: "#7a7a7a", Way.mlx: "#2c7fb8", Way.turns: "#e08214", Way.mirrored: "#41ab5d",
}  # fmt: skip
READING = (
    "Draft and verify ms are medians over drafted cycles; draft ms is what passed before the "
    "verify could begin, also where a proposal was ready. Overlap is the share of the draft "
    "device's busy time in which the target was busy, from both clocks' intervals. Exposed ms is "
    "drafting per drafted cycle in which the target waited. Hits are proposals that were ready, of "
    "calls beside a verify. Over plain is the median of each run's own ratio."
)


def describe(result: Result) -> list[str]:
    """A row of the table."""
    hits, overlap = result.hits, result.overlap
    return [
        str(result.depth),
        result.way.value,
        f"{result.tokens_per_second:.2f}",
        f"{result.acceptance_length:.2f}",
        _number(result.milliseconds("draft_ms")),
        _number(result.milliseconds("verify_ms")),
        "" if overlap is None else f"{overlap:.0%}",
        _number(result.exposed),
        "" if hits is None else f"{hits[0]} of {hits[1]}",
        "" if result.speedup is None else f"{result.speedup:.2f}x",
        result.lossless,
    ]


def text(results: Sequence[Result], facts: Mapping[str, str], plot: str | None) -> str:
    """The report in Markdown.

    Args:
        results: of all depths.
        facts: what was measured and on what, label and value.
        plot: name of the picture beside it.
    """
    parts = [
        "# Decoding speed",
        markdown.facts(facts),
        markdown.table(HEAD, [describe(result) for result in results]),
        READING,
    ]
    if plot:
        parts.append(f"![speed and exposed drafting by depth]({plot})")
    return "\n\n".join(parts) + "\n"


def as_dict(results: Sequence[Result], facts: Mapping[str, str]) -> dict[str, Any]:
    """Everything, for JSON."""
    return {"facts": dict(facts), "results": [_one(result) for result in results]}


def _one(result: Result) -> dict[str, Any]:
    return {
        "context": result.depth,
        "way": result.way.name,
        "tokens_per_second": result.tokens_per_second,
        "runs_tokens_per_second": [sample.tokens_per_second for sample in result.samples],
        "acceptance_length": result.acceptance_length,
        "draft_ms": result.milliseconds("draft_ms"),
        "verify_ms": result.milliseconds("verify_ms"),
        "overlap": result.overlap,
        "exposed_ms": result.exposed,
        "hits": result.hits,
        "speedup": result.speedup,
        "lossless": result.lossless,
        "tokens": result.samples[0].tokens if result.samples else [],
    }


def plot(results: Sequence[Result], file: Path) -> None:
    """Draw speed and exposed drafting by depth as a PNG.

    Raises:
        MirrorError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    speeds, waits = figure.subplots(1, 2)
    for way in dict.fromkeys(result.way for result in results):
        mine = [result for result in results if result.way is way]
        depths = [result.depth for result in mine]
        style = {"color": COLOURS[way], "label": way.value}
        speeds.plot(depths, [r.tokens_per_second for r in mine], "o-", **style)
        waited = [r.exposed for r in mine]
        if any(wait is not None for wait in waited):
            waits.plot(depths, [float("nan") if w is None else w for w in waited], "o-", **style)
    speeds.set(title="tokens per second", ylim=(0, None))
    waits.set(title="drafting that the target waits for, ms per drafted cycle", ylim=(0, None))
    for panel in (speeds, waits):
        panel.set(xlabel="tokens of context")
        panel.spines[["top", "right"]].set_visible(False)
        if panel.lines:
            panel.legend(frameon=False)
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise MirrorError(f"cannot write the plot {file}: {error.strerror}") from error


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
