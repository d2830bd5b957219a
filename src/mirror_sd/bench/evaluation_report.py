"""An evaluation as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ..errors import MirrorError
from .evaluate import (
    Answer,
    Bin,
    acceptance_length,
    by_kind,
    calibration,
    calibration_error,
    positions,
)
from .markdown import facts as as_list
from .markdown import table

BLUE, ORANGE = "#2c7fb8", "#e08214"


def markdown(answers: Sequence[Answer], facts: Mapping[str, str], plot: str | None) -> str:
    """The report.

    Args:
        answers: of all prompts.
        facts: what was measured and on what, label and value.
        plot: name of the picture beside it.
    """
    bins = calibration(answers)
    parts = [
        "# Evaluation of a draft",
        as_list(facts),
        "## Acceptance and speed by kind of prompt",
        _kinds(answers),
        "Acceptance length is the mean number of tokens per target pass with whole blocks, the "
        "target's own token included. Speeds are ratios to plain decoding of the same prompt.",
        "## By position in the block",
        _positions(answers),
        "## Calibration of the draft's confidence",
        _calibration(bins),
        f"Expected calibration error: {calibration_error(bins):.3f}.",
    ]
    if plot:
        parts.append(f"![acceptance by kind, by position, and calibration]({plot})")
    return "\n\n".join(parts) + "\n"


def _kinds(answers: Sequence[Answer]) -> str:
    groups = by_kind(answers)
    if len(groups) > 1:
        groups["all"] = list(answers)
    timed = any(answer.speed for answer in answers)
    head = ["kind", "prompts", "tokens", "acceptance length"]
    head += ["speed, whole blocks", "speed, adaptive", "text identical"] if timed else []
    rows = []
    for kind, group in groups.items():
        row = [kind, str(len(group)), str(sum(a.tokens for a in group))]
        row.append(f"{acceptance_length(group):.2f}")
        speeds = [answer.speed for answer in group if answer.speed]
        if timed:
            row.append(f"{mean(s.block for s in speeds):.2f}x")
            row.append(f"{mean(s.adaptive for s in speeds):.2f}x")
            row.append(f"{sum(s.identical for s in speeds)} of {len(speeds)}")
        rows.append(row)
    if len(groups) > 1:
        kinds = [acceptance_length(group) for kind, group in groups.items() if kind != "all"]
        rows.append(["mean of kinds", "", "", f"{mean(kinds):.2f}", *[""] * (len(head) - 4)])
    return table(head, rows)


def _positions(answers: Sequence[Answer]) -> str:
    found = positions(answers)
    rows = [
        [
            str(number),
            str(place.reached),
            f"{place.chance:.3f}",
            f"{place.right / place.blocks:.3f}",
        ]
        for number, place in enumerate(found, 1)
    ]
    return table(["position", "reached", "right, if reached", "accepted, of all blocks"], rows)


def _calibration(bins: Sequence[Bin]) -> str:
    rows = [[f"{b.confidence:.2f}", f"{b.right:.2f}", str(b.count)] for b in bins]
    return table(["confidence", "right", "tokens"], rows)


def plot(answers: Sequence[Answer], file: Path) -> None:
    """Draw acceptance by kind and by position, and calibration, as a PNG.

    Raises:
        MirrorError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    kinds, places, trust = figure.subplots(1, 3)
    groups = by_kind(answers)
    kinds.barh(list(groups), [acceptance_length(g) for g in groups.values()], color=BLUE)
    kinds.invert_yaxis()
    kinds.axvline(1.0, color="#444444", linewidth=0.8)
    kinds.set(xlabel="tokens per target pass", title="acceptance length")
    _draw_positions(places, answers)
    _draw_calibration(trust, calibration(answers))
    for panel in (kinds, places, trust):
        panel.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise MirrorError(f"cannot write the plot {file}: {error.strerror}") from error


def _draw_positions(panel: Any, answers: Sequence[Answer]) -> None:
    found = positions(answers)
    numbers = range(1, len(found) + 1)
    panel.plot(numbers, [p.chance for p in found], "o-", color=BLUE, label="right, if reached")
    shares = [p.right / p.blocks for p in found]
    panel.plot(numbers, shares, "o-", color=ORANGE, label="accepted, of all blocks")
    panel.set(xlabel="position in the block", ylim=(0, 1.05), title="survival")
    panel.legend(frameon=False)


def _draw_calibration(panel: Any, bins: Sequence[Bin]) -> None:
    panel.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    most = max((b.count for b in bins), default=1)
    sizes = [15 + 150 * b.count / most for b in bins]
    panel.scatter([b.confidence for b in bins], [b.right for b in bins], s=sizes, color=BLUE)
    panel.set(xlabel="confidence", ylabel="right", xlim=(0, 1), ylim=(0, 1), title="calibration")
