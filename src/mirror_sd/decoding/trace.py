"""Everything the loop decides, one JSON line per cycle."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ..errors import MirrorError
from .statistics import Cycle


class TraceWriter:
    """Writes cycles to a file as they happen.

    Args:
        file: is overwritten.

    Raises:
        MirrorError: it cannot be written.
    """

    def __init__(self, file: Path):
        try:
            self._stream: TextIO = file.open("w", encoding="utf-8")
        except OSError as error:
            raise MirrorError(f"cannot write the trace {file}: {error.strerror}") from error
        self._start: float | None = None  # everything is told from the first cycle's begin

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def add(self, cycle: Cycle) -> None:
        """Write a cycle."""
        if self._start is None:
            self._start = cycle.began
        print(json.dumps(as_row(cycle, self._start)), file=self._stream, flush=True)


def as_row(cycle: Cycle, start: float) -> dict[str, Any]:
    """A cycle for JSON; times are milliseconds, those of the clock since `start`."""

    def since(when: float) -> float:
        return round((when - start) * 1e3, 3)

    confidences, work = cycle.confidences, cycle.report.work
    return {
        "depth": cycle.depth,
        "source": cycle.plan.source or "plain",
        "planned": cycle.plan.length,
        "because": cycle.plan.reason,
        "proposal": cycle.proposed,
        "verified": len(cycle.proposed),
        "confidences": None if confidences is None else [round(c, 4) for c in confidences],
        "accepted": cycle.accepted,
        "tokens": cycle.tokens,
        "draft_ms": round(cycle.draft_seconds * 1e3, 3),
        "verify_ms": round(cycle.verify_seconds * 1e3, 3),
        "redone": cycle.redone,
        "redo_ms": round(cycle.redo_seconds * 1e3, 3),
        "cycle_ms": round(cycle.seconds * 1e3, 3),
        "at_ms": since(cycle.began),
        "ready": cycle.report.ready,
        "device": None
        if work is None
        else [[one.what, since(one.begin), since(one.end)] for one in work],
        "finish": cycle.finish_reason,
    }
