"""How good a draft is: acceptance by kind and position, calibration, and speed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api import make_session
from ..decoding import divergence, plain
from ..decoding.adaptive import AdaptiveLength
from ..decoding.length import FixedLength
from ..decoding.output import until
from ..decoding.statistics import Cycle
from ..errors import PromptError
from ..models.loading import Pair
from ..models.requests import Request

BINS = 10


class _Asking(FixedLength):
    """Whole blocks, and the draft's confidences besides."""

    trims = True


@dataclass(frozen=True)
class Draft:
    """One drafted block that was verified whole.

    Attributes:
        verified: tokens drafted.
        accepted: how many were right.
        confidences: the draft's chance for each.
    """

    verified: int
    accepted: int
    confidences: Sequence[float]


@dataclass(frozen=True)
class Speed:
    """One answer timed, as ratios to plain decoding just before and after.

    Attributes:
        block: with whole blocks.
        adaptive: with the default policy.
        identical: whether both gave the text of plain decoding, numerical ties aside.
    """

    block: float
    adaptive: float
    identical: bool


@dataclass(frozen=True)
class Answer:
    """One prompt answered with whole blocks.

    Attributes:
        kind: of the prompt.
        tokens: of the answer.
        passes: of the target.
        drafts: one for each block.
        speed: None if it was not timed.
    """

    kind: str
    tokens: int
    passes: int
    drafts: Sequence[Draft]
    speed: Speed | None

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per target pass, the target's own included."""
        return self.tokens / self.passes


@dataclass(frozen=True)
class Position:
    """A drafted position over all blocks.

    Attributes:
        reached: blocks whose earlier tokens were all right.
        right: how many of those had this one right too.
        blocks: that had this position.
    """

    reached: int
    right: int
    blocks: int

    @property
    def chance(self) -> float:
        """To be right where all before are."""
        return self.right / self.reached if self.reached else 0.0


@dataclass(frozen=True)
class Bin:
    """Tokens of like confidence, of those whose earlier ones were all right.

    Attributes:
        confidence: their mean.
        right: the share of them that were right.
        count: how many.
    """

    confidence: float
    right: float
    count: int


class Evaluation:
    """Answers prompts one by one; block size and draft vocabulary are the draft's whole ones.

    Args:
        pair: target and draft.
        tokenizer: of the target.
        max_tokens: of an answer.
        block_size: anchor and drafted tokens; None for the draft's own.
        timed: compare with plain decoding as well, which takes four more runs.

    Raises:
        PromptError: the block size is out of range.
    """

    def __init__(
        self,
        pair: Pair,
        tokenizer: TokenizerWrapper,
        max_tokens: int,
        block_size: int | None = None,
        timed: bool = True,
    ):
        assert pair.draft is not None
        self._pair, self._tokenizer = pair, tokenizer
        self._max_tokens, self._timed = max_tokens, timed
        longest = pair.draft.model.config.block_size
        self.block_size = block_size or longest
        if not 2 <= self.block_size <= longest:
            raise PromptError(
                f"block size {self.block_size} is out of range: this draft takes 2 to {longest}"
            )
        self._adaptive = AdaptiveLength()  # learns from answer to answer, as in use

    def answer(self, request: Request) -> Answer:
        """Decode a prompt and measure."""
        prompt = request.encode(self._tokenizer)
        asking = _Asking(self.block_size - 1)
        session = make_session(self._pair, policy=asking, draft_vocab="full")
        session.prefill(prompt)
        cycles = list(session.stream(self._max_tokens, until(self._pair.eos_token_ids)))
        drafts = [_draft(cycle) for cycle in cycles if cycle.proposed]
        speed = self._time(prompt) if self._timed else None
        s = session.statistics
        return Answer(request.kind, s.tokens, s.passes, drafts, speed)

    def _time(self, prompt: list[int]) -> Speed:
        pair, eos = self._pair, until(self._pair.eos_token_ids)
        before = plain.run(pair.target, self._tokenizer, prompt, self._max_tokens)
        rates, identical = [], True
        for session in (
            make_session(pair, block_size=self.block_size),
            make_session(pair, policy=self._adaptive),
        ):
            session.prefill(prompt)
            said = [t for cycle in session.stream(self._max_tokens, eos) for t in cycle.tokens]
            parting = divergence.find(pair.target, prompt, said, before.tokens)
            identical = identical and (parting is None or parting.is_tie)
            rates.append(session.statistics.tokens_per_second)
        after = plain.run(pair.target, self._tokenizer, prompt, self._max_tokens)
        base = (before.tokens_per_second + after.tokens_per_second) / 2
        return (
            Speed(rates[0] / base, rates[1] / base, identical) if base else Speed(1, 1, identical)
        )


def _draft(cycle: Cycle) -> Draft:
    return Draft(len(cycle.proposed), cycle.accepted, cycle.confidences or ())


def by_kind(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Answers by kind, in the order in which kinds first come."""
    return {
        kind: [answer for answer in answers if answer.kind == kind]
        for kind in dict.fromkeys(answer.kind for answer in answers)
    }


def acceptance_length(answers: Sequence[Answer]) -> float:
    """Mean tokens per target pass over all passes of the answers."""
    return sum(a.tokens for a in answers) / sum(a.passes for a in answers)


def positions(answers: Sequence[Answer]) -> list[Position]:
    """What became of each drafted position."""
    drafts = [draft for answer in answers for draft in answer.drafts]
    longest = max((draft.verified for draft in drafts), default=0)
    found = []
    for place in range(longest):
        there = [draft for draft in drafts if draft.verified > place]
        reached = [draft for draft in there if draft.accepted >= place]
        right = sum(draft.accepted > place for draft in reached)
        found.append(Position(len(reached), right, len(there)))
    return found


def calibration(answers: Sequence[Answer]) -> list[Bin]:
    """Confidence against what came of it, in bins of equal width; empty bins are left out."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for draft in (draft for answer in answers for draft in answer.drafts):
        reached = draft.confidences[: draft.accepted + 1]
        for place, confidence in enumerate(reached):
            bins[min(BINS - 1, int(confidence * BINS))].append((confidence, place < draft.accepted))
    return [
        Bin(mean(c for c, _ in tokens), mean(right for _, right in tokens), len(tokens))
        for tokens in bins
        if tokens
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: mean gap between confidence and its outcome, by tokens."""
    count = sum(each.count for each in bins)
    return sum(each.count * abs(each.confidence - each.right) for each in bins) / max(1, count)
