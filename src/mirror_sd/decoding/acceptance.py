"""What is accepted: the one place where losslessness is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from .drafter import Proposal


@dataclass(frozen=True)
class Decision:
    """The outcome of one verify; lazy arrays.

    Attributes:
        accepted: scalar, how many drafted tokens are valid.
        tokens: [n + 1] ids; the first `accepted + 1` are what the target says: the valid drafted
            tokens and the target's own next one.
    """

    accepted: mx.array
    tokens: mx.array


class Acceptance(Protocol):
    """Decides how much of a proposal the target would have said itself."""

    def __call__(self, logits: mx.array, proposal: Proposal) -> Decision:
        """Judge `proposal`, n tokens, by the target's logits [n + 1, V]. Must stay lazy."""


class GreedyAcceptance:
    """The target's argmax at every position, so the text is that of greedy plain decoding."""

    def __call__(self, logits: mx.array, proposal: Proposal) -> Decision:
        """Accept the longest prefix that equals the target's own choices."""
        choices = mx.argmax(logits, axis=-1)
        matches = choices[: len(proposal)] == proposal.tokens
        return Decision(mx.cumprod(matches.astype(mx.int32)).sum(), choices)
