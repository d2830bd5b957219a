"""Both ways of decoding a prompt, compared: the evidence for a pair on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api import make_session
from ..decoding import divergence, plain
from ..decoding.divergence import Divergence
from ..decoding.output import until
from ..decoding.statistics import Statistics
from ..models.loading import Pair


@dataclass(frozen=True)
class Comparison:
    """One prompt decoded speculatively and plainly.

    Attributes:
        said: tokens of speculative decoding.
        plain: tokens of plain decoding.
        divergence: where they part, None if they are identical.
        statistics: counts and times of speculative decoding.
        plain_tokens_per_second: speed of plain decoding.
    """

    said: list[int]
    plain: list[int]
    divergence: Divergence | None
    statistics: Statistics
    plain_tokens_per_second: float

    @property
    def verdict(self) -> str:
        """ "identical", "tie" or "bug"."""
        if self.divergence is None:
            return "identical"
        return "tie" if self.divergence.is_tie else "bug"

    @property
    def speedup(self) -> float:
        """Tokens per second over those of plain decoding."""
        rate = self.plain_tokens_per_second
        return self.statistics.tokens_per_second / rate if rate else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        s = self.statistics
        return {
            "verdict": self.verdict,
            "divergence": asdict(self.divergence) if self.divergence else None,
            "tokens": self.said,
            "plain_tokens": self.plain,
            "acceptance_length": s.acceptance_length,
            "target_passes": s.passes,
            "rows_run_again": s.redone,
            "seconds_running_again": s.redo_seconds,
            "tokens_per_second": s.tokens_per_second,
            "plain_tokens_per_second": self.plain_tokens_per_second,
        }


def compare(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    block_size: int | None = None,
    draft_window: int | None = None,
    exact: bool = False,
) -> Comparison:
    """Decode a prompt both ways.

    Args:
        pair: target and draft.
        tokenizer: of the target.
        prompt: token ids.
        max_tokens: at most so many.
        block_size: see `make_session`.
        draft_window: see `make_session`.
        exact: see `make_session`.
    """
    session = make_session(pair, block_size=block_size, draft_window=draft_window, exact=exact)
    session.prefill(prompt)
    cycles = list(session.stream(max_tokens, until(pair.eos_token_ids)))
    said = [token for cycle in cycles for token in cycle.tokens]
    other = plain.run(pair.target, tokenizer, prompt, max_tokens)
    parting = divergence.find(pair.target, prompt, said, other.tokens)
    return Comparison(said, other.tokens, parting, session.statistics, other.tokens_per_second)
