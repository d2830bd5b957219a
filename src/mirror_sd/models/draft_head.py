"""A head for drafting: the target's, over the tokens that are likely at all.

The draft scores every position with the target's head, and for a large vocabulary that is a good
part of its cost. Drafting needs no exact head: a token that is left out is never proposed, the
target says it all the same (the idea of FR-Spec, arXiv 2502.14856). Tokens of the context are
always in, so names and numbers of the conversation can be proposed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .target import TargetModel
from .token_usage import TokenUsage

RANKING = "token_ranking.npy"


def read_ranking(folder: Path, vocab_size: int) -> list[int] | None:
    """Token ids of a draft's folder, the most frequent first; None if it has none.

    Raises:
        CheckpointError: the file does not fit the vocabulary.
    """
    file = folder / RANKING
    if not file.exists():
        return None
    try:
        ranking = np.load(file, allow_pickle=False).astype(int).tolist()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); fetch the draft again") from error
    if len(set(ranking)) != len(ranking) or not all(0 <= t < vocab_size for t in ranking):
        raise CheckpointError(f"{file} does not rank a vocabulary of {vocab_size} tokens")
    return ranking


class DraftHead:
    """The target's head over all tokens, or over some.

    Args:
        target: whose head it is.
        size: how many tokens, besides those of the context; None for all.
        ranking: ids, the likeliest first. None takes ids in order: byte-pair vocabularies number
            their tokens by how early they were merged, so low ids are the frequent ones.
        usage: is told what the target says.
    """

    def __init__(
        self,
        target: TargetModel,
        size: int | None = None,
        ranking: Sequence[int] | None = None,
        usage: TokenUsage | None = None,
    ):
        self._target = target
        if size is not None and size >= target.vocab_size:
            size = None
        order = list(ranking) if ranking else []
        order += sorted(set(range(target.vocab_size)) - set(order))
        self._usage = usage
        if usage is not None:
            usage.judge(order)
        self._context: set[int] = set()
        self._ids: list[int] | None = None
        if size is not None:
            self._ids = order[:size]
            self._base = target.head_rows(mx.array(self._ids))
        self._known = set(self._ids or ())
        self._extra: list[int] = []
        self._extra_rows: tuple[mx.array, ...] | None = None

    def include(self, tokens: Sequence[int], said: bool = False) -> None:
        """Tokens of the context: may be proposed from now on.

        Args:
            tokens: ids.
            said: whether they are the target's own, not the prompt's.
        """
        if self._usage is not None:
            for token in tokens if said else ():
                self._usage.observe(token, token in self._context)
                self._context.add(token)
            self._context.update(tokens)
        if self._ids is None:
            return
        new = set(tokens) - self._known
        if new:
            self._known |= new
            self._extra += sorted(new)
            self._extra_rows = None

    def __call__(self, hidden: mx.array, softcap: float | None) -> tuple[mx.array, mx.array | None]:
        """Logits [n, N] of hidden states [n, H], and the ids [N] they stand for; None for all."""
        if self._ids is None:
            return self._target.logits(hidden, softcap), None
        parts = [self._target.product(hidden, self._base)]
        if self._extra:
            if self._extra_rows is None:
                self._extra_rows = self._target.head_rows(mx.array(self._extra))
            parts.append(self._target.product(hidden, self._extra_rows))
        ids = mx.array([*self._ids, *self._extra]) if self._extra else mx.array(self._ids)
        return self._target.finish(mx.concatenate(parts, axis=-1), softcap), ids


def seconds(target: TargetModel, size: int | None, rows: int, repeats: int = 3) -> float:
    """What the head costs over so many tokens and rows on this machine: the fastest of some tries,
    so that other work does not count.
    """
    head = DraftHead(target, size)
    embedded = target.embed(mx.zeros((rows,), mx.int32))
    hidden = mx.random.normal(embedded.shape).astype(embedded.dtype)
    mx.eval(hidden)
    took = []
    for _ in range(repeats + 1):  # the first one compiles kernels and touches pages
        start = time.perf_counter()
        mx.eval(head(hidden, None)[0])
        took.append(time.perf_counter() - start)
    return min(took[1:])
