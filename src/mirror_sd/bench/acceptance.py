"""Acceptance of a draft that is being trained, by actually decoding with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..decoding.acceptance import GreedyAcceptance
from ..decoding.drafter import BlockDraft, DFlashDrafter
from ..decoding.length import FixedLength
from ..decoding.output import until
from ..decoding.session import Session
from ..decoding.statistics import Statistics
from ..models.target import Target, TargetModel


def decode(
    draft: BlockDraft,
    target: TargetModel,
    eos: frozenset[int],
    prompt: Sequence[int],
    tokens: int,
) -> Statistics:
    """Answer a prompt greedily, with whole blocks of the draft."""
    drafter = DFlashDrafter(draft, target)
    session = Session(
        Target(target, drafter.taps),
        [drafter],
        GreedyAcceptance(),
        FixedLength(drafter.longest),
    )
    session.prefill(prompt)
    for _ in session.stream(tokens, until(eos)):
        pass
    return session.statistics


class HeldOut:
    """Greedy decoding of held-out prompts with whole blocks.

    Args:
        target: verifies.
        eos_token_ids: ids that end an answer.
        prompts: token ids.
        tokens: of an answer at most.
    """

    def __init__(
        self,
        target: TargetModel,
        eos_token_ids: Iterable[int],
        prompts: Sequence[Sequence[int]],
        tokens: int = 32,
    ):
        self._target, self._eos = target, frozenset(eos_token_ids)
        self._prompts, self._tokens = prompts, tokens

    def __call__(self, draft: BlockDraft) -> float:
        """Mean tokens per target pass, over all prompts together."""
        passes = tokens = 0
        for prompt in self._prompts:
            found = decode(draft, self._target, self._eos, prompt, self._tokens)
            passes += found.passes
            tokens += found.tokens
        return tokens / passes
