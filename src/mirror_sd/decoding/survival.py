"""How often drafted tokens are right: per position, and by the draft's own confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BINS = 10  # of confidence
BIN_DECAY = 0.995
HINT = 0.05  # weight of the first position's outcome for positions that were not reached


@dataclass
class _Rate:
    """A decayed share of hits with a prior."""

    hits: float
    trials: float

    @property
    def value(self) -> float:
        return self.hits / self.trials

    def observe(self, hit: float, decay: float, weight: float = 1.0) -> None:
        kept = 1 - (1 - decay) * weight
        self.hits = self.hits * kept + hit * weight
        self.trials = self.trials * kept + weight


class Survival:
    """The chance that each drafted position is right, given that all before it were.

    Mean accepted tokens would not do: they depend on how many were drafted, and a controller that
    used them would oscillate.

    Args:
        prior: the chances to start from, by position; the last one stands for all further ones.
        weight: how many trials the prior counts for.
        decay: what a trial still counts for after the next one of its position.
    """

    def __init__(self, prior: Sequence[float] = (0.7,), weight: float = 2.0, decay: float = 0.955):
        self._prior, self._weight, self._decay = list(prior), weight, decay
        self._positions: list[_Rate] = []
        # A confidence is taken at its word at first.
        self._bins = [_Rate((b + 0.5) / BINS * weight, weight) for b in range(BINS)]

    def observe(
        self, verified: int, accepted: int, confidences: Sequence[float] | None = None
    ) -> None:
        """A block of which `verified` tokens were verified and the first `accepted` were right.

        Where the rest was left out for lack of confidence, the next position counts with the chance
        that its confidence stands for: counting only what was worth verifying would flatter the
        draft. Positions that were not reached lean a little towards what the first one shows, so
        that a run of bad luck far out is not remembered for ever once short drafts are all that is
        tried.
        """
        outcomes = [float(p < accepted) for p in range(min(verified, accepted + 1))]
        for position, hit in enumerate(outcomes):
            if confidences is not None:
                self._bins[_bin(confidences[position])].observe(hit, BIN_DECAY)
        if confidences is not None and accepted >= verified < len(confidences):
            outcomes.append(self._bins[_bin(confidences[verified])].value)
        if not outcomes:
            return
        self._reach(max(verified, len(outcomes)))
        for position, rate in enumerate(self._positions):
            if position < len(outcomes):
                rate.observe(outcomes[position], self._decay)
            else:
                rate.observe(outcomes[0], self._decay, HINT)

    def chances(self, length: int) -> list[float]:
        """The chance of each of the first `length` positions."""
        self._reach(length)
        return [rate.value for rate in self._positions[:length]]

    def _reach(self, length: int) -> None:
        while len(self._positions) < length:
            prior = self._prior[min(len(self._positions), len(self._prior) - 1)]
            self._positions.append(_Rate(prior * self._weight, self._weight))

    def as_list(self) -> list[float]:
        """What is known, as a prior for the next time."""
        return [round(rate.value, 4) for rate in self._positions]

    def calibrated(self, confidences: Sequence[float]) -> list[float]:
        """The chance of each position by the draft's confidence in it, as that has turned out."""
        return [self._bins[_bin(confidence)].value for confidence in confidences]


def expected_tokens(chances: Sequence[float]) -> list[float]:
    """Expected tokens of a cycle that drafts 0, 1, ... of these positions: [n + 1] values."""
    expected, reached = [1.0], 1.0
    for chance in chances:
        reached *= chance
        expected.append(expected[-1] + reached)
    return expected


def _bin(confidence: float) -> int:
    return min(BINS - 1, max(0, int(confidence * BINS)))
