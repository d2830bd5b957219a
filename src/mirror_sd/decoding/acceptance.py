"""What is accepted: the one place where losslessness is decided."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from . import noise
from .proposal import Proposal
from .sampling import SamplingSettings

# Logits of a batched and of a one-row pass differ by some units in the last place; in float32 the
# sums over a layer dominate, hence the floor.
TIE_UNITS = 4
TIE_FLOOR = 1e-3
NONE, ONE = mx.array(0, mx.int32), mx.array(1, mx.int32)  # of every plain cycle, computed once


@dataclass(frozen=True)
class Decision:
    """The outcome of one verify; lazy arrays.

    Attributes:
        accepted: scalar, how many drafted tokens are valid.
        emitted: scalar, how many of `tokens` may go out: `accepted + 1`, or fewer if the rest must
            be decided by a pass over a single row.
        tokens: [n + 1] ids; the first `accepted + 1` are what the target says: the valid drafted
            tokens and the target's own next one.
    """

    accepted: mx.array
    emitted: mx.array
    tokens: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        """Everything to evaluate."""
        return [self.accepted, self.emitted, self.tokens]

    def counts(self) -> tuple[int, int]:
        """`accepted` and `emitted`, as soon as the pass is done."""
        return int(self.accepted.item()), int(self.emitted.item())

    def final(self) -> Decision:
        """The same where nothing is left to decide otherwise: every row was plain decoding's."""
        emitted = ONE if self.accepted is NONE else self.accepted + 1
        return Decision(self.accepted, emitted, self.tokens)


class Acceptance(Protocol):
    """Decides how much of a proposal the target would have said itself.

    Positions count all tokens from the start of the sequence.

    Attributes:
        leaves_ties: whether choices that rounding could turn are left to passes over a single row
            on caches that only such passes have written.
    """

    leaves_ties: bool

    def start(self) -> None:
        """A new answer begins."""

    def draw(self, scores: mx.array, position: int, candidates: mx.array | None = None) -> mx.array:
        """How a drafter should choose its tokens.

        Args:
            scores: [n, V] the drafter's logits for consecutive positions, or [n, k] over
                `candidates`.
            position: of the first row's token.
            candidates: [n, k] ids, None for the whole vocabulary.

        Returns:
            [n] ids, lazy.
        """

    def __call__(self, logprobs: mx.array, proposal: Proposal, position: int) -> Decision:
        """Judge a proposal of n tokens.

        Args:
            logprobs: [n + 1, V] the target's.
            proposal: n may be 0.
            position: of the first row's token.

        Returns:
            The decision; must stay lazy.
        """


class GreedyAcceptance:
    """The target's likeliest token at every position: the text of greedy plain decoding.

    mlx-lm takes the argmax of log probabilities, and in a 16-bit format their rounding can decide
    between close tokens in another way than that of logits, so they are what is compared here.
    """

    leaves_ties = False

    def start(self) -> None:
        """Nothing to prepare."""

    def draw(self, scores: mx.array, position: int, candidates: mx.array | None = None) -> mx.array:
        """The likeliest token of each row."""
        return _pick(mx.argmax(scores, axis=-1), candidates)

    def __call__(self, logprobs: mx.array, proposal: Proposal, position: int) -> Decision:
        """Accept the longest prefix that equals the target's own choices."""
        return _match(mx.argmax(logprobs, axis=-1), proposal)


class ExactGreedyAcceptance(GreedyAcceptance):
    """Greedy, but a choice between two nearly equal tokens is left to plain decoding (exact.py),
    which costs a pass for every row that has to be run again.

    Args:
        tie_margin: two logits closer than this are nearly equal; None takes a few units in the last
            place of the largest one.
    """

    leaves_ties = True

    def __init__(self, tie_margin: float | None = None):
        self._tie_margin = tie_margin

    def __call__(self, logprobs: mx.array, proposal: Proposal, position: int) -> Decision:
        """Emit only what stands before the first near tie."""
        decision = super().__call__(logprobs, proposal, position)
        best = mx.topk(logprobs.astype(mx.float32), 2, axis=-1)
        clear = mx.abs(best[:, 0] - best[:, 1]) > self._margin(logprobs)
        emitted = mx.minimum(decision.emitted, _leading(clear))
        return Decision(decision.accepted, emitted, decision.tokens)

    def _margin(self, logprobs: mx.array) -> mx.array | float:
        if self._tie_margin is not None:
            return self._tie_margin
        unit = mx.finfo(logprobs.dtype).eps
        size = mx.where(mx.isfinite(logprobs), mx.abs(logprobs), 0).max().astype(mx.float32)
        return mx.maximum(TIE_FLOOR, TIE_UNITS * unit * size)


class SharedNoiseAcceptance:
    """Token = argmax(log p + g) with Gumbel noise g that depends on seed and position alone.

    That is a draw from p. The drafter draws with the same noise, so it often says the same; what it
    says cannot change the text, so a seed gives the same text with any draft or none.

    Args:
        settings: temperature above 0.
        vocab_size: width of the target's logits.
    """

    leaves_ties = False

    def __init__(self, settings: SamplingSettings, vocab_size: int):
        self._settings = settings
        self._vocab_size = vocab_size
        self._seed = 0
        self.start()

    def start(self) -> None:
        """Without a seed of the user's, every answer gets its own."""
        seed = self._settings.seed
        self._seed = secrets.randbits(63) if seed is None else seed

    def draw(self, scores: mx.array, position: int, candidates: mx.array | None = None) -> mx.array:
        """As the target will draw."""
        return self._noisy(scores, position, candidates, noise.SHARED)

    def __call__(self, logprobs: mx.array, proposal: Proposal, position: int) -> Decision:
        """Accept the longest prefix that equals the target's own draws."""
        return _match(self._noisy(logprobs, position, None, noise.SHARED), proposal)

    def _noisy(
        self, scores: mx.array, position: int, candidates: mx.array | None, use: int
    ) -> mx.array:
        """Draw a token from each row; a candidate gets the noise it would get among all tokens."""
        added = noise.gumbel(self._seed, position, scores.shape[0], self._vocab_size, use)
        if candidates is not None:
            added = mx.take_along_axis(added, candidates, axis=-1)
        return _pick(mx.argmax(self._filtered(scores) + added, axis=-1), candidates)

    def _filtered(self, scores: mx.array) -> mx.array:
        normed = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        return self._settings.filtered(normed)


class RejectionAcceptance(SharedNoiseAcceptance):
    """Accept a token x drawn from q with probability min(1, p(x) / q(x)); at the first rejection
    draw from the residual max(p - q, 0) instead. The text is distributed as p, and no method
    accepts more often, but the text of a seed depends on the draft (DFlash, section on sampling;
    Leviathan et al., arXiv 2211.17192).
    """

    def draw(self, scores: mx.array, position: int, candidates: mx.array | None = None) -> mx.array:
        """A draw from q."""
        return self._noisy(scores, position, candidates, noise.DRAFT)

    def __call__(self, logprobs: mx.array, proposal: Proposal, position: int) -> Decision:
        """Accept, reject and correct."""
        count, width = len(proposal), logprobs.shape[-1]
        p = mx.softmax(self._settings.filtered(logprobs), axis=-1)
        accepted = mx.array(0)
        q = mx.zeros((1, width))
        if count:
            q = mx.concatenate([self._proposed(proposal, width), q])
            index = proposal.tokens[:, None]
            said_p = mx.take_along_axis(p[:count], index, axis=-1)[:, 0]
            said_q = mx.take_along_axis(q[:count], index, axis=-1)[:, 0]
            chance = noise.uniform(self._seed, position, count, noise.ACCEPT)
            accepted = _leading(chance * said_q < said_p)
        correction = self._residual(p, q, accepted, position)
        said = mx.concatenate([proposal.tokens.astype(mx.int32), mx.zeros((1,), mx.int32)])
        tokens = mx.where(mx.arange(count + 1) == accepted, correction, said)
        return Decision(accepted, accepted + 1, tokens)

    def _proposed(self, proposal: Proposal, width: int) -> mx.array:
        """q [n, V]: zero off the candidates, and certain where the drafter gave no scores."""
        if proposal.logits is None:
            one = mx.ones((len(proposal), 1))
            return mx.put_along_axis(
                mx.zeros((len(proposal), width)), proposal.tokens[:, None], one, axis=-1
            )
        q = mx.softmax(self._filtered(proposal.logits), axis=-1)
        if proposal.candidates is None:
            return q
        return mx.put_along_axis(mx.zeros((len(proposal), width)), proposal.candidates, q, axis=-1)

    def _residual(self, p: mx.array, q: mx.array, accepted: mx.array, position: int) -> mx.array:
        """A draw from max(p - q, 0) of the first rejected row; after the last row q is 0."""
        row_p, row_q = mx.take(p, accepted, axis=0), mx.take(q, accepted, axis=0)
        rest = mx.maximum(row_p - row_q, 0)
        rest = mx.where(rest.sum() > 0, rest, row_p)  # p == q up to rounding
        where = noise.key(self._seed, 0, noise.RESIDUAL) + mx.stack(
            [mx.array(0), accepted + position]
        ).astype(mx.uint32)
        return mx.argmax(mx.log(rest) + mx.random.gumbel(rest.shape, key=where)).astype(mx.int32)


def _pick(choices: mx.array, candidates: mx.array | None) -> mx.array:
    if candidates is None:
        return choices
    return mx.take_along_axis(candidates, choices[:, None], axis=-1)[:, 0]


def _match(own: mx.array, proposal: Proposal) -> Decision:
    if not len(proposal):
        return Decision(NONE, ONE, own)
    accepted = _leading(own[: len(proposal)] == proposal.tokens)
    return Decision(accepted, accepted + 1, own)


def _leading(flags: mx.array) -> mx.array:
    """How many flags are set before the first that is not."""
    return mx.cumprod(flags.astype(mx.int32)).sum()
