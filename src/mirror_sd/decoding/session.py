"""The one loop: draft, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence

import mlx.core as mx
from mlx_lm.generate import generation_stream

from ..errors import PromptError
from ..models.target import Target
from .acceptance import Acceptance
from .dispatch import dispatch
from .drafter import Drafter, Proposal
from .length import LengthPolicy
from .statistics import Cycle, Statistics

CLEAR_CACHE_EVERY = 256  # tokens; as mlx-lm does
PrefillProgress = Callable[[int, int], None]


class Session:
    """One conversation: a target and a drafter with their caches, kept from answer to answer.

    Args:
        target: the sequence on the target.
        drafter: who proposes.
        acceptance: who decides.
        policy: how much to draft.
    """

    def __init__(
        self, target: Target, drafter: Drafter, acceptance: Acceptance, policy: LengthPolicy
    ):
        self.target = target
        self.drafter = drafter
        self.acceptance = acceptance
        self.policy = policy
        self.history: list[int] = []  # the tokens whose rows the target's caches hold
        self.anchor: int | None = None  # the last certain token, not in the caches yet
        self.statistics = Statistics()
        self._undecided = False

    def prefill(self, prompt: Sequence[int], progress: PrefillProgress | None = None) -> None:
        """Take in a prompt, reusing the caches as far as it repeats the conversation so far.

        Args:
            prompt: all token ids from the start of the conversation.
            progress: told (tokens done, tokens in all) after each chunk.

        Raises:
            PromptError: the prompt is empty or longer than the model allows.
        """
        self._check_prompt(prompt)
        start = time.perf_counter()
        reused = self._reuse(prompt)
        try:
            with mx.stream(generation_stream):
                for count, features in self.target.prefill(prompt[reused:-1]):
                    self.drafter.extend(features, count)
                    self.drafter.settle()
                    done = len(self.history) + count
                    self.history.extend(prompt[len(self.history) : done])
                    if progress:
                        progress(done + 1, len(prompt))
        except BaseException:
            self._recover()
            raise
        self.anchor = prompt[-1]
        self._undecided = False
        seconds = time.perf_counter() - start
        self.statistics = Statistics(len(prompt), reused, seconds)

    def stream(self, max_tokens: int, stop_tokens: Collection[int]) -> Iterator[Cycle]:
        """Decode until an end token or `max_tokens`. Closing it between cycles leaves the session
        ready for the next prompt.
        """
        left = max_tokens
        while left > 0:
            cycle = self._cycle(left, stop_tokens)
            self.statistics.add(cycle)
            left -= len(cycle.tokens)
            yield cycle
            if cycle.finish_reason:
                return

    def _cycle(self, left: int, stop_tokens: Collection[int]) -> Cycle:
        """Draft, verify, accept, commit: at most `left` tokens come out."""
        assert self.anchor is not None, "prefill first"
        start = time.perf_counter()
        length = self._length(left)
        try:
            with mx.stream(generation_stream):
                proposal = self.drafter.propose(self.anchor, length) if length else Proposal.none()
                mx.async_eval(proposal.tokens)  # runs while the verify graph is built
                block = mx.concatenate([mx.array([self.anchor], mx.uint32), proposal.tokens])
                verification = self.target.verify(block)
                decision = self.acceptance(verification.logits, proposal)
                outcome = [decision.accepted, decision.emitted, decision.tokens]
                drafted_at = dispatch(proposal.tokens, [*outcome, verification.features])
                accepted, emitted = int(decision.accepted.item()), int(decision.emitted.item())
                verified_at = time.perf_counter()
                tokens, reason = _cut(decision.tokens[:emitted].tolist(), left, stop_tokens)
                self._commit(tokens, verification.features)
        except BaseException:
            self._recover()
            raise
        self._undecided = emitted <= accepted
        self.policy.observe(length, accepted)
        self._clear_cache(len(tokens))
        return Cycle(
            tokens=tokens,
            drafted=length,
            accepted=min(accepted, len(tokens)),
            finish_reason=reason,
            logits=verification.logits,
            draft_seconds=drafted_at - start if length else 0.0,
            verify_seconds=verified_at - (drafted_at if length else start),
            seconds=time.perf_counter() - start,
        )

    def _length(self, left: int) -> int:
        """How much to draft: never more than can still be emitted, and nothing where the last pass
        left a choice to a pass over a single row.
        """
        if self._undecided:
            return 0
        return min(self.policy.next(), self.drafter.longest, left - 1)

    def _commit(self, tokens: list[int], features: mx.array | None) -> None:
        """The anchor and all tokens but the last are in the caches; the last is the new anchor."""
        assert self.anchor is not None
        rows = len(tokens)
        self.target.commit(rows)
        certain = [self.anchor, *tokens]
        self.history += certain[:rows]
        self.anchor = certain[rows]
        if rows:
            self.drafter.extend(features[:, :rows] if features is not None else None, rows)

    def _clear_cache(self, tokens: int) -> None:
        """Give MLX's free buffers back now and then."""
        length = len(self.history)
        if length // CLEAR_CACHE_EVERY != (length - tokens) // CLEAR_CACHE_EVERY:
            mx.clear_cache()

    def _reuse(self, prompt: Sequence[int]) -> int:
        """Trim both caches to what the prompt shares with the conversation so far."""
        shared = 0
        for known, token in zip(self.history, prompt[:-1], strict=False):
            if known != token:
                break
            shared += 1
        return self._trim_to(min(shared, self.drafter.length))

    def _trim_to(self, length: int) -> int:
        """Both caches hold the same first tokens: `length`, or fewer where a cache cannot."""
        length = self.target.trim_to(length)
        self.drafter.trim_to(length)
        del self.history[length:]
        return length

    def _recover(self) -> None:
        """After an interruption: both caches hold the same committed tokens, and no anchor."""
        self.anchor = None
        self.target.recover()
        self._trim_to(min(self.target.length, self.drafter.length))

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        limit = self.target.model.context_limit
        if not len(prompt):
            raise PromptError("the prompt is empty")
        if limit is not None and len(prompt) >= limit:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens; {self.target.model.name} allows {limit}, "
                "prompt and answer together"
            )


def _cut(
    tokens: list[int], left: int, stop_tokens: Collection[int]
) -> tuple[list[int], str | None]:
    """Tokens up to the first end token, and why decoding ends here, if it does."""
    for index, token in enumerate(tokens):
        if token in stop_tokens:
            return tokens[: index + 1], "stop"
    return tokens, "length" if len(tokens) == left else None
