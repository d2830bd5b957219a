"""How much to draft next."""

from __future__ import annotations

from typing import Protocol


class LengthPolicy(Protocol):
    """Chooses the number of tokens to draft in the next cycle."""

    def next(self) -> int:
        """How many tokens to draft; 0 is plain decoding."""

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a cycle's outcome."""


class FixedLength:
    """Always the same number.

    Args:
        length: tokens to draft, block size - 1.
    """

    def __init__(self, length: int):
        self._length = length

    def next(self) -> int:
        """The fixed number."""
        return self._length

    def observe(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""
