"""A target whose passes take a set time: as steady as a device's own, on a machine that is not.

A virtual machine's passes differ from one to the next. A call of the draft's device that is as long
as the middle one then sticks out of every shorter one, whatever the schedule does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..decoding.acceptance import Decision, GreedyAcceptance
from ..decoding.branch_policy import BranchPolicy
from ..decoding.device_draft import DeviceDraft
from ..decoding.device_drafter import DeviceDrafter
from ..decoding.mirrored import MirroredDrafter
from ..decoding.proposal import Proposal
from ..models.target import TargetModel


class Pace:
    """Passes of drafted tokens end a set time after they were queued.

    Args:
        seconds: for a pass; 0 for as long as it takes.

    Attributes:
        passes: how many there were.
        late: how many took longer.
    """

    def __init__(self, seconds: float = 0.0):
        self.passes = self.late = 0
        self._seconds = seconds
        self._end: float | None = None

    def begin(self) -> None:
        """A pass is queued."""
        self._end = time.perf_counter() + self._seconds

    def wait(self) -> None:
        """Until it ends, if one was queued; its results are there."""
        if self._end is None:
            return
        left, self._end = self._end - time.perf_counter(), None
        self.passes += 1
        self.late += left < 0
        time.sleep(max(0.0, left))


@dataclass(frozen=True)
class PacedDecision(Decision):
    """A decision that is known when its pass ends.

    Attributes:
        pace: tells when.
    """

    pace: Pace

    def counts(self) -> tuple[int, int]:
        """How many drafted tokens are valid, and how many tokens may go out."""
        found = super().counts()
        self.pace.wait()
        return found


class PacedAcceptance(GreedyAcceptance):
    """Greedy; what it decides is known when the pass ends."""

    def __init__(self, pace: Pace):
        self._pace = pace

    def __call__(self, logprobs: mx.array, proposal: Proposal, position: int) -> Decision:
        """Accept the longest prefix that equals the target's own choices."""
        found = super().__call__(logprobs, proposal, position)
        return PacedDecision(found.accepted, found.emitted, found.tokens, self._pace)


class PacedTurns(DeviceDrafter):
    """Drafts in turn with the target, and says when a pass is queued."""

    def __init__(self, pace: Pace, draft: DeviceDraft, target: TargetModel):
        super().__init__(draft, target)
        self._pace = pace

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """The pass begins."""
        super().meanwhile(drafted)
        self._pace.begin()


class PacedMirrored(MirroredDrafter):
    """Drafts beside the target, and says when a pass is queued."""

    def __init__(self, pace: Pace, draft: DeviceDraft, target: TargetModel, policy: BranchPolicy):
        super().__init__(draft, target, policy=policy)
        self._pace = pace

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """Launch a call, then the pass begins: without a GPU that is the order (`dispatch`)."""
        super().meanwhile(drafted)
        self._pace.begin()
