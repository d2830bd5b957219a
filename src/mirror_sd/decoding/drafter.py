"""Who proposes the next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import mlx.core as mx

from ..models.dflash2 import Selection
from ..models.draft_config import DraftConfig
from ..models.draft_head import DraftHead
from ..models.target import TargetModel
from .proposal import Draw, Proposal
from .work import NO_REPORT, Report

FLUSH_ROWS = 64  # features wait for the next draft, but never more than so many


@dataclass(frozen=True)
class Streamed:
    """Context rows that a drafter had prepared beside the target's pass over their tokens.

    Attributes:
        rows: [1, n, width], of the anchor and the drafted tokens.
    """

    rows: mx.array

    def first(self, count: int) -> Streamed:
        """Of the first `count` tokens."""
        return Streamed(self.rows[:, :count])


# What a drafter is told of committed tokens besides themselves.
Context: TypeAlias = mx.array | Streamed | None


class Drafter(Protocol):
    """Proposes tokens; it may learn from the target's features of committed tokens.

    Attributes:
        name: for plans, costs and traces.
        taps: target layers whose outputs it wants, () for none.
        longest: the most tokens it can ever propose at once.
        length: how many committed tokens it has been given.
    """

    name: str
    taps: tuple[int, ...]
    longest: int

    @property
    def length(self) -> int:
        """How many committed tokens it has been given."""

    def extend(self, tokens: Sequence[int], context: Context, said: bool = False) -> None:
        """Take in committed tokens with their features [1, n, taps * H], or with what `stream` made
        of them; `said` if they are the target's own, not the prompt's.
        """

    def offer(self, anchor: int | None) -> int:
        """How many tokens it can propose after this anchor; None: whatever it will be."""

    def propose(self, anchor: int, length: int, draw: Draw) -> Proposal:
        """`length` >= 1 tokens, chosen by `draw`, to follow the last certain one, the anchor."""

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """These of its tokens are being verified, and until that is done nothing is asked of it."""

    def stream(self, taps: Sequence[mx.array]) -> Streamed | None:
        """Context rows to be computed within the pass that verifies its tokens, of single taps
        [1, n, H] of the anchor and these tokens; None if it takes the features afterwards.
        """

    def report(self) -> Report:
        """What its own device has done since this was asked last."""

    def trim_to(self, length: int) -> None:
        """Forget all committed tokens behind the first `length`."""

    def settle(self) -> None:
        """Finish pending work on the context, so that no lazy graph piles up."""


class BlockDraft(Protocol):
    """A DFlash draft, wherever it runs."""

    config: DraftConfig

    def make_context(self, window: int | None = None, sinks: int = 0) -> Sequence[Any]:
        """An empty context: objects with `length`, `arrays` and `trim_to`, as `ContextCache`."""

    def extend(self, features: mx.array, context: Any) -> None:
        """Append features [1, n, taps * H] of committed tokens."""

    def __call__(self, embedded: mx.array, context: Any) -> mx.array:
        """Hidden states [1, b, H] of an embedded block."""

    def select(
        self,
        hidden: mx.array,
        logits: mx.array,
        anchor: int,
        draw: Draw,
        ids: mx.array | None = None,
    ) -> Selection:
        """The tokens to propose."""


class DFlashDrafter:
    """Drafts a block in one pass (arXiv 2602.06036), with the target's embedding and head.

    Args:
        draft: the draft's weights.
        target: whose embedding and head it borrows.
        window: bounds the context of full-attention layers to the latest `window` rows, with the
            first `sinks` rows besides; None keeps all.
        sinks: see `window`.
        head: scores its tokens; None takes the target's over the whole vocabulary.
    """

    name = "dflash"

    def __init__(
        self,
        draft: BlockDraft,
        target: TargetModel,
        window: int | None = None,
        sinks: int = 4,
        head: DraftHead | None = None,
    ):
        self.taps = draft.config.taps
        self.longest = draft.config.block_size - 1
        self._length = 0
        self._draft = draft
        self._target = target
        self._head = head or DraftHead(target)
        self._context = draft.make_context(window, sinks)
        # While plain decoding pays more, features of single tokens gather here and cost nothing.
        self._pending: list[mx.array] = []

    @property
    def length(self) -> int:
        """How many committed tokens it has been given."""
        return self._length

    def extend(self, tokens: Sequence[int], context: Context, said: bool = False) -> None:
        """Keep the features for the next draft."""
        self._keep(context)
        self._head.include(tokens, said)
        self._length += len(tokens)

    def offer(self, anchor: int | None) -> int:
        """A whole block, always."""
        return self.longest

    def propose(self, anchor: int, length: int, draw: Draw) -> Proposal:
        """A token for each of `length` masked positions."""
        self._flush()
        config = self._draft.config
        block = mx.array([[anchor] + [config.mask_token_id] * length])
        hidden = self._draft(self._target.embed(block), self._context)[0, 1:]
        scaled = hidden * config.output_multiplier if config.output_multiplier != 1.0 else hidden
        logits, ids = self._head(scaled, config.logit_softcap)  # the head is linear
        chosen = self._draft.select(hidden, logits, anchor, draw, ids)
        return Proposal(chosen.tokens, chosen.scores, chosen.candidates)

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """It runs where the target runs: nothing."""

    def stream(self, taps: Sequence[mx.array]) -> Streamed | None:
        """Nothing: features wait until they are wanted."""
        return None

    def report(self) -> Report:
        """It has no device of its own."""
        return NO_REPORT

    def trim_to(self, length: int) -> None:
        """Shorten every layer's context."""
        self._flush()
        for cache in self._context:
            cache.trim_to(min(length, cache.length))
        self._length = length

    def settle(self) -> None:
        """Project what is pending and evaluate the context's buffers."""
        self._flush()
        mx.eval([cache.arrays for cache in self._context])

    def _keep(self, context: Context) -> None:
        assert isinstance(context, mx.array)
        self._pending.append(context)
        if sum(part.shape[1] for part in self._pending) >= FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Project pending features into every layer's context."""
        if self._pending:
            pending, self._pending = self._pending, []
            self._draft.extend(mx.concatenate(pending, axis=1), self._context)
