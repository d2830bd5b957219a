"""The target's head as programs: the likeliest tokens of every shard of the vocabulary.

A head over a large vocabulary is a good part of a draft's cost. Its logits would be more than the
host wants to see: each shard gives its best few, and the host merges them. A shard has no more
channels than every Neural Engine takes; a program has no more weights than load safely.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .quantize import BYTES_PER_PARAMETER, ROWS_PER_TABLE
from .shapes import Shape

CHANNELS = 16384  # of a shard
FUNCTION = "head"

Rows = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class HeadPlan:
    """How a head is divided.

    Attributes:
        hidden: width of the hidden states.
        block: positions of a call.
        top: tokens that each shard gives.
        scheme: how weights are stored.
        parts: programs; each is a run of shards, [start, stop) in the vocabulary.
    """

    hidden: int
    block: int
    top: int
    scheme: str
    parts: tuple[tuple[tuple[int, int], ...], ...]

    def inputs(self) -> dict[str, Shape]:
        """Normed hidden states."""
        return {"hidden": (1, self.hidden, 1, self.block)}


def divide(
    hidden: int, vocabulary: int, block: int, top: int, scheme: str, limit: float
) -> HeadPlan:
    """Shards of like sizes, in as few programs as the limit in bytes allows."""
    most = int(min(CHANNELS, limit / (hidden * BYTES_PER_PARAMETER[scheme])))
    count = -(-vocabulary // most)
    shards = _ranges(vocabulary, count, ROWS_PER_TABLE[6])
    size = max(stop - start for start, stop in shards) * hidden * BYTES_PER_PARAMETER[scheme]
    programs = -(-count // max(1, int(limit // size)))
    parts = tuple(tuple(shards[a:b]) for a, b in _ranges(count, programs))
    return HeadPlan(hidden, block, top, scheme, parts)


def _ranges(size: int, count: int, step: int = 1) -> list[tuple[int, int]]:
    """`count` ranges of like sizes; all but the last end at a multiple of `step`."""
    ends = [size * index // count // step * step for index in range(count)] + [size]
    return list(itertools.pairwise(ends))


def merge(
    plan: HeadPlan, outputs: Sequence[Mapping[str, np.ndarray]], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens of the whole vocabulary, by all parts' outputs.

    Args:
        plan: how the head is divided.
        outputs: of each part, "scores" and "places", (1, shards * top, 1, block).
        rows: positions that are looked at.

    Returns:
        Ids and logits, [rows, top], the likeliest first. Scale and softcap of the target are the
        host's; neither changes the order.
    """
    scores, ids = [], []
    for shards, found in zip(plan.parts, outputs, strict=True):
        starts = np.repeat([start for start, _ in shards], plan.top)[:, None]
        scores.append(found["scores"][0, :, 0, :rows].astype(np.float32))
        ids.append(found["places"][0, :, 0, :rows].astype(int) + starts)
    all_scores, all_ids = np.concatenate(scores).T, np.concatenate(ids).T
    best = np.argsort(-all_scores, axis=1, kind="stable")[:, : plan.top]
    return np.take_along_axis(all_ids, best, 1), np.take_along_axis(all_scores, best, 1)
