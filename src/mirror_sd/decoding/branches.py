"""What a verify may come to: its likeliest outcomes, and the block that drafts behind each of them.

An outcome of verifying n drafted tokens is how many of them are accepted, and the target's own
token after those. While the verify runs, another device can draft the next block behind the
likeliest outcomes, all in one call: each branch has the anchor and its accepted tokens as visible
tokens, its correction, and masks; branches do not see each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Guess:
    """A drafted position's likeliest tokens, the likeliest first, and their chances."""

    tokens: Sequence[int]
    chances: Sequence[float]

    def chance(self, token: int) -> float:
        """A token's, 0 for one that is not among the likeliest."""
        return self.chances[self.tokens.index(token)] if token in self.tokens else 0.0


@dataclass(frozen=True)
class Branch:
    """An outcome.

    Attributes:
        tokens: the anchor, the accepted tokens and the correction.
        chance: that it comes to this, by the draft.
    """

    tokens: tuple[int, ...]
    chance: float


def likeliest(
    anchor: int,
    drafted: Sequence[int],
    guesses: Sequence[Guess],
    survival: Sequence[float],
    count: int,
) -> list[Branch]:
    """The likeliest outcomes of verifying a block, the likeliest first.

    Args:
        anchor: the token before the block.
        drafted: the n tokens that are verified.
        guesses: for each of them, and if known for the position behind the last, the draft's own
            ranking.
        survival: for each of them the chance that it is right if those before it were.
        count: how many outcomes.
    """
    found: list[Branch] = []
    reached = 1.0
    for accepted in range(len(drafted) + 1):
        rejected = reached
        if accepted < len(drafted):
            rejected = reached * (1 - survival[accepted])
            reached *= survival[accepted]
        if accepted >= len(guesses):
            break
        said = drafted[accepted] if accepted < len(drafted) else None
        visible = (anchor, *drafted[:accepted])
        found += [
            Branch((*visible, token), rejected * share)
            for token, share in _corrections(guesses[accepted], said)
        ]
    return heapq.nlargest(count, found, key=lambda branch: branch.chance)


def _corrections(guess: Guess, said: int | None) -> list[tuple[int, float]]:
    """Tokens that the target may say instead of `said`, with their shares."""
    left = [(t, c) for t, c in zip(guess.tokens, guess.chances, strict=True) if t != said]
    rest = 1.0 - sum(c for t, c in zip(guess.tokens, guess.chances, strict=True) if t == said)
    return [(token, chance / max(rest, 1e-6)) for token, chance in left]


@dataclass(frozen=True)
class Layout:
    """Branches side by side in one block.

    Attributes:
        branches: whose they are.
        tokens: [b] all rows' tokens, masks included.
        positions: [b] counted from the anchor's.
        seen: [b, b] which rows each row sees.
        rows: for each branch, its first masked row.
        masks: tokens to be drafted behind each branch.
    """

    branches: list[Branch]
    tokens: list[int]
    positions: np.ndarray
    seen: np.ndarray
    rows: list[int]
    masks: int


def fitting(branches: Sequence[Branch], masks: int, room: int) -> list[Branch]:
    """As many branches as fit `room` positions, each with `masks` tokens to be drafted."""
    kept: list[Branch] = []
    used = 0
    for branch in branches:
        size = len(branch.tokens) + masks
        if used + size <= room:
            kept.append(branch)
            used += size
    return kept


def lay_out(kept: list[Branch], masks: int, mask_token: int) -> Layout:
    """Branches side by side, each with `masks` tokens to be drafted."""
    tokens: list[int] = []
    positions: list[int] = []
    owners: list[int] = []
    rows: list[int] = []
    for index, branch in enumerate(kept):
        rows.append(len(tokens) + len(branch.tokens))
        one = [*branch.tokens, *[mask_token] * masks]
        tokens += one
        positions += range(len(one))
        owners += [index] * len(one)
    owner = np.array(owners, int)
    same = owner[:, None] == owner[None]
    return Layout(kept, tokens, np.array(positions, int), same, rows, masks)
