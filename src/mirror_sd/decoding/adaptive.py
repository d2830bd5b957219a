"""A length policy that drafts what pays on this machine, and else nothing.

For each source and length n it compares tokens per second, E(n) / (draft(n) + verify(n + 1)), with
those of plain decoding, 1 / verify(1). E comes from survival by position, the costs from
measurements. Where plain decoding wins it looks again now and then, at a bounded loss. In exact
decoding, drafted tokens may have to be run again one by one; what that has cost per token is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .length import Outcome, Plan
from .profile import Profile
from .survival import Survival, expected_tokens

PROBE_BUDGET = 0.015  # of the time lately spent may be lost by looking whether drafting pays
STICKINESS = 1.03  # another draft must be so much better; plain decoding need not: never slower
BUDGET_DECAY = 0.99  # per cycle: what was not lost by probes long ago is not spent all at once
WORTH_A_LOOK = 0.8  # of the best rate: a length expected to do so well is measured once
FOLLOW_UP = 3  # probes that may follow at once after one that was right
CLOSE = 1.25  # speed over plain up to which the cost of plain decoding must be fresh
REFRESH_EVERY = 48  # drafted cycles after which plain decoding is measured again
REFRESH_CYCLES = 3  # plain cycles of such a measurement; the first and the last are not steady
REDO_DECAY = 0.999  # per drafted cycle, of what is known about running rows again
WARM_UP = 1  # cycles whose times are not believed: kernels are compiled and pages touched


class AdaptiveLength:
    """Chooses source and length by measured costs and survival.

    Args:
        profile: what is known of this machine and pair; refined while running.
    """

    trims = True

    def __init__(self, profile: Profile | None = None):
        self.profile = profile or Profile()
        self.costs = self.profile.costs
        self.survival = self.profile.survival
        self._elapsed = 0.0
        self._lost = 0.0
        self._cycles = 0
        self._follow_ups = 0
        self._current: tuple[str | None, int] = (None, 0)
        self._plain_due = 0
        self._since_plain = 0
        self._redo_seconds = 0.0  # decayed sums
        self._drafted_tokens = 0.0

    def plan(self, offers: Mapping[str, int], depth: int) -> Plan:
        """The choice with the highest expected tokens per second."""
        offers = {source: longest for source, longest in offers.items() if longest > 0}
        if self._plain_due:
            return Plan(None, 0, "measure plain decoding")
        unknown = self._calibration(offers, depth)
        if unknown is not None:
            return unknown
        plain = self.costs.verify(1, depth)
        assert plain is not None
        rates: dict[tuple[str | None, int], float] = {(None, 0): 1 / plain}
        for source, longest in offers.items():
            for length, rate in enumerate(self._rates(source, longest, depth), 1):
                rates[source, length] = rate
        best = max(rates, key=lambda choice: rates[choice])
        current = self._current if self._current in rates else best
        needed = STICKINESS if best[1] else 1.0
        if rates[best] < needed * rates[current]:
            best = current
        self._current = best
        if best == (None, 0):
            probe = self._probe(rates, depth, plain)
            if probe is not None:
                return probe
        elif self._refresh(rates[best] * plain):
            return Plan(None, 0, "measure plain decoding")
        else:
            look = self._look_around(best, rates)
            if look is not None:
                return look
        gain = rates[best] * plain
        return Plan(*best, f"expected {gain:.2f}x plain" if best[1] else "plain is fastest")

    def trim(self, plan: Plan, confidences: Sequence[float], depth: int) -> int:
        """Verify another token only while it is expected to bring more than its time would
        otherwise.
        """
        if plan.source is None or "probe" in plan.reason or "measure" in plan.reason:
            return plan.length
        survival = self._survival(plan.source)
        expected = expected_tokens(survival.calibrated(confidences))
        plain, best, length = self.costs.verify(1, depth), 0.0, plan.length
        if plain is None:
            return plan.length
        rate = max(1 / plain, self._rates(plan.source, plan.length, depth)[-1])
        for count, tokens in enumerate(expected):
            worth = tokens - rate * (self.costs.verify(count + 1, depth) or plain)
            if count == 0 or worth > best:
                best, length = worth, count
        return length

    def observe(self, outcome: Outcome) -> None:
        """Refine costs and survival, and count what a probe has lost."""
        self._cycles += 1
        if self._cycles <= WARM_UP:
            return
        self._schedule(outcome)
        spent = outcome.draft_seconds + outcome.verify_seconds + outcome.redo_seconds
        self._redo_seconds += outcome.redo_seconds
        self._elapsed = BUDGET_DECAY * self._elapsed + spent
        self._lost *= BUDGET_DECAY
        if outcome.source is not None or outcome.steady or self.costs.verify(1, 0) is None:
            rows = outcome.verified + 1
            self.costs.observe_verify(rows, outcome.depth, outcome.verify_seconds)
        if self._current == (None, 0) and not (outcome.source is None and outcome.steady):
            self._charge(spent, outcome)
        if outcome.source is None:
            return
        self._redo_seconds *= REDO_DECAY
        self._drafted_tokens = self._drafted_tokens * REDO_DECAY + outcome.emitted
        self.costs.observe_draft(outcome.source, outcome.drafted, outcome.draft_seconds)
        survival = self._survival(outcome.source)
        survival.observe(outcome.verified, outcome.accepted, outcome.confidences)
        hit = outcome.accepted == outcome.verified > 0
        self._follow_ups = self._follow_ups + 1 if hit else 0

    def _schedule(self, outcome: Outcome) -> None:
        """Count what `_refresh` goes by."""
        if outcome.source is None:
            self._plain_due = max(0, self._plain_due - 1)
            self._since_plain = 0
        else:
            self._since_plain += 1

    def _charge(self, spent: float, outcome: Outcome) -> None:
        """Where plain decoding is the choice: what a probe, with the cycles at its borders, took
        longer than plain decoding of the same tokens.
        """
        plain = self.costs.verify(1, outcome.depth)
        if plain is not None:
            self._lost += spent - outcome.emitted * plain

    def finish(self) -> None:
        """Keep what was learnt."""
        self.profile.save()

    def _calibration(self, offers: Mapping[str, int], depth: int) -> Plan | None:
        """The first cycles on a machine: measure plain decoding and a few lengths."""
        if self._cycles < WARM_UP or self.costs.verify(1, depth) is None:
            return Plan(None, 0, "measure plain decoding")
        for source, longest in offers.items():
            if self.costs.draft(source, longest) is None:
                return Plan(source, longest, "measure drafting")
        for source, longest in offers.items():
            for length in (longest, (longest + 1) // 2, 1):
                if not self.costs.measured_near(length + 1):
                    return Plan(source, length, "measure verifying")
        return None

    def _refresh(self, gain: float) -> bool:
        """Whether plain decoding should be measured again: only drafts have run for long, and they
        gain so little that a stale cost could make the difference.
        """
        if self._since_plain < REFRESH_EVERY or gain > CLOSE:
            return False
        self._plain_due, self._since_plain = REFRESH_CYCLES, 0
        return True

    def _look_around(
        self,
        best: tuple[str | None, int],
        rates: Mapping[tuple[str | None, int], float],
    ) -> Plan | None:
        """A neighbouring length that was never measured may stand on a lower step."""
        source, length = best
        for other in (length + 1, length - 1):
            near = rates.get((source, other), 0.0) >= WORTH_A_LOOK * rates[best]
            if other and near and not self.costs.measured(other + 1):
                return Plan(source, other, "measure verifying")
        return None

    def _probe(
        self, rates: Mapping[tuple[str | None, int], float], depth: int, plain: float
    ) -> Plan | None:
        """Where plain decoding is fastest: the least bad draft, if the budget allows a look."""
        drafts = {choice: rate for choice, rate in rates.items() if choice[1]}
        if not drafts:
            return None
        source, length = max(drafts, key=lambda choice: drafts[choice])
        assert source is not None
        tokens = self._expected(source, length)[-1]
        loss = tokens * (1 / drafts[source, length] - plain)
        if 0 < self._follow_ups <= FOLLOW_UP:
            return Plan(source, length, "probe again after a hit")
        if self._lost + max(0.0, loss) > PROBE_BUDGET * self._elapsed:
            return None
        return Plan(source, length, "probe")

    def _rates(self, source: str, longest: int, depth: int) -> list[float]:
        """Tokens per second for each length from 1 to the longest."""
        redo = self._redo_seconds / self._drafted_tokens if self._drafted_tokens else 0.0
        rates = []
        for length, tokens in enumerate(self._expected(source, longest)):
            if length:
                seconds = self.costs.draft(source, length) or 0.0
                seconds += self.costs.verify(length + 1, depth) or 0.0
                rates.append(tokens / (seconds + redo * tokens))
        return rates

    def _expected(self, source: str, longest: int) -> list[float]:
        """Tokens of a cycle that drafts 0, 1, ... of them."""
        return expected_tokens(self._survival(source).chances(longest))

    def _survival(self, source: str) -> Survival:
        return self.survival.setdefault(source, Survival())
