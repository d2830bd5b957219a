"""What a drafter proposes."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ..models.dflash2 import Draw

__all__ = ["Draw", "Proposal"]


@dataclass(frozen=True)
class Proposal:
    """Tokens that may follow the anchor; lazy arrays.

    Attributes:
        tokens: [n] ids.
        logits: [n, V] the drafter's scores, [n, k] where it chose among `candidates` only, or None
            if it has none.
        candidates: [n, k] ids, None where any token could be proposed.
    """

    tokens: mx.array
    logits: mx.array | None = None
    candidates: mx.array | None = None

    @classmethod
    def none(cls) -> Proposal:
        """No tokens: the cycle is one of plain decoding."""
        return cls(mx.array([], mx.uint32))

    def first(self, count: int) -> Proposal:
        """Its first `count` tokens. The draft must have been computed: they are read."""
        if count == len(self):
            return self
        return Proposal(
            mx.array(self.tokens.tolist()[:count], self.tokens.dtype),
            None if self.logits is None else self.logits[:count],
            None if self.candidates is None else self.candidates[:count],
        )

    @property
    def confidences(self) -> mx.array | None:
        """[n] how likely the drafter thinks its likeliest token, None if it has no scores."""
        if self.logits is None or not len(self):
            return None
        best = self.logits.max(axis=-1) - mx.logsumexp(self.logits, axis=-1)
        return mx.exp(best.astype(mx.float32))

    @property
    def probabilities(self) -> mx.array | None:
        """The drafter's distributions, over the vocabulary or the candidates."""
        return None if self.logits is None else mx.softmax(self.logits, axis=-1, precise=True)

    def __len__(self) -> int:
        return self.tokens.shape[0]
