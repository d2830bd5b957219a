"""Exact decoding: the text does not depend on how passes over several rows round.

A pass over several rows may round otherwise than a pass over one, in its logits and in the rows it
leaves in the caches. That only matters where the target's two best tokens are nearly equal. Before
such a choice, everything since the last row of plain decoding is run again, one row at a time, as
plain decoding would have run it; the choice is then plain decoding's own, bit for bit.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..caches.target_cache import Checkpoint
from ..errors import Notice
from ..models.target import Target
from .proposal import Proposal
from .sampling import Scorer

FEW = 16  # rows so few are run again as soon as plain decoding begins, which then is plain for sure

PLAIN_CHUNK = 2048  # rows of mlx-lm's own prefill passes


@dataclass(frozen=True)
class Redone:
    """How many rows were run again, and how long that took."""

    rows: int
    seconds: float


NOTHING_REDONE = Redone(0, 0.0)


class SingleRows:
    """Knows which of the target's cached rows plain decoding would have left, and restores them.

    Args:
        target: the sequence whose passes are watched.
        enabled: False watches nothing: every row counts as plain decoding's.
    """

    def __init__(self, target: Target, enabled: bool):
        self._target = target
        self._enabled = enabled
        self._checkpoint: Checkpoint | None = None  # before the first row that is in doubt
        self._prefilled = 0

    @property
    def certain(self) -> bool:
        """Whether all cached rows are those of plain decoding."""
        return self._checkpoint is None

    @property
    def are_few(self) -> bool:
        """Whether so few rows are in doubt that running them again hardly costs anything."""
        return self._checkpoint is None or self._target.length - self._checkpoint.length <= FEW

    @property
    def chunk(self) -> int | None:
        """Rows per prefill pass, None for the target's choice."""
        return PLAIN_CHUNK if self._enabled else None

    def prefilled(self, length: int) -> None:
        """The caches hold so many rows, all from prefill."""
        self._prefilled, self._checkpoint = length, None

    def reusable(self, shared: int) -> int:
        """How many of `shared` rows a new prompt may reuse: rows of an answer would make the next
        one depend on how it was drafted, so they are read again.
        """
        return min(shared, self._prefilled) if self._enabled else shared

    def before(self, rows: int) -> None:
        """The target is about to run over `rows` rows."""
        if self._enabled and rows > 1 and self._checkpoint is None:
            self._checkpoint = self._target.save()

    def redo(self, history: Sequence[int], anchor: int, scorer: Scorer) -> Redone:
        """Run all rows in doubt again, one at a time. Where plain decoding would have said another
        token than was said, a notice tells: passes over several rows then differ by more than the
        acceptance allows for.

        Args:
            history: the tokens of all committed rows.
            anchor: the token behind them.
            scorer: as in the passes that decided.
        """
        if self._checkpoint is None:
            return NOTHING_REDONE
        began = time.perf_counter()
        start, nothing = self._checkpoint.length, Proposal.none().tokens
        self._target.restore(self._checkpoint)
        self._checkpoint = None
        choices = []
        for index in range(start, len(history)):
            verification = self._target.verify(mx.array([history[index]], mx.uint32))
            self._target.commit(1)
            scores = scorer(verification.logits, history[: index + 1], nothing)
            choices.append(mx.argmax(scores, axis=-1))
            mx.async_eval(choices[-1])
        if choices:
            _compare(mx.concatenate(choices).tolist(), [*history[start + 1 :], anchor])
        return Redone(len(choices), time.perf_counter() - began)


def _compare(own: list[int], said: list[int]) -> None:
    wrong = sum(a != b for a, b in zip(own, said, strict=True))
    if wrong:
        warnings.warn(
            f"{wrong} of {len(own)} tokens are not those of plain decoding: passes over several "
            "rows round more coarsely here than exact decoding allows for; decode without a "
            "draft where that matters, and please report it",
            Notice,
            stacklevel=2,
        )
