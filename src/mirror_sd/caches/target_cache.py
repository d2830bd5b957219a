"""The caches of all the target's layers, for one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .rewind import Replayer, rewindable


@dataclass(frozen=True)
class Checkpoint:
    """The caches at an earlier moment.

    Attributes:
        length: committed rows.
        states: of each layer's cache.
    """

    length: int
    states: list[Any]


class TargetCache:
    """What the target remembers of one sequence.

    Args:
        layers: mlx-lm caches, one per layer, as `make_prompt_cache` gives them.
        replayer: advances recurrent states again after a rewind.

    Raises:
        UnsupportedError: a cache cannot be rewound; the message names its kind.
    """

    def __init__(self, layers: Sequence[Any], replayer: Replayer):
        self.layers = list(layers)
        self.length = 0  # committed rows
        self._written = 0  # rows that `rewind` may take back
        self._parts = [rewindable(cache, replayer) for cache in self.layers]

    def mark(self, rejectable: bool) -> None:
        """The model is about to write rows, of which `rewind` will keep all unless `rejectable`."""
        for part in self._parts:
            part.mark(rejectable)

    def written(self, rows: int) -> None:
        """The model has written `rows` rows since `mark`."""
        self._written = rows

    def rewind(self, keep: int) -> None:
        """Commit the first `keep` of the rows written since `mark`, forget the rest."""
        for part in self._parts:
            part.rewind(self._written, keep)
        self.length += keep
        self._written = 0

    def save(self) -> Checkpoint:
        """The present state; no pass may be uncommitted."""
        assert not self._written
        return Checkpoint(self.length, [part.save() for part in self._parts])

    def restore(self, checkpoint: Checkpoint) -> None:
        """Back to a saved state, from whatever was written behind it since."""
        for part, state in zip(self._parts, checkpoint.states, strict=True):
            part.restore(state)
        self.length, self._written = checkpoint.length, 0

    def trim_to(self, length: int) -> int:
        """Forget everything behind the first `length` rows, or everything where a cache cannot
        forget so much exactly.

        Returns:
            How many rows are left.
        """
        count = self.length - length
        assert count >= 0, f"cannot trim {self.length} rows to {length}"
        if all(part.can_trim(count) for part in self._parts):
            for part in self._parts:
                part.trim(count)
            self.length = length
        else:
            self.clear()
        return self.length

    def recover(self) -> None:
        """After an interruption at any point: only committed rows stay, or none where a cache
        cannot tell them apart.
        """
        self._written = 0
        if not all(part.recover(self.length) for part in self._parts):
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        for part in self._parts:
            part.clear()
        self.length = self._written = 0

    @property
    def arrays(self) -> list[Any]:
        """Everything to evaluate so that the caches are up to date."""
        return [cache.state for cache in self.layers]
