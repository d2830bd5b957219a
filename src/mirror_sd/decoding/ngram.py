"""Drafting by copying: what followed the latest tokens the last time they stood in the text.

Known as prompt lookup. It costs nothing and is right where an answer repeats its context: edits,
code with recurring names, quoted passages.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from .drafter import Context, Streamed
from .proposal import Draw, Proposal
from .work import Report

LONGEST_MATCH = 4
SHORTEST_MATCH = 2


class NgramDrafter:
    """Copies the continuation of the latest occurrence of the last few tokens.

    Args:
        longest: the most tokens it proposes at once.
    """

    name = "ngram"
    taps: tuple[int, ...] = ()

    def __init__(self, longest: int):
        self.longest = longest
        self._tokens: list[int] = []
        # For each length, where an n-gram was last seen: the index behind it.
        self._last: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST_MATCH + 1)]

    @property
    def length(self) -> int:
        """How many committed tokens it knows."""
        return len(self._tokens)

    def extend(self, tokens: Sequence[int], context: Context, said: bool = False) -> None:
        """Index committed tokens."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            for size in range(SHORTEST_MATCH, LONGEST_MATCH + 1):
                if end >= size:
                    self._last[size][tuple(self._tokens[end - size :])] = end

    def offer(self, anchor: int | None) -> int:
        """How many tokens followed the latest match."""
        return 0 if anchor is None else len(self._continuation(anchor, self.longest))

    def propose(self, anchor: int, length: int, draw: Draw) -> Proposal:
        """The continuation; it has no scores, so `draw` has no say."""
        return Proposal(mx.array(self._continuation(anchor, length)))

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """Nothing to prepare."""

    def stream(self, taps: Sequence[mx.array]) -> Streamed | None:
        """Nothing: it needs no features."""
        return None

    def report(self) -> Report:
        """Nothing: it has no device."""
        return Report()

    def trim_to(self, length: int) -> None:
        """Forget tokens; the index is built anew."""
        if length < len(self._tokens):
            kept, self._tokens = self._tokens[:length], []
            self._last = [{} for _ in self._last]
            self.extend(kept, None)

    def settle(self) -> None:
        """Nothing is pending."""

    def _continuation(self, anchor: int, length: int) -> list[int]:
        for size in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            if len(self._tokens) < size - 1:
                continue
            recent = (*self._tokens[len(self._tokens) - size + 1 :], anchor)
            end = self._last[size].get(recent)
            if end is not None:
                return self._tokens[end : end + length]
        return []
