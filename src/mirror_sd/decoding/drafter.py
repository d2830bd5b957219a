"""Who proposes the next tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ..models.draft import DFlashDraft
from ..models.target import TargetModel


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

    @property
    def probabilities(self) -> mx.array | None:
        """The distribution each token was drawn from, over the vocabulary or the candidates."""
        return None if self.logits is None else mx.softmax(self.logits, axis=-1, precise=True)

    @classmethod
    def none(cls) -> Proposal:
        """No tokens: the cycle is one of plain decoding."""
        return cls(mx.zeros((0,), mx.uint32))

    def __len__(self) -> int:
        return self.tokens.shape[0]


class Drafter(Protocol):
    """Proposes tokens; it may learn from the target's features of committed tokens.

    Attributes:
        taps: target layers whose outputs it wants, () for none.
        longest: the most tokens it can propose at once.
        length: how many committed tokens it has been given.
    """

    taps: tuple[int, ...]
    longest: int
    length: int

    def extend(self, features: mx.array | None, count: int) -> None:
        """Take in `count` committed tokens with their features [1, count, taps * H]."""

    def propose(self, anchor: int, length: int) -> Proposal:
        """`length` >= 1 tokens to follow the anchor, the last token that is certain."""

    def trim_to(self, length: int) -> None:
        """Forget all committed tokens behind the first `length`."""

    def settle(self) -> None:
        """Finish pending work on the context, so that no lazy graph piles up."""


class NoDrafter:
    """Proposes nothing: plain decoding."""

    taps: tuple[int, ...] = ()
    longest = 0

    def __init__(self) -> None:
        self.length = 0

    def extend(self, features: mx.array | None, count: int) -> None:
        """Count the tokens."""
        self.length += count

    def propose(self, anchor: int, length: int) -> Proposal:
        """Nothing, whatever is asked for."""
        return Proposal.none()

    def trim_to(self, length: int) -> None:
        """Forget tokens."""
        self.length = length

    def settle(self) -> None:
        """Nothing is pending."""


class DFlashDrafter:
    """Drafts a block in one pass (arXiv 2602.06036), with the target's embedding and head.

    Args:
        draft: the draft's weights.
        target: whose embedding and head it borrows.
        window: bounds the context of full-attention layers to the latest `window` rows, with the
            first `sinks` rows besides; None keeps all.
        sinks: see `window`.
    """

    def __init__(
        self, draft: DFlashDraft, target: TargetModel, window: int | None = None, sinks: int = 4
    ):
        self.taps = draft.config.taps
        self.longest = draft.config.block_size - 1
        self.length = 0
        self._draft = draft
        self._target = target
        self._context = draft.make_context(window, sinks)

    def extend(self, features: mx.array | None, count: int) -> None:
        """Project the features into every layer's context."""
        assert features is not None
        self._draft.extend(features, self._context)
        self.length += count

    def propose(self, anchor: int, length: int) -> Proposal:
        """A token for each of `length` masked positions."""
        config = self._draft.config
        block = mx.array([[anchor] + [config.mask_token_id] * length])
        hidden = self._draft(self._target.embed(block), self._context)[0, 1:]
        scaled = hidden * config.output_multiplier if config.output_multiplier != 1.0 else hidden
        logits = self._target.logits(scaled, config.logit_softcap)  # the head is linear
        chosen = self._draft.select(hidden, logits, anchor)
        return Proposal(chosen.tokens, chosen.scores, chosen.candidates)

    def trim_to(self, length: int) -> None:
        """Shorten every layer's context."""
        for cache in self._context:
            cache.trim_to(length)
        self.length = length

    def settle(self) -> None:
        """Evaluate the context's buffers."""
        mx.eval([cache.arrays for cache in self._context])
