"""Everything the loop decides, one JSON line per cycle."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import TextIO

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
        confidences = cycle.confidences
        row = {
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
            "finish": cycle.finish_reason,
        }
        print(json.dumps(row), file=self._stream, flush=True)
