"""When each device worked, from the intervals that a trace holds.

The target's intervals are its passes, from when they could begin (their draft was there, or the
pass before was done) until their result was; a draft that runs where the target runs is the
target's work, too. The draft's device tells its own intervals, from the process that computes.
Overlap is the intersection of the two: nothing is concluded from sums, or from how long something
was waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MirrorError

Spans = list[tuple[float, float]]
TARGET, DEVICE = "target", "draft device"
LETTERS = {
    "verify": "V", "plain": "P", "draft": "D", "redo": "R", "score": "S",
    "block": "D", "branches": "B",
}  # fmt: skip
COLOURS = {
    "verify": "#7a7a7a", "plain": "#bdbdbd", "redo": "#444444",
    "score": "#fdae61", "draft": "#2c7fb8", "block": "#2c7fb8", "branches": "#41ab5d",
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """Something a device did.

    Attributes:
        lane: "target" or "draft device".
        what: "verify", "plain", "redo", "draft" or "score" (its head over what another device
            drafted) of the target; "block" or "branches" of the draft's device.
        begin: milliseconds since the first cycle began.
        end: likewise.
    """

    lane: str
    what: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Intervals, and what follows from them.

    Attributes:
        bars: of all devices, by begin.
        span: milliseconds from the first begin to the last cycle's end.
        launched: proposals for which branches had been drafted beside the verify.
        ready: how many of those were among them.
    """

    bars: Sequence[Bar]
    span: float
    launched: int
    ready: int

    @property
    def lanes(self) -> list[str]:
        """Devices there are."""
        return [lane for lane in (TARGET, DEVICE) if any(bar.lane == lane for bar in self.bars)]

    def spans(self, lane: str, *what: str) -> Spans:
        """When a device was busy: disjoint, in order."""
        return union(
            (bar.begin, bar.end)
            for bar in self.bars
            if bar.lane == lane and (not what or bar.what in what)
        )

    def busy(self, lane: str) -> float:
        """Milliseconds."""
        return length(self.spans(lane))

    def idle(self, lane: str) -> float:
        """Milliseconds in which the device had nothing to do."""
        return self.span - self.busy(lane)

    @property
    def overlap(self) -> float | None:
        """Share of the draft device's busy time in which the target was busy, too."""
        busy = self.busy(DEVICE)
        if not busy:
            return None
        return length(intersection(self.spans(TARGET), self.spans(DEVICE))) / busy

    @property
    def exposed(self) -> float:
        """Milliseconds of drafting in which the target had to wait: the draft device's busy time
        outside the target's, and drafts that ran where the target runs.
        """
        alone = self.busy(DEVICE) - length(intersection(self.spans(TARGET), self.spans(DEVICE)))
        return alone + length(self.spans(TARGET, "draft"))

    @property
    def hit_rate(self) -> float | None:
        """Share of launched proposals that were ready."""
        return self.ready / self.launched if self.launched else None


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same time, as disjoint intervals in order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > begin:
            found.append((begin, end))
    return found


def intersection(first: Spans, second: Spans) -> Spans:
    """The time in both of two lists of disjoint intervals in order."""
    found: Spans = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(spans: Spans) -> float:
    """Time in disjoint intervals."""
    return sum(end - begin for begin, end in spans)


def read(rows: Sequence[dict[str, Any]]) -> Timeline:
    """The timeline of a trace's cycles.

    Raises:
        MirrorError: the trace has no times; it was written by an earlier version.
    """
    if any("at_ms" not in row for row in rows):
        raise MirrorError("this trace has no intervals: write it again with this version")
    bars = sorted((bar for row in rows for bar in _bars(row)), key=lambda bar: bar.begin)
    end = max([row["at_ms"] + row["cycle_ms"] for row in rows], default=0.0)
    launched = [row["ready"] for row in rows if row["ready"] is not None]
    return Timeline(bars, end, len(launched), sum(launched))


def _bars(row: dict[str, Any]) -> list[Bar]:
    drafted = row["at_ms"] + row["redo_ms"] + row["draft_ms"]
    what = "verify" if row["verified"] else "plain"
    bars = [Bar(TARGET, what, drafted, drafted + row["verify_ms"])]
    if row["redo_ms"]:
        bars.append(Bar(TARGET, "redo", row["at_ms"], row["at_ms"] + row["redo_ms"]))
    if row["planned"] and row["draft_ms"]:
        begin = drafted - row["draft_ms"]
        landed = max([begin, *(end for _, _, end in row["device"] or ())])
        bars.append(Bar(TARGET, "draft" if row["device"] is None else "score", landed, drafted))
    return bars + [Bar(DEVICE, *work) for work in row["device"] or ()]


def text(timeline: Timeline, begin: float, end: float, width: int) -> list[str]:
    """A line per device for the time from `begin` to `end`, in `width` characters: the letter of
    what most of a character's time went to, or "." where most of it was idle.
    """
    step = (end - begin) / width
    lines = []
    for lane in timeline.lanes:
        kinds = sorted({bar.what for bar in timeline.bars if bar.lane == lane})
        spans = {kind: timeline.spans(lane, kind) for kind in kinds}
        line = ""
        for index in range(width):
            here = [(begin + index * step, begin + (index + 1) * step)]
            shares = {kind: length(intersection(spans[kind], here)) for kind in kinds}
            most = max(kinds, key=lambda kind: shares[kind])
            line += LETTERS[most] if sum(shares.values()) > step / 2 else "."
        lines.append(f"{lane:>12} {line}")
    return lines


def plot(timeline: Timeline, begin: float, end: float, file: Path) -> None:
    """Draw a bar per device for the time from `begin` to `end` into a PNG file.

    Raises:
        MirrorError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    lanes = timeline.lanes
    figure = Figure(figsize=(11, 1.4 + 0.6 * len(lanes)), layout="constrained")
    axes = figure.subplots()
    shown = [bar for bar in timeline.bars if bar.end > begin and bar.begin < end]
    for what in dict.fromkeys(bar.what for bar in shown):
        for bar in (bar for bar in shown if bar.what == what):
            place = lanes.index(bar.lane)
            width = bar.end - bar.begin
            axes.barh(place, width, left=bar.begin, height=0.7, color=COLOURS[what], label=what)
            axes.plot([bar.begin] * 2, [place - 0.35, place + 0.35], color="white", linewidth=0.6)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(
        handles.values(), handles, frameon=False, ncols=6, loc="lower left", bbox_to_anchor=(0, 1)
    )
    axes.set(xlim=(begin, end), xlabel="ms", yticks=range(len(lanes)), yticklabels=lanes)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise MirrorError(f"cannot write the plot {file}: {error.strerror}") from error
