"""What a cycle costs on this machine: measured while decoding, never assumed.

The cost of a target pass over its rows is a staircase that depends on kernels, and it grows with
the context, so a table is kept, not a line.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

VERSION = 1
REMEMBERED = 9  # latest measurements of a cell; their median counts, so a drift is followed
ENOUGH = 4  # measured row counts that make a staircase of their own
_FIRST_DEPTH = 256  # tokens of context in the first bucket; each next one is twice as wide


def depth_bucket(depth: int) -> int:
    """Which bucket a context length belongs to: [0, 256), [256, 512), [512, 1024), ..."""
    return (depth // _FIRST_DEPTH).bit_length()


class _Cell:
    """The latest measurements of one thing."""

    def __init__(self, *seconds: float):
        self._latest = deque(seconds, maxlen=REMEMBERED)
        self.median = median(seconds) if seconds else 0.0

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        self.median = median(self._latest)


class CostTable:
    """Seconds of target passes by rows and context depth, and of drafts by source and length."""

    def __init__(self) -> None:
        self._verify: dict[int, dict[int, _Cell]] = {}
        self._draft: dict[str, dict[int, _Cell]] = {}
        # Answers given since the last measurement: a policy asks for all lengths in every cycle, on
        # a host that has better things to do.
        self._answers: dict[tuple[str | None, int, int], float | None] = {}

    def observe_verify(self, rows: int, depth: int, seconds: float) -> None:
        """A target pass over `rows` rows at `depth` tokens of context took so long."""
        self._answers.clear()
        cells = self._verify.setdefault(depth_bucket(depth), {})
        cells.setdefault(rows, _Cell()).add(seconds)

    def observe_draft(self, source: str, length: int, seconds: float) -> None:
        """Drafting `length` tokens took so long."""
        self._answers.clear()
        cells = self._draft.setdefault(source, {})
        cells.setdefault(length, _Cell()).add(seconds)

    def forget_draft(self, source: str) -> None:
        """Drafting by this source has changed: it is to be measured anew."""
        self._answers.clear()
        self._draft.pop(source, None)

    def verify(self, rows: int, depth: int) -> float | None:
        """The expected seconds of a pass; None before anything was measured.

        A depth with few measurements borrows the staircase of the best known one, scaled.
        """
        key = None, rows, depth_bucket(depth)
        if key not in self._answers:
            self._answers[key] = self._expected_verify(rows, key[2])
        return self._answers[key]

    def _expected_verify(self, rows: int, bucket: int) -> float | None:
        if not self._verify:
            return None
        own = self._verify.get(bucket, {})
        best = max(self._verify, key=lambda known: (len(self._verify[known]), -abs(known - bucket)))
        reference = self._verify[best]
        if len(own) == len(reference) or len(own) >= ENOUGH:
            return _interpolate(own, rows)
        scale = 1.0
        if own:
            nearest = min(own, key=lambda known: abs(known - rows))
            scale = own[nearest].median / _interpolate(reference, nearest)
        return scale * _interpolate(reference, rows)

    def draft(self, source: str, length: int) -> float | None:
        """The expected seconds of drafting; None before anything was measured."""
        key = source, length, 0
        if key not in self._answers:
            cells = self._draft.get(source)
            self._answers[key] = _interpolate(cells, length) if cells else None
        return self._answers[key]

    def measured(self, rows: int) -> bool:
        """Whether passes over just so many rows were measured, at any depth."""
        return any(rows in cells for cells in self._verify.values())

    def measured_near(self, rows: int) -> bool:
        """Whether passes over about so many rows were measured, at any depth."""
        return any(
            abs(known - rows) <= rows // 4 for cells in self._verify.values() for known in cells
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON and plots: medians."""
        return {
            "version": VERSION,
            "verify": {
                str(bucket): {str(rows): cell.median for rows, cell in sorted(cells.items())}
                for bucket, cells in sorted(self._verify.items())
            },
            "draft": {
                source: {str(length): cell.median for length, cell in sorted(cells.items())}
                for source, cells in self._draft.items()
            },
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> CostTable:
        """From `as_dict`; empty if it is of another version."""
        table = cls()
        if content.get("version") != VERSION:
            return table
        for bucket, cells in content["verify"].items():
            table._verify[int(bucket)] = _cells(cells)
        for source, cells in content["draft"].items():
            table._draft[source] = _cells(cells)
        return table


def _cells(content: dict[str, float]) -> dict[int, _Cell]:
    return {int(n): _Cell(float(s)) for n, s in content.items()}


def _interpolate(cells: dict[int, _Cell], wanted: int) -> float:
    """Linear between measured neighbours; beyond the largest at the slope of the last two, below
    the smallest as much as that.
    """
    known = sorted((n, cell.median) for n, cell in cells.items())
    below = [point for point in known if point[0] <= wanted]
    above = [point for point in known if point[0] >= wanted]
    if not below:
        return above[0][1]
    if above:
        (n0, s0), (n1, s1) = below[-1], above[0]
        return s0 if n1 == n0 else s0 + (s1 - s0) * (wanted - n0) / (n1 - n0)
    if len(below) == 1:
        return below[0][1]
    (n0, s0), (n1, s1) = below[-2:]
    return s1 + max(0.0, s1 - s0) * (wanted - n1) / (n1 - n0)
