"""Cross entropy through the frozen head, in pieces, so that no logits of a whole batch are stored.

The gradient with respect to the hidden states is computed beside the loss, piece by piece; the
backward pass only scales it, row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..models.target import TargetModel

CHUNK = 512  # rows of logits at a time
Head = Callable[[mx.array], mx.array]


def head_over(target: TargetModel, softcap: float | None, ids: mx.array | None) -> Head:
    """The frozen head over some tokens, None for all: hidden states [n, H] to logits [n, N]."""
    if ids is None:
        return lambda hidden: target.logits(hidden, softcap)
    rows = target.head_rows(ids)
    return lambda hidden: target.finish(target.product(hidden, rows), softcap)


def cross_entropy(
    head: Head, hidden: mx.array, labels: mx.array, shares: mx.array, chunk: int = CHUNK
) -> tuple[mx.array, mx.array]:
    """Cross entropy of every row against a distribution over a few tokens.

    Args:
        head: frozen.
        hidden: [n, H].
        labels: [n, K] indices into the head's outputs; the first is the true token's.
        shares: [n, K] what each label weighs; they sum to 1.
        chunk: rows at a time.

    Returns:
        [n] losses, differentiable by `hidden`, and [n] whether the true token was the likeliest.
    """

    @mx.custom_function
    def run(states: mx.array) -> tuple[mx.array, ...]:
        parts = [
            _chunk(head, states[i : i + chunk], labels[i : i + chunk], shares[i : i + chunk])
            for i in range(0, states.shape[0], chunk)
        ]
        losses, hits, gradient = (mx.concatenate(part) for part in zip(*parts, strict=True))
        return losses, hits, gradient

    @run.vjp
    def back(_: Any, cotangents: Any, outputs: Any) -> mx.array:
        return cotangents[0][:, None].astype(outputs[2].dtype) * outputs[2]

    losses, hits, _ = run(hidden)
    return losses, mx.stop_gradient(hits)


def _chunk(
    head: Head, hidden: mx.array, labels: mx.array, shares: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Losses [n], hits [n], and the gradient [n, H] of each row's loss by that row."""

    def summed(states: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        logits = head(states).astype(mx.float32)
        best = logits.max(axis=-1)
        wanted = mx.take_along_axis(logits, labels, axis=-1)
        losses = mx.logsumexp(logits, axis=-1) - (wanted * shares).sum(axis=-1)
        return losses.sum(), losses, wanted[:, 0] >= best

    (_, losses, hits), gradient = mx.value_and_grad(summed)(hidden)
    return losses, hits, gradient
