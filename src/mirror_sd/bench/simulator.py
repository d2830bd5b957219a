"""What a schedule would take on other devices: recorded cycles replayed over a cost model.

Nothing here is a measurement. It says what follows from costs and hits, and it is held to real runs
with devices that take a set time (`benchmarks/mirrored.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..decoding.branch_policy import BranchPolicy
from ..decoding.branches import Branch
from ..decoding.length import LengthPolicy, Outcome
from .machines import Machine
from .timeline import DEVICE, TARGET, Bar, Timeline


@dataclass
class Clock:
    """A target and a draft's device on one machine; each does one thing at a time.

    Attributes:
        machine: what things cost.
        now: milliseconds; the host and the target.
        free: when the draft's device will have ended its call.
        bars: what was done when.
    """

    machine: Machine
    now: float = 0.0
    free: float = 0.0
    bars: list[Bar] = field(default_factory=list)

    def draft(self) -> None:
        """A block that is waited for, and scored."""
        begin = max(self.now, self.free)
        self.now = self.free = begin + self.machine.draft
        self.bars.append(Bar(DEVICE, "block", begin, self.now))
        self.score()

    def land(self) -> None:
        """Wait for a call beside the verify."""
        self.now = max(self.now, self.free)

    def score(self) -> None:
        """The target's head over drafted rows."""
        if self.machine.score:
            self._target("score", self.machine.score)

    def verify(self, rows: int, depth: int = 0, beside: bool = False) -> None:
        """A target pass, with a call of the draft's device beside it or without."""
        machine = self.machine
        cost = machine.pass_ms(rows, depth)
        if beside:
            self.now += machine.launch
            shared = min(cost, machine.draft)
            call = machine.draft + machine.slowed * shared
            begin = max(self.now, self.free)
            self.free = begin + call
            self.bars.append(Bar(DEVICE, "branches", begin, self.free))
            cost += machine.contention * min(cost, call)
        self._target("verify" if rows > 1 else "plain", cost)

    def _target(self, what: str, cost: float) -> None:
        self.bars.append(Bar(TARGET, what, self.now, self.now + cost))
        self.now += cost

    def timeline(self, launched: int = 0, ready: int = 0) -> Timeline:
        """What was done."""
        return Timeline(sorted(self.bars, key=lambda bar: bar.begin), self.now, launched, ready)


def replay(rows: Iterable[dict[str, Any]], machine: Machine, mirrored: bool) -> Timeline:
    """The very cycles of a trace on a machine.

    Args:
        rows: of a trace.
        machine: what things cost.
        mirrored: use the proposals that were ready in it; else each block is drafted in turn.
    """
    clock, launched, hits = Clock(machine), 0, 0
    rows = list(rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        ready = row.get("ready") if mirrored else None
        if ready is not None:
            clock.land()
            launched, hits = launched + 1, hits + ready
        if ready:
            clock.score()
        elif row["planned"]:
            clock.draft()
        beside = mirrored and following is not None and following.get("ready") is not None
        clock.verify(row["verified"] + 1, row.get("depth", 0), beside)
    return clock.timeline(launched, hits)


@dataclass(frozen=True)
class Text:
    """An answer as a draft sees it.

    Attributes:
        accepted: for each of its tokens, how many of a block behind it would be right.
        confidences: for each, how sure the draft is of the block's tokens.
    """

    accepted: Sequence[int]
    confidences: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Branching:
    """How well outcomes are foreseen.

    Attributes:
        ranks: the chance that the true outcome is the likeliest, the second, ...
        kept: the share of a block's right tokens that a branch has right, too.
    """

    ranks: Sequence[float]
    kept: float = 1.0


def predict(
    texts: Sequence[Text],
    machine: Machine,
    policy: LengthPolicy,
    branching: Branching | None = None,
    branch_policy: BranchPolicy | None = None,
    seed: int = 0,
) -> Timeline:
    """Answers decoded by a length policy, mirrored if `branching` is given.

    Args:
        texts: the answers, decoded one after the other.
        machine: what things cost.
        policy: chooses lengths, as in real decoding.
        branching: how well outcomes are foreseen.
        branch_policy: decides on calls beside the verify; a fresh one if None.
        seed: of the dice for outcomes.
    """
    run = _Run(Clock(machine), policy, branching, branch_policy or BranchPolicy(), seed)
    for text in texts:
        run.answer(text)
    return run.clock.timeline(run.branch_policy.launched, run.branch_policy.hits)


class _Run:
    """Decoding on a clock."""

    def __init__(
        self,
        clock: Clock,
        policy: LengthPolicy,
        branching: Branching | None,
        branch_policy: BranchPolicy,
        seed: int,
    ):
        self.clock, self.branch_policy = clock, branch_policy
        self._policy, self._branching = policy, branching
        self._dice = random.Random(seed)
        self._masks = 0  # of the call beside the latest verify
        self._hit = False
        self._outcomes: list[Branch] = []

    def answer(self, text: Text) -> None:
        """Decode an answer."""
        at, count = 0, len(text.accepted)
        self._masks = 0
        while at < count:
            at += self._cycle(text, at, count - at)
        self._policy.finish()

    def _cycle(self, text: Text, at: int, left: int) -> int:
        begun, confidences = self.clock.now, text.confidences[at]
        plan = self._policy.plan({"dflash": min(len(confidences), left - 1)}, at)
        ready = bool(plan.length) and self._land()
        if plan.length and not ready:
            start = max(self.clock.now, self.clock.free)
            self.clock.draft()
            self.branch_policy.drafted((self.clock.now - start - self.clock.machine.score) / 1e3)
        elif ready:
            self.clock.score()
        length = min(plan.length, self._masks) if ready else plan.length
        seen = confidences[:length] if length and self._policy.trims else None
        kept = self._policy.trim(plan, seen, at) if seen is not None else length
        verified = min(kept, length)  # a branch may have fewer tokens than were planned
        drafted_at = self.clock.now
        self._launch(plan.length, len(confidences))
        self.clock.verify(verified + 1, at, self._masks > 0)
        accepted = min(self._right(text.accepted[at], ready), verified)
        self._learn(plan.length, verified, accepted, ready, self.clock.now - drafted_at, begun)
        self._policy.observe(
            Outcome(
                plan.source, plan.length, verified, accepted, min(accepted + 1, left), at,
                (drafted_at - begun) / 1e3, (self.clock.now - drafted_at) / 1e3, seen,
            )
        )  # fmt: skip
        return min(accepted + 1, left)

    def _launch(self, length: int, longest: int) -> None:
        """Start a call beside the verify that comes next, if that is expected to pay."""
        self._masks = 0
        if self._branching is None or not length:
            return
        ranked = [Branch((0, 0), chance) for chance in self._branching.ranks]
        self._masks = self.branch_policy.choose(ranked, length, longest, 64)
        most = min(self.branch_policy.most, 64 // (2 + max(self._masks, 1)))
        self._outcomes = ranked[:most]
        self._hit = self._dice.random() < sum(branch.chance for branch in self._outcomes)

    def _land(self) -> bool:
        """Whether a call beside the last verify held what it came to."""
        if not self._masks:
            return False
        before = self.clock.now
        self.clock.land()
        chance = sum(branch.chance for branch in self._outcomes)
        self.branch_policy.landed(self._hit, chance, (self.clock.now - before) / 1e3)
        return self._hit

    def _right(self, accepted: int, ready: bool) -> int:
        """How many drafted tokens are right: a branch may lose each with some chance."""
        if not ready or self._branching is None:
            return accepted
        for position in range(accepted):
            if self._dice.random() > self._branching.kept:
                return position
        return accepted

    def _learn(
        self, length: int, verified: int, accepted: int, ready: bool, window: float, begun: float
    ) -> None:
        if length:
            self.branch_policy.verified(verified, accepted, ready)
            self.branch_policy.window(verified + 1, self._masks > 0, window / 1e3)
        self.branch_policy.passed(accepted + 1, (self.clock.now - begun) / 1e3)


def stale_pipeline(cycles: int, machine: Machine, rows: int, jitter: Callable[[], float]) -> Clock:
    """A design that drafts block t + 1 from block t's anchor while t is verified.

    Its draft knows nothing of block t, so it drafts block t again: unless a text repeats itself,
    nothing is right, and each pass gives one token. Yet the devices are busy side by side.
    """
    clock = Clock(machine)
    for _ in range(cycles):
        begin = clock.now
        clock.free = begin + machine.draft * jitter()
        clock.bars.append(Bar(DEVICE, "branches", begin, clock.free))
        clock.verify(rows)
        clock.land()
    return clock
