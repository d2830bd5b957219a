"""The one loop: draft, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.generate import generation_stream

from ..errors import PromptError
from ..models.target import Target
from .acceptance import Acceptance, Decision
from .dispatch import dispatch
from .drafter import Context, Drafter, Streamed
from .exact import NOTHING_REDONE, Redone, SingleRows
from .length import PLAIN, LengthPolicy, Outcome, Plan
from .proposal import Proposal
from .sampling import Scorer
from .statistics import Cycle, Statistics
from .work import NO_REPORT, Report

CLEAR_CACHE_EVERY = 256  # tokens; as mlx-lm does
PrefillProgress = Callable[[int, int], None]
Cut = Callable[[list[int], int], tuple[list[int], str | None]]


@dataclass
class Flight:
    """A target pass on its way, with what is to be decided by it."""

    plan: Plan
    proposal: Proposal
    confidences: list[float] | None
    scores: mx.array
    decision: Decision
    context: Context  # for the drafters
    drafted_at: float
    committed: bool = False
    redone: Redone = NOTHING_REDONE  # rows run again before it


class Session:
    """One conversation: a target and drafters with their caches, kept from answer to answer.

    Args:
        target: the sequence on the target; it taps what the drafters want.
        drafters: who may propose; none for plain decoding.
        acceptance: who decides.
        policy: how much to draft, and by whom.
        scorer: turns the target's logits into log probabilities; None normalises them only.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[Drafter],
        acceptance: Acceptance,
        policy: LengthPolicy,
        scorer: Scorer | None = None,
    ):
        self.target = target
        self.drafters = {drafter.name: drafter for drafter in drafters}
        self.acceptance = acceptance
        self.policy = policy
        self.scorer = scorer or Scorer()
        self.history: list[int] = []  # the tokens whose rows the target's caches hold
        self.anchor: int | None = None  # the last certain token, not in the caches yet
        self.statistics = Statistics()
        self._rows = SingleRows(target, acceptance.leaves_ties)
        self._undecided = False
        self._ahead: Flight | None = None  # a plain pass over the anchor that is queued already
        self._hold = False  # a drafter has something to offer: run ahead no further

    def prefill(self, prompt: Sequence[int], progress: PrefillProgress | None = None) -> None:
        """Take in a prompt, reusing the caches as far as it repeats the conversation so far.

        Args:
            prompt: all token ids from the start of the conversation.
            progress: told (tokens done, tokens in all) after each chunk.

        Raises:
            PromptError: the prompt is empty or longer than the model allows.
        """
        self._check_prompt(prompt)
        self.acceptance.start()
        start = time.perf_counter()
        self._fold()
        self._hold = False
        reused = self._reuse(prompt)
        self._rows.prefilled(reused)
        try:
            with mx.stream(generation_stream):
                for count, features in self.target.prefill(prompt[reused:-1], self._rows.chunk):
                    done = len(self.history) + count
                    self._extend(list(prompt[len(self.history) : done]), features)
                    for drafter in self.drafters.values():
                        drafter.settle()
                    if progress:
                        progress(done + 1, len(prompt))
        except BaseException:
            self._recover()
            raise
        self._rows.prefilled(len(self.history))
        self.anchor = prompt[-1]
        self._undecided = False
        self.statistics = Statistics(len(prompt), reused, time.perf_counter() - start)

    def stream(self, max_tokens: int, cut: Cut) -> Iterator[Cycle]:
        """Decode until `cut` ends the answer. Closing it between cycles leaves the session ready
        for the next prompt.

        Args:
            max_tokens: at most so many.
            cut: (tokens, how many may still come) -> (those that belong to the answer, why it ends
                with them or None).
        """
        left = max_tokens
        try:
            while left > 0:
                cycle = self._cycle(left, cut)
                self.statistics.add(cycle)
                left -= len(cycle.tokens)
                if cycle.finish_reason:
                    self._fold()
                yield cycle
                if cycle.finish_reason:
                    return
        finally:
            self.policy.finish()

    def _cycle(self, left: int, cut: Cut) -> Cycle:
        """Draft, verify, accept, commit: at most `left` tokens come out."""
        assert self.anchor is not None, "prefill first"
        start = time.perf_counter()
        depth = len(self.history)
        try:
            with mx.stream(generation_stream):
                was_ahead = self._ahead is not None
                flight, self._ahead = self._ahead or self._take_off(left), None
                self._ahead = self._run_ahead(flight, left)
                accepted, emitted = flight.decision.counts()
                verified_at = time.perf_counter()
                tokens, reason = cut(flight.decision.tokens.tolist()[:emitted], left)
                self._commit(tokens, flight)
        except BaseException:
            self._recover()
            raise
        self._undecided = emitted <= accepted
        self._hold = self._ahead is not None and self._plan(left - len(tokens)).source is not None
        self._clear_cache(len(tokens))
        start += flight.redone.seconds
        drafted_at = flight.drafted_at if flight.plan.length else start
        cycle = Cycle(
            tokens=tokens,
            plan=flight.plan,
            depth=depth,
            proposed=flight.proposal.tokens.tolist(),
            drafted=flight.plan.length,
            accepted=min(accepted, len(tokens)),
            confidences=flight.confidences,
            finish_reason=reason,
            logprobs=flight.scores,
            draft_seconds=drafted_at - start,
            verify_seconds=verified_at - drafted_at,
            seconds=time.perf_counter() - start + flight.redone.seconds,
            steady=was_ahead and self._ahead is not None,
            redone=flight.redone.rows,
            redo_seconds=flight.redone.seconds,
            began=start - flight.redone.seconds,
            report=self._report(),
        )
        self.policy.observe(_outcome(cycle, accepted))
        return cycle

    def _take_off(self, left: int) -> Flight:
        """Draft, and queue the target's pass and decision."""
        assert self.anchor is not None
        plan = self._plan(left)
        redone = NOTHING_REDONE
        if plan.source is None and (self._undecided or self._rows.are_few):
            redone = self._rows.redo(self.history, self.anchor, self.scorer)
        proposal = self._propose(plan)
        mx.async_eval(proposal.tokens)  # runs while the verify graph is built
        proposal, confidences = self._trim(plan, proposal)
        block = mx.concatenate([mx.array([self.anchor], mx.uint32), proposal.tokens])
        self._rows.before(block.shape[0])
        certain = self._rows.certain
        verification = self.target.verify(block, rejectable=not certain or len(proposal) > 0)
        known = [*self.history, self.anchor]
        scores = self.scorer(verification.logits, known, proposal.tokens)
        decision = self.acceptance(scores, proposal, len(known))
        if certain and not len(proposal):
            decision = decision.final()
        drafter = self.drafters.get(plan.source or "")
        streamed = drafter.stream(verification.taps) if drafter else None
        drafted_at = dispatch(
            proposal.tokens,
            [*decision.arrays, streamed.rows if streamed else verification.features],
            drafter.meanwhile if drafter else lambda tokens: None,
        )
        return Flight(
            plan, proposal, confidences, scores, decision, streamed or verification.features,
            drafted_at, redone=redone,
        )  # fmt: skip

    def _run_ahead(self, flight: Flight, left: int) -> Flight | None:
        """Plain decoding goes on while the host waits for its token, as in mlx-lm: queue the pass
        over the token that `flight` is about to give. It is certain, whatever it is, so nothing
        has to be taken back.
        """
        is_plain = not len(flight.proposal) and self._rows.certain
        if not is_plain or left < 2 or self._hold or self.scorer.needs_history:
            return None
        offers = {name: drafter.offer(None) for name, drafter in self.drafters.items()}
        position = len(self.history) + 1
        plan = self.policy.plan(offers, position)
        if plan.source is not None:
            return None
        self.target.commit(1)
        flight.committed = True
        verification = self.target.verify(flight.decision.tokens)
        scores = self.scorer(verification.logits, (), Proposal.none().tokens)
        decision = self.acceptance(scores, Proposal.none(), position + 1).final()
        mx.async_eval([*decision.arrays, verification.features])
        return Flight(plan, Proposal.none(), None, scores, decision, verification.features, 0.0)

    def _fold(self) -> None:
        """Take in the row of a pass that ran ahead, without its token."""
        if self._ahead is not None and self.anchor is not None:
            flight, self._ahead = self._ahead, None
            self.target.commit(1)
            self._extend([self.anchor], flight.context, said=True)
        self.anchor = None

    def _plan(self, left: int) -> Plan:
        """What to draft: never more than can still be emitted, and nothing where the last pass
        left a choice to a pass over a single row.
        """
        assert self.anchor is not None
        if self._undecided:
            return PLAIN
        offers = {
            name: min(drafter.offer(self.anchor), left - 1)
            for name, drafter in self.drafters.items()
        }
        return self.policy.plan(offers, len(self.history))

    def _propose(self, plan: Plan) -> Proposal:
        if plan.source is None:
            return Proposal.none()
        assert self.anchor is not None
        position = len(self.history) + 1  # of the first drafted token
        return self.drafters[plan.source].propose(
            self.anchor,
            plan.length,
            lambda scores, offset, some: self.acceptance.draw(scores, position + offset, some),
        )

    def _trim(self, plan: Plan, proposal: Proposal) -> tuple[Proposal, list[float] | None]:
        """Leave out drafted tokens that are not worth verifying, if the policy cares."""
        chances = proposal.confidences if self.policy.trims else None
        if chances is None:
            return proposal, None
        confidences: list[float] = chances.tolist()
        keep = self.policy.trim(plan, confidences, len(self.history))
        return proposal.first(keep), confidences

    def _commit(self, tokens: list[int], flight: Flight) -> None:
        """The anchor and all tokens but the last are in the caches; the last is the new anchor."""
        assert self.anchor is not None
        rows = len(tokens)
        if not flight.committed:
            self.target.commit(rows)
        certain = [self.anchor, *tokens]
        self.anchor = certain[rows]
        if rows:
            self._extend(certain[:rows], _first(flight.context, rows), said=True)

    def _extend(self, tokens: list[int], context: Context, said: bool = False) -> None:
        """Tokens are in the target's caches now: tell the drafters."""
        for drafter in self.drafters.values():
            drafter.extend(tokens, context if drafter.taps else None, said)
        self.history += tokens

    def _report(self) -> Report:
        """Of the drafter with a device of its own."""
        reports = [drafter.report() for drafter in self.drafters.values()]
        return next((report for report in reports if report.work is not None), NO_REPORT)

    def _clear_cache(self, tokens: int) -> None:
        """Give MLX's free buffers back now and then."""
        length = len(self.history)
        if length // CLEAR_CACHE_EVERY != (length - tokens) // CLEAR_CACHE_EVERY:
            mx.clear_cache()

    def _reuse(self, prompt: Sequence[int]) -> int:
        """Trim all caches to what the prompt shares with the conversation so far."""
        shared = 0
        for known, token in zip(self.history, prompt[:-1], strict=False):
            if known != token:
                break
            shared += 1
        return self._trim_to(self._rows.reusable(shared))

    def _trim_to(self, length: int) -> int:
        """All caches hold the same first tokens: `length`, or fewer where a cache cannot."""
        length = min([length, *(drafter.length for drafter in self.drafters.values())])
        length = self.target.trim_to(length)
        for drafter in self.drafters.values():
            drafter.trim_to(length)
        del self.history[length:]
        return length

    def _recover(self) -> None:
        """After an interruption: all caches hold the same committed tokens, and no anchor."""
        self.anchor = self._ahead = None
        self.target.recover()
        self._trim_to(min(self.target.length, len(self.history)))

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        limit = self.target.model.context_limit
        if not len(prompt):
            raise PromptError("the prompt is empty")
        if limit is not None and len(prompt) >= limit:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens; {self.target.model.name} allows {limit}, "
                "prompt and answer together"
            )


def _first(context: Context, rows: int) -> Context:
    if context is None:
        return None
    return context.first(rows) if isinstance(context, Streamed) else context[:, :rows]


def _outcome(cycle: Cycle, accepted: int) -> Outcome:
    return Outcome(
        source=cycle.plan.source,
        drafted=cycle.drafted,
        verified=len(cycle.proposed),
        accepted=accepted,
        emitted=len(cycle.tokens),
        depth=cycle.depth,
        draft_seconds=cycle.draft_seconds,
        verify_seconds=cycle.verify_seconds,
        confidences=cycle.confidences,
        steady=cycle.steady,
        redo_seconds=cycle.redo_seconds,
    )
