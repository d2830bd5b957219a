"""Plain decoding by mlx-lm itself: the text and the speed to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx_lm
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..models.target import TargetModel

# Below this difference of the target's two highest logits, a batched and a one-row forward may
# round to different sides: a numerical tie, not a wrong token.
TIE_MARGIN = 1e-4


@dataclass(frozen=True)
class Divergence:
    """The first position at which two answers differ.

    Attributes:
        position: index into the answer's tokens.
        token: what speculative decoding said there, None after its end.
        plain_token: what plain decoding said there, None after its end.
        margin: the target's highest logit less its second there.
    """

    position: int
    token: int | None
    plain_token: int | None
    margin: float

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.margin < TIE_MARGIN

    def __str__(self) -> str:
        """For tables."""
        kind = "a numerical tie" if self.is_tie else "NOT a tie: please report it"
        return (
            f"no: token {self.position} is {self.token} against {self.plain_token}, "
            f"margin {self.margin:.1e}, {kind}"
        )


@dataclass(frozen=True)
class PlainRun:
    """An answer by `mlx_lm.stream_generate`.

    Attributes:
        tokens: its ids, the end token included.
        prefill_seconds: until its first token.
        seconds: from its first token to its last.
        divergence: from the tokens it was compared with, None if identical.
    """

    tokens: list[int]
    prefill_seconds: float
    seconds: float
    divergence: Divergence | None

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed; the first token belongs to the prefill."""
        return (len(self.tokens) - 1) / self.seconds if self.seconds else 0.0


def run(
    target: TargetModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    max_tokens: int,
    expected: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> PlainRun:
    """Answer a prompt with mlx-lm on the same weights.

    Args:
        target: the weights.
        tokenizer: knows the end tokens.
        prompt: token ids.
        max_tokens: at most so many.
        expected: another answer's tokens, to be compared on the way.
        progress: told the number of tokens so far.
    """
    tokens: list[int] = []
    divergence = None
    start = first = time.perf_counter()
    for response in mlx_lm.stream_generate(
        target.model, tokenizer, list(prompt), max_tokens=max_tokens
    ):
        if not tokens:
            first = time.perf_counter()
        if expected is not None and divergence is None:
            divergence = _compare(expected, len(tokens), response.token, response.logprobs)
        tokens.append(response.token)
        if progress:
            progress(len(tokens))
    end = time.perf_counter()
    if expected is not None and divergence is None and len(expected) > len(tokens):
        divergence = Divergence(len(tokens), expected[len(tokens)], None, float("inf"))
    return PlainRun(tokens, first - start, end - first, divergence)


def _compare(
    expected: Sequence[int], position: int, token: int, logprobs: mx.array
) -> Divergence | None:
    said = expected[position] if position < len(expected) else None
    if said == token:
        return None
    second, best = mx.topk(logprobs.astype(mx.float32), 2).tolist()
    return Divergence(position, said, token, abs(best - second))
