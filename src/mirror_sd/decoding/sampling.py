"""The sampling settings users send, and the distributions they make of a target's logits.

The filters and penalties are mlx-lm's, applied in mlx-lm's order: processors see the history and
the logits, log probabilities are normalised, filters cut them, and the temperature divides what is
left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from ..errors import PromptError

LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. The defaults are greedy decoding.

    Attributes:
        temperature: 0 takes the likeliest token; above, tokens are drawn.
        top_p: draw among the likeliest tokens that together have this probability; 0 or 1 is off.
        top_k: draw among so many likeliest tokens; 0 is off.
        min_p: drop tokens less likely than this share of the likeliest one; 0 is off.
        seed: the same seed gives the same text, whatever the draft; None draws anew each time.
        repetition_penalty: factor against repeating one of the latest tokens; 1 is off.
        presence_penalty: subtracted from the logit of a token among the latest ones.
        frequency_penalty: the same for each time it occurs there.
        penalty_context: how many latest tokens the penalties look at.
        logit_bias: added to the logits of these token ids.
        banned_tokens: ids that never come.
        allowed_tokens: the only ids that may come; None allows all.
    """

    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_context: int = 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: frozenset[int] = frozenset()
    allowed_tokens: frozenset[int] | None = None

    def check(self, vocab_size: int) -> None:
        """Refuse what makes no sense.

        Raises:
            PromptError: a value is out of range; the message names it.
        """
        for name, low, high in (
            ("temperature", 0.0, math.inf),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("top_k", 0, vocab_size),
            ("penalty_context", 1, math.inf),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise PromptError(f"{name} is {value}: it must lie between {low} and {high}")
        if not self.repetition_penalty > 0:
            raise PromptError(
                f"repetition_penalty is {self.repetition_penalty}: it must be above 0"
            )
        ids = {*self.logit_bias, *self.banned_tokens, *(self.allowed_tokens or ())}
        strange = [token for token in ids if not 0 <= token < vocab_size]
        if strange:
            raise PromptError(f"token id {strange[0]} is not in the vocabulary of {vocab_size}")
        if self.allowed_tokens is not None and not self.allowed_tokens - self.banned_tokens:
            raise PromptError("no token may come: allowed_tokens is empty or banned as well")

    def processors(self) -> list[LogitsProcessor]:
        """mlx-lm's logits processors for these settings."""
        penalised = self.repetition_penalty != 1.0
        found = make_logits_processors(
            logit_bias=dict(self.logit_bias) or None,
            repetition_penalty=self.repetition_penalty if penalised else None,
            repetition_context_size=self.penalty_context,
            presence_penalty=self.presence_penalty or None,
            presence_context_size=self.penalty_context,
            frequency_penalty=self.frequency_penalty or None,
            frequency_context_size=self.penalty_context,
        )
        if self.banned_tokens or self.allowed_tokens is not None:
            found.append(partial(_only, self.allowed_tokens, self.banned_tokens))
        return found

    def filtered(self, logprobs: mx.array) -> mx.array:
        """Cut log probabilities [n, V] and divide by the temperature: unnormalised logits of the
        distribution that tokens are drawn from.
        """
        if 0 < self.top_p < 1:
            logprobs = apply_top_p(logprobs, self.top_p)
        if self.min_p:
            logprobs = apply_min_p(logprobs, self.min_p)
        if 0 < self.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, self.top_k)
        return logprobs.astype(mx.float32) * (1.0 / self.temperature)


def _only(
    allowed: frozenset[int] | None, banned: frozenset[int], _: mx.array, logits: mx.array
) -> mx.array:
    open_ = mx.ones(logits.shape[-1], mx.bool_)
    if allowed is not None:
        open_ = mx.zeros(logits.shape[-1], mx.bool_)
        open_[mx.array(sorted(allowed))] = True
    if banned:
        open_[mx.array(sorted(banned))] = False
    return mx.where(open_, logits, mx.array(-math.inf, logits.dtype))


class Scorer:
    """Log probabilities of the target for every row of a block, as plain decoding would see them.

    Args:
        processors: mlx-lm logits processors, applied in order.
    """

    def __init__(self, processors: Sequence[LogitsProcessor] = ()):
        self._processors = list(processors)

    @property
    def needs_history(self) -> bool:
        """Whether scores depend on the tokens before."""
        return bool(self._processors)

    def __call__(self, logits: mx.array, known: Sequence[int], drafted: mx.array) -> mx.array:
        """Score a block.

        Args:
            logits: [n + 1, V] of the target.
            known: all certain tokens, the anchor last.
            drafted: [n] ids; row i stands after the first i of them.

        Returns:
            [n + 1, V] log probabilities.
        """
        if self._processors:
            tokens = mx.concatenate([mx.array(list(known)), drafted.astype(mx.int32)])
            rows = [
                self._process(tokens[: len(known) + i], logits[i : i + 1])
                for i in range(logits.shape[0])
            ]
            logits = mx.concatenate(rows)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    def _process(self, tokens: mx.array, row: mx.array) -> mx.array:
        for processor in self._processors:
            row = processor(tokens, row)
        return row
