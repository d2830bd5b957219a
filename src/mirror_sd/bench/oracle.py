"""A device's draft that knows the text and takes a set time: what a schedule gains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ..devices.device import Span
from ..devices.latency import hold_until
from ..models.target import TargetModel
from ..programs import head_rows

TRIES = 200
HIGHEST = 20.0  # a score; a soft cap, 30 as a rule, would make equal what is much larger


class Directions:
    """For tokens, hidden states [H] whose likeliest token they are by a target's head."""

    def __init__(self, target: TargetModel):
        self._rows = head_rows(target)(0, target.vocab_size)
        self._known: dict[int, np.ndarray] = {}
        self.vocabulary, self.hidden = self._rows.shape

    def __call__(self, token: int) -> np.ndarray:
        """Its own row of the head, turned away from rows that score more: a perceptron's steps."""
        if token not in self._known:
            own = self._rows[token]
            found = own / np.linalg.norm(own)
            for _ in range(TRIES):
                scores = self._rows @ found
                rival = int(scores.argmax())
                if rival == token:
                    break
                away = own - self._rows[rival]
                found = found + away / np.linalg.norm(away)
            self._known[token] = HIGHEST * found / (self._rows @ found).max()
        return self._known[token]


class Oracle:
    """Looks up what comes behind each position, and is wrong at chosen ones.

    Args:
        text: all tokens, the prompt's first.
        directions: of the target's head.
        wrong: whether it is wrong at a position.
        seconds: that a call takes, in which nothing is computed.
        holds_gil: keep Python's lock for so long, as some libraries do.
    """

    def __init__(
        self,
        text: Sequence[int],
        directions: Directions,
        wrong: Callable[[int], bool] = lambda place: False,
        seconds: float = 0.0,
        holds_gil: bool = False,
    ):
        self.length = 0
        self._busy: list[Span] = []
        self._text, self._directions = text, directions
        self._wrong, self._seconds, self._holds_gil = wrong, seconds, holds_gil

    def skip(self, positions: int) -> None:
        """Positions are all it keeps."""
        self.length += positions

    def absorb(self, rows: np.ndarray) -> np.ndarray:
        """It looks at none."""
        return rows

    def trim_to(self, length: int) -> None:
        """Forget the positions behind the first `length`."""
        self.length = min(length, self.length)

    def busy(self) -> list[Span]:
        """When it was called since this was asked last."""
        busy, self._busy = self._busy, []
        return busy

    def __call__(
        self,
        rows: np.ndarray,
        block: np.ndarray,
        positions: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> np.ndarray:
        """Hidden states [b, H] whose logits are the largest for what comes next."""
        start = time.perf_counter()
        self.length += len(rows)
        places = self.length + np.arange(len(block)) if positions is None else positions
        tokens = [self._token(int(place)) for place in places]
        if self._holds_gil:
            hold_until(time.monotonic() + self._seconds - (time.perf_counter() - start))
        else:
            time.sleep(max(0.0, self._seconds - (time.perf_counter() - start)))
        self._busy.append((start, time.perf_counter()))
        return np.stack([self._directions(token) for token in tokens]).astype(np.float32)

    def _token(self, place: int) -> int:
        token = self._text[place] if place < len(self._text) else 0
        return (token + 1) % self._directions.vocabulary if self._wrong(place) else token
