"""Where two answers differ, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..models.target import Target, TargetModel

# Closer than this, the target's two best tokens are equal for all that float32 can tell.
TIE_MARGIN = 1e-4
# A pass over several rows may round differently from one over a single row; the difference is
# measured where the answers part. Caches filled by other passes add as much again, hence a factor.
NOISE_FACTOR = 4.0
_ROWS = (2, 4, 8)


@dataclass(frozen=True)
class Divergence:
    """The first position at which two answers differ.

    Attributes:
        position: index into the answer's tokens.
        token: what speculative decoding said there, None after its end.
        plain_token: what plain decoding said there, None after its end.
        margin: by how much the target's logit of the one exceeds that of the other, in a pass over
            a single row.
        noise: by how much that difference changes in passes over several rows.
    """

    position: int
    token: int | None
    plain_token: int | None
    margin: float
    noise: float

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.margin <= max(TIE_MARGIN, NOISE_FACTOR * self.noise)

    def __str__(self) -> str:
        """For tables."""
        kind = "a numerical tie" if self.is_tie else "NOT a tie: please report it"
        return (
            f"no: token {self.position} is {self.token} against {self.plain_token}, margin "
            f"{self.margin:.1e}, rounding {self.noise:.1e}: {kind}"
        )


def find(
    target: TargetModel, prompt: Sequence[int], said: Sequence[int], plain: Sequence[int]
) -> Divergence | None:
    """Compare an answer with the plain one.

    Args:
        target: whose answers they are.
        prompt: token ids.
        said: the answer of speculative decoding.
        plain: the answer of plain decoding.

    Returns:
        None if they are identical.
    """
    position = next(
        (i for i, (a, b) in enumerate(zip(said, plain, strict=False)) if a != b),
        min(len(said), len(plain)),
    )
    if position == len(said) == len(plain):
        return None
    if position in (len(said), len(plain)):  # one ended where the other did not: never rounding
        token = said[position] if position < len(said) else None
        plain_token = plain[position] if position < len(plain) else None
        return Divergence(position, token, plain_token, float("inf"), 0.0)
    known = [*prompt, *plain[:position]]
    pair = (said[position], plain[position])
    margin = _difference(target, known, pair, 1)
    noise = 0.0
    for rows in _ROWS:
        if rows <= len(known):
            noise = max(noise, abs(_difference(target, known, pair, rows) - margin))
    return Divergence(position, *pair, abs(margin), noise)


def _difference(
    target: TargetModel, known: Sequence[int], pair: tuple[int, int], rows: int
) -> float:
    """The plain token's logit less the other's after `known`, its last `rows` in one pass."""
    sequence = Target(target)
    for _ in sequence.prefill(known[:-rows]):
        pass
    logits = sequence.verify(mx.array(list(known[-rows:]))).logits[-1].astype(mx.float32)
    return (logits[pair[1]] - logits[pair[0]]).item()
