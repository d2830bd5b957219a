"""What is accepted: the one place where losslessness is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from .drafter import Proposal

# Logits of a batched and of a one-row pass differ by some units in the last place; in float32 the
# sums over a layer dominate, hence the floor.
TIE_UNITS = 4
TIE_FLOOR = 1e-3


@dataclass(frozen=True)
class Decision:
    """The outcome of one verify; lazy arrays.

    Attributes:
        accepted: scalar, how many drafted tokens are valid.
        emitted: scalar, how many of `tokens` may go out: `accepted + 1`, or fewer if the rest must
            be decided by a pass over a single row.
        tokens: [n + 1] ids; the first `accepted + 1` are what the target says: the valid drafted
            tokens and the target's own next one.
    """

    accepted: mx.array
    emitted: mx.array
    tokens: mx.array


class Acceptance(Protocol):
    """Decides how much of a proposal the target would have said itself."""

    def __call__(self, logits: mx.array, proposal: Proposal) -> Decision:
        """Judge `proposal`, n tokens, by the target's logits [n + 1, V]. Must stay lazy. Without a
        proposal (n = 0) the one token must be emitted.
        """


class GreedyAcceptance:
    """The target's likeliest token at every position: the text of greedy plain decoding.

    mlx-lm takes the argmax of log probabilities, and in a 16-bit format their rounding can decide
    between close tokens in another way than that of logits, so they are what is compared here.
    """

    def __call__(self, logits: mx.array, proposal: Proposal) -> Decision:
        """Accept the longest prefix that equals the target's own choices."""
        choices = mx.argmax(_logprobs(logits), axis=-1)
        accepted = _leading(choices[: len(proposal)] == proposal.tokens)
        return Decision(accepted, accepted + 1, choices)


class ExactGreedyAcceptance(GreedyAcceptance):
    """Greedy, but a choice between two nearly equal tokens is left to a pass over a single row, as
    plain decoding makes it. Costs one extra pass per such choice.

    Args:
        tie_margin: two logits closer than this are nearly equal; None takes a few units in the last
            place of the largest one.
    """

    def __init__(self, tie_margin: float | None = None):
        self._tie_margin = tie_margin

    def __call__(self, logits: mx.array, proposal: Proposal) -> Decision:
        """Emit only what stands before the first near tie."""
        decision = super().__call__(logits, proposal)
        if not len(proposal):
            return decision
        best = mx.topk(logits.astype(mx.float32), 2, axis=-1)
        clear = mx.abs(best[:, 0] - best[:, 1]) > self._margin(logits)
        emitted = mx.minimum(decision.emitted, _leading(clear))
        return Decision(decision.accepted, emitted, decision.tokens)

    def _margin(self, logits: mx.array) -> mx.array | float:
        if self._tie_margin is not None:
            return self._tie_margin
        unit = mx.finfo(logits.dtype).eps
        return mx.maximum(TIE_FLOOR, TIE_UNITS * unit * mx.abs(logits).max().astype(mx.float32))


def _logprobs(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _leading(flags: mx.array) -> mx.array:
    """How many flags are set before the first that is not."""
    return mx.cumprod(flags.astype(mx.int32)).sum()
