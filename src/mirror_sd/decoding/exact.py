"""Exact decoding: the text does not depend on how passes over several rows round.

A pass over several rows may round otherwise than a pass over one, in its logits and in the rows it
leaves in the caches. That only matters where the target's two best tokens are nearly equal. Before
such a choice, everything since the last row of plain decoding is run again, one row at a time, as
plain decoding would have run it; the choice is then plain decoding's own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..caches.target_cache import Checkpoint
from ..models.target import Target
from .proposal import Proposal
from .sampling import Scorer

FEW = 16  # rows so few are run again as soon as plain decoding begins, which then is plain for sure

PLAIN_CHUNK = 2048  # rows of mlx-lm's own prefill passes


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

    def redo(self, history: Sequence[int], anchor: int, scorer: Scorer) -> tuple[int, int]:
        """Run all rows in doubt again, one at a time.

        Args:
            history: the tokens of all committed rows.
            anchor: the token behind them.
            scorer: as in the passes that decided.

        Returns:
            How many rows were run, and after how many of them plain decoding would have said
            another token than was said: above 0 only where passes over several rows differ by more
            than the acceptance allows for.
        """
        if self._checkpoint is None:
            return 0, 0
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
        if not choices:
            return 0, 0
        said = [*history[start + 1 :], anchor]
        own = mx.concatenate(choices).tolist()
        return len(own), sum(a != b for a, b in zip(own, said, strict=True))
