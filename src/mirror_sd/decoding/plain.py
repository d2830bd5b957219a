"""Plain decoding by mlx-lm itself: the text and the speed to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx_lm
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..models.target import TargetModel


@dataclass(frozen=True)
class PlainRun:
    """An answer by `mlx_lm.stream_generate`.

    Attributes:
        tokens: its ids, the end token included.
        prefill_seconds: until its first token.
        seconds: from its first token to its last.
    """

    tokens: list[int]
    prefill_seconds: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed; the first token belongs to the prefill."""
        return (len(self.tokens) - 1) / self.seconds if self.seconds else 0.0


def run(
    target: TargetModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    max_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> PlainRun:
    """Answer a prompt with mlx-lm on the same weights.

    Args:
        target: the weights.
        tokenizer: knows the end tokens.
        prompt: token ids.
        max_tokens: at most so many.
        progress: told the number of tokens so far.
    """
    tokens: list[int] = []
    start = first = time.perf_counter()
    for response in mlx_lm.stream_generate(
        target.model, tokenizer, list(prompt), max_tokens=max_tokens
    ):
        if not tokens:
            first = time.perf_counter()
        tokens.append(response.token)
        if progress:
            progress(len(tokens))
    return PlainRun(tokens, first - start, time.perf_counter() - first)
