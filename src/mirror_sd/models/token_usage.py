"""How often the target says each token: what a smaller vocabulary for drafting goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

SIZES = (2048, 4096, 8192, 16384, 32768, 65536)  # vocabularies that are worth comparing
ENOUGH = 2000  # tokens after which the counts say more than nothing
KEPT = 32768  # token ids that are remembered across runs


class TokenUsage:
    """Counts what the target says, and how much of it vocabularies of several sizes would hold.

    A vocabulary is the likeliest tokens by what was counted before the answer, and the tokens of
    the context. Shares are measured on text that came after the counts, so they do not flatter.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._places: dict[int, int] = {}
        self._held = dict.fromkeys(SIZES, 0)
        self._judged = 0

    @property
    def total(self) -> int:
        """Tokens counted."""
        return self._counts.total()

    @property
    def is_enough(self) -> bool:
        """Whether shares have been measured over enough text."""
        return self._judged >= ENOUGH

    def order(self, prior: Sequence[int] | None) -> list[int] | None:
        """Ids, the likeliest first: by counts once there are enough, else the prior."""
        if self.total < ENOUGH:
            return list(prior) if prior else None
        counted = [token for token, _ in self._counts.most_common()]
        known = set(counted)
        return counted + [token for token in prior or () if token not in known]

    def judge(self, order: Sequence[int]) -> None:
        """From here on, measure vocabularies that take the first tokens of this order."""
        self._places = {token: place for place, token in enumerate(order)}

    def observe(self, token: int, in_context: bool) -> None:
        """The target has said a token."""
        self._counts[token] += 1
        if not self._places:
            return
        self._judged += 1
        place = -1 if in_context else self._places.get(token, 1 << 62)
        for size in SIZES:
            self._held[size] += place < size

    def share(self, size: int | None) -> float:
        """Which share of the target's tokens a vocabulary of this size holds."""
        if size is None:
            return 1.0
        return self._held[size] / self._judged if self._judged else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "counts": [list(item) for item in self._counts.most_common(KEPT)],
            "held": {str(size): held for size, held in self._held.items()},
            "judged": self._judged,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TokenUsage:
        """From `as_dict`."""
        usage = cls()
        usage._counts = Counter({int(token): int(count) for token, count in content["counts"]})
        usage._held = {size: int(content["held"][str(size)]) for size in SIZES}
        usage._judged = int(content["judged"])
        return usage
