"""Drafting beside the verify, with a device that knows the text and only takes time."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from ..decoding.branch_policy import BranchPolicy
from ..decoding.device_draft import DeviceDraft
from ..decoding.length import FixedLength
from ..decoding.output import until
from ..decoding.session import Session
from ..decoding.trace import as_row
from ..decoding.work import BLOCK, BRANCHES
from ..models.loading import Pair
from ..models.target import Target
from . import timeline
from .machines import Machine
from .oracle import Directions, Oracle
from .paced import Pace, PacedAcceptance, PacedMirrored, PacedTurns

CONTEXT = 4096


@dataclass(frozen=True)
class Run:
    """An answer.

    Attributes:
        rows: its cycles, as in a trace.
        seconds: for all of it, but the prefill.
    """

    rows: list[dict[str, Any]]
    seconds: float

    @property
    def tokens(self) -> list[int]:
        """What came out."""
        return [token for row in self.rows for token in row["tokens"]]

    @property
    def timeline(self) -> timeline.Timeline:
        """When each device worked."""
        return timeline.read(self.rows)

    @property
    def hit_rate(self) -> float:
        """Share of proposals that were ready; an answer's first one cannot be."""
        drafted = [row for row in self.rows if row["planned"]]
        return sum(bool(row["ready"]) for row in drafted) / max(len(drafted), 1)

    @property
    def beside(self) -> float:
        """Share of the calls beside the verify in which the target was busy."""
        found = self.timeline
        calls = found.spans(timeline.DEVICE, BRANCHES)
        shared = timeline.intersection(calls, found.spans(timeline.TARGET))
        return timeline.length(shared) / timeline.length(calls) if calls else 0.0


class Always(BranchPolicy):
    """Drafts beside every verify, so that the hit rate is the device's."""

    def choose(self, branches: Sequence[Any], length: int, longest: int, room: int) -> int:
        """One mask more than the tokens that are drafted."""
        return min(length + 1, longest)


@dataclass(frozen=True)
class Bench:
    """What all runs share.

    Attributes:
        pair: its target verifies.
        prompt: token ids.
        text: the prompt's, and what plain decoding says.
        directions: of the target's head.
        length: tokens to draft.
        pace: of the target's passes.
    """

    pair: Pair
    prompt: Sequence[int]
    text: Sequence[int]
    directions: Directions
    length: int
    pace: Pace = field(default_factory=Pace)

    def run(
        self,
        wrong: Callable[[int], bool],
        seconds: float,
        mirror: bool,
        policy: BranchPolicy | None = None,
        holds_gil: bool = False,
    ) -> Run:
        """Decode the text with a device that takes so many seconds for a call."""
        assert self.pair.draft is not None
        oracle = Oracle(self.text, self.directions, wrong, seconds, holds_gil)
        device = DeviceDraft(self.pair.draft.model, lambda: oracle, CONTEXT)
        drafter = self._drafter(device, mirror, policy)
        session = Session(
            Target(self.pair.target, drafter.taps), [drafter], PacedAcceptance(self.pace),
            FixedLength(self.length),
        )  # fmt: skip
        session.prefill(self.prompt)
        rows: list[dict[str, Any]] = []
        start = time.perf_counter()
        for cycle in session.stream(len(self.text) - len(self.prompt), until(frozenset())):
            rows.append(as_row(cycle, start))
        return Run(rows, time.perf_counter() - start)

    def _drafter(
        self, device: DeviceDraft, mirror: bool, policy: BranchPolicy | None
    ) -> PacedMirrored | PacedTurns:
        if mirror:
            return PacedMirrored(self.pace, device, self.pair.target, policy or Always())
        return PacedTurns(self.pace, device, self.pair.target)


def calibrate(runs: Sequence[Run], draft: float) -> Machine:
    """What this machine's host and target take, by runs with a device that takes no time.

    Means, not medians: what is to be predicted are sums.

    Args:
        runs: all of one way; mirrored ones draft beside every verify.
        draft: milliseconds of the device that is to be predicted.
    """
    verifies: dict[int, list[float]] = {}
    rest = []
    for run in runs:
        for row in run.rows:
            verifies.setdefault(row["verified"] + 1, []).append(row["verify_ms"])
            if row["planned"]:
                call = sum(end - begin for what, begin, end in row["device"] if what == BLOCK)
                rest.append(row["cycle_ms"] - row["verify_ms"] - call)
    launch = _launch([run.timeline for run in runs])
    return Machine(
        name="this machine",
        source="runs with a device that takes no time",
        verify={rows: mean(times) - launch for rows, times in verifies.items()},
        draft=draft,
        score=mean(rest),
        launch=launch,
    )


def _launch(timelines: Sequence[timeline.Timeline]) -> float:
    """Milliseconds from when a verify could begin until the call beside it did, 0 without calls."""
    found = []
    for one in timelines:
        begins = [begin for begin, _ in one.spans(timeline.TARGET, "verify")]
        for begin, _ in one.spans(timeline.DEVICE, BRANCHES):
            index = bisect(begins, begin)
            if index:
                found.append(begin - begins[index - 1])
    return mean(found) if found else 0.0
