"""How much to draft next, and from which source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Plan:
    """What the next cycle does.

    Attributes:
        source: name of the drafter, None for plain decoding.
        length: tokens to draft.
        reason: why, in a few words, for traces.
    """

    source: str | None
    length: int
    reason: str


PLAIN = Plan(None, 0, "plain")


@dataclass(frozen=True)
class Outcome:
    """What a cycle did and cost.

    Attributes:
        source: the drafter's name, None for plain decoding.
        drafted: tokens drafted.
        verified: drafted tokens that were verified; fewer than drafted if the policy trimmed.
        accepted: how many of those were right.
        emitted: tokens that came out.
        depth: tokens of context before the cycle.
        draft_seconds: time until the draft was there.
        verify_seconds: time from there until the target had decided.
        confidences: the drafter's chance for each drafted token, if the policy asked for them.
        steady: False for a plain cycle next to a drafted one: passes are not queued ahead across
            that border, so its time is not what plain decoding takes.
        redo_seconds: spent before it on running rows of earlier drafts again, one by one.
    """

    source: str | None
    drafted: int
    verified: int
    accepted: int
    emitted: int
    depth: int
    draft_seconds: float
    verify_seconds: float
    confidences: Sequence[float] | None = None
    steady: bool = True
    redo_seconds: float = 0.0


class LengthPolicy(Protocol):
    """Chooses source and length of each cycle.

    Attributes:
        trims: whether `trim` should be asked after drafting, which waits for the draft.
    """

    trims: bool

    def plan(self, offers: Mapping[str, int], depth: int) -> Plan:
        """The next cycle.

        Args:
            offers: for each drafter how many tokens it can propose now.
            depth: tokens of context.
        """

    def trim(self, plan: Plan, confidences: Sequence[float], depth: int) -> int:
        """How many of the drafted tokens are worth verifying."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a cycle."""

    def finish(self) -> None:
        """An answer has ended."""


class FixedLength:
    """Always the same length, from the first drafter that can propose anything.

    Args:
        length: tokens to draft, block size - 1.
    """

    trims = False

    def __init__(self, length: int):
        self._length = length

    def plan(self, offers: Mapping[str, int], depth: int) -> Plan:
        """The fixed length, or what there is."""
        for source, longest in offers.items():
            if longest and self._length:
                return Plan(source, min(self._length, longest), "fixed")
        return PLAIN

    def trim(self, plan: Plan, confidences: Sequence[float], depth: int) -> int:
        """All of them."""
        return plan.length

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def finish(self) -> None:
        """Nothing to keep."""
