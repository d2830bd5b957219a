"""The likeliest tokens of a row of scores, without sorting or exponentiating a whole vocabulary.

On a CPU, sorting 49,152 scores takes longer than the draft's head that made them, and so does their
softmax. The few best lie in the few groups whose largest scores are the largest.
"""

from __future__ import annotations

import mlx.core as mx

GROUP = 128


def likeliest(scores: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The best of each row, the best first.

    Args:
        scores: [n, V].
        count: how many, at most V.

    Returns:
        Chances [n, count], and places [n, count]. The chances' divisor leaves out what is not the
        largest of a group, nor in one of the best groups: they are a little too high, never too
        low.
    """
    rows, size = scores.shape
    count = min(count, size)
    padding = -size % GROUP
    padded = mx.pad(scores.astype(mx.float32), ((0, 0), (0, padding)), constant_values=-mx.inf)
    groups = padded.reshape(rows, -1, GROUP)
    largest = groups.max(axis=-1)
    some = min(count, largest.shape[1])
    best = mx.argpartition(-largest, some - 1, axis=-1)
    kept, rest = best[:, :some], best[:, some:]
    members = mx.take_along_axis(groups, kept[..., None], axis=1).reshape(rows, -1)
    order = mx.argsort(-members, axis=-1)[:, :count]
    places = (kept[..., None] * GROUP + mx.arange(GROUP)).reshape(rows, -1)
    others = mx.take_along_axis(largest, rest, axis=-1)
    divisor = mx.logsumexp(mx.concatenate([members, others], axis=-1), axis=-1, keepdims=True)
    chances = mx.exp(mx.take_along_axis(members, order, axis=-1) - divisor)
    return chances, mx.take_along_axis(places, order, axis=-1)
