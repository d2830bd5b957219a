"""What a draft's own device does, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK, BRANCHES = "block", "branches"


@dataclass(frozen=True)
class Work:
    """A call.

    Attributes:
        what: "block" for a draft that is waited for, "branches" for one beside the verify.
        begin: seconds by `time.perf_counter`, in the process that computed.
        end: likewise.
    """

    what: str
    begin: float
    end: float


@dataclass(frozen=True)
class Report:
    """What a drafter tells of a cycle.

    Attributes:
        work: of its own device since the last report, or None if it has no such device.
        ready: whether the latest proposal had been drafted beside the verify before; None if
            nothing had been.
    """

    work: Sequence[Work] | None = None
    ready: bool | None = None


NO_REPORT = Report()
