"""The forward passes of an answer, run again on their own: what the loop itself costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..decoding.acceptance import GreedyAcceptance
from ..decoding.drafter import Drafter
from ..decoding.statistics import Cycle
from ..models.target import Target, TargetModel


@dataclass(frozen=True)
class ForwardTimes:
    """Seconds of the bare forward passes of all cycles."""

    target: float
    draft: float

    @property
    def total(self) -> float:
        """Both, one after the other."""
        return self.target + self.draft


def forward_times(
    target: TargetModel, drafter: Drafter, prompt: Sequence[int], cycles: Sequence[Cycle]
) -> ForwardTimes:
    """Repeat the passes of recorded cycles, same rows and same context, and nothing else.

    Args:
        target: as in the recorded run.
        drafter: a fresh one, as in the recorded run.
        prompt: the prompt's tokens.
        cycles: the recorded run.
    """
    sequence = Target(target, drafter.taps)
    start = 0
    for count, features in sequence.prefill(prompt[:-1]):
        drafter.extend(prompt[start : start + count], features)
        drafter.settle()
        start += count
    anchor = prompt[-1]
    target_seconds = draft_seconds = 0.0
    for cycle in cycles:
        begun = time.perf_counter()
        if cycle.drafted:
            mx.eval(drafter.propose(anchor, cycle.drafted, _greedy).tokens)
        drafted_at = time.perf_counter()
        said = [anchor, *cycle.tokens[:-1]]
        block = said + [anchor] * (len(cycle.proposed) + 1 - len(said))
        verification = sequence.verify(mx.array(block))
        mx.eval(verification.logits, verification.features)
        target_seconds += time.perf_counter() - drafted_at
        draft_seconds += drafted_at - begun
        rows = len(cycle.tokens)
        sequence.commit(rows)
        features = verification.features
        drafter.extend(said, None if features is None else features[:, :rows])
        anchor = cycle.tokens[-1]
    return ForwardTimes(target_seconds, draft_seconds)


def _greedy(scores: mx.array, offset: int, candidates: mx.array | None) -> mx.array:
    return GreedyAcceptance().draw(scores, offset, candidates)
