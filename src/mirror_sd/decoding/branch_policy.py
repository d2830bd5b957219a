"""Whether to draft beside the verify, behind which outcomes, and how deep.

A call takes a device the same time for any positions up to its room, so the question is how to
fill it: many outcomes with few drafted tokens each, or few with many. A hit saves the time of a
block; but a branch has not seen the features of the tokens that were just verified, so it may be
right less often, and a call that is still running when the verify is done must be waited for. All
of that is learnt from what happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .branches import Branch, fitting
from .survival import Survival, expected_tokens

DECAY = 0.97
WARM_UP = 2  # verifies without a call beside them at first, so that their time alone is known
SURE = 2  # calls that show what they cost
TRIALS = 8  # calls before hits are judged, unless even many would not pay for the cost
HOPE = 0.1  # the hit rate that is not ruled out until then, besides twice what is expected
LOOK_AGAIN = 64  # verifies after which the other choice is tried once
REMEMBERED = 9  # latest times of a kind; their median counts
PRIOR = 2.0  # calls for which the draft's own chances are taken at their word


@dataclass
class Mean:
    """A decayed mean."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Take in `value`, which stands for `weight` trials."""
        self.total = DECAY * self.total + value
        self.weight = DECAY * self.weight + weight

    @property
    def value(self) -> float:
        """Of one trial, 0 before any."""
        return self.total / self.weight if self.weight else 0.0


class BranchPolicy:
    """Decides on calls beside the verify by what they are expected to save.

    Args:
        most: outcomes of a call at most.
    """

    def __init__(self, most: int = 16):
        self.most = most
        self.launched = 0
        self.hits = 0
        self._own, self._ready = Survival(), Survival()
        self._block: deque[float] = deque(maxlen=REMEMBERED)
        self._per_token = Mean()
        self._waited = Mean()
        # Hits against what the draft's chances let expect, to correct them.
        self._caught, self._expected = Mean(PRIOR, PRIOR), Mean(PRIOR, PRIOR)
        self._windows: dict[tuple[int, bool], deque[float]] = {}
        self._verifies = 0
        self._same = 0  # verifies since the other choice was made

    def survival(self, confidences: Sequence[float], ready: bool) -> list[float]:
        """The chance of each drafted token, by the draft's confidence as that has turned out;
        `ready` if they come from a branch.
        """
        return (self._ready if ready else self._own).calibrated(confidences)

    def choose(self, branches: Sequence[Branch], length: int, longest: int, room: int) -> int:
        """Masks behind each of the outcomes, 0 for no call at all. There is one more than tokens
        to be proposed, where there may be: what it ranks is what the next outcomes are made of.

        Args:
            branches: the likeliest first.
            length: how many tokens are drafted at present.
            longest: how many the draft can.
            room: positions of a call.
        """
        self._verifies += 1
        depth, saved, hoped = self._best(branches, length, longest, room)
        if not depth or self._verifies <= WARM_UP:
            return 0
        trying = self.launched < SURE or (self.launched < TRIALS and hoped > 0)
        wanted = saved > 0 or trying
        if self._same >= LOOK_AGAIN:
            self._same = 0
            return 0 if wanted else depth
        self._same += 1
        return depth if wanted else 0

    def _best(
        self, branches: Sequence[Branch], length: int, longest: int, room: int
    ) -> tuple[int, float, float]:
        """The best number of masks, the seconds a call saves with it, and those that it would save
        if hits were much better than they seem.
        """
        found = 0, float("-inf"), float("-inf")
        cost = self._waited.value + self.slowed
        for depth in range(1, min(length, longest) + 1):
            masks = min(depth + 1, longest)
            kept = fitting(branches[: self.most], masks, room)
            if kept:
                hit = self._caught.value / max(self._expected.value, 1e-6)
                hit = min(1.0, hit * sum(branch.chance for branch in kept))
                gain = self.gain(length, depth)
                saved = hit * gain - cost
                if saved >= found[1]:
                    found = masks, saved, min(1.0, 2 * hit + HOPE) * gain - cost
        return found

    def gain(self, length: int, depth: int) -> float:
        """Seconds that a hit saves: a block's, less those for tokens that the branch gets wrong and
        a block would have had right.
        """
        if not self._block:
            return 0.0
        own = expected_tokens(self._own.chances(length))[-1]
        ready = expected_tokens(self._ready.chances(min(depth, length)))[-1]
        return median(self._block) - max(0.0, own - ready) * self._per_token.value

    @property
    def slowed(self) -> float:
        """Seconds that a call beside it makes a verify longer."""
        both = [
            (median(times) - median(self._windows[rows, False]))
            for (rows, launched), times in self._windows.items()
            if launched and (rows, False) in self._windows
        ]
        return max(0.0, median(both)) if both else 0.0

    def drafted(self, seconds: float) -> None:
        """A block of its own took so long, with nothing running before it."""
        self._block.append(seconds)

    def landed(self, hit: bool, chance: float, waited: float) -> None:
        """A call has ended.

        Args:
            hit: whether it held the outcome.
            chance: that it would, by the draft.
            waited: seconds that were waited for it.
        """
        self.launched += 1
        self.hits += hit
        self._caught.add(float(hit))
        self._expected.add(chance)
        self._waited.add(waited)

    def verified(
        self, drafted: int, accepted: int, ready: bool, confidences: Sequence[float] | None = None
    ) -> None:
        """So many of the drafted tokens were right; `ready` if they came from a branch."""
        (self._ready if ready else self._own).observe(drafted, accepted, confidences)

    def window(self, rows: int, launched: bool, seconds: float) -> None:
        """A verify of so many rows took so long, with or without a call beside it."""
        times = self._windows.setdefault((rows, launched), deque(maxlen=REMEMBERED))
        times.append(seconds)

    def passed(self, tokens: int, seconds: float) -> None:
        """Decoding gave so many tokens."""
        self._per_token.add(seconds, tokens)
