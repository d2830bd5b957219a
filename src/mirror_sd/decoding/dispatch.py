"""Keep the device busy, and still know how long each half of a cycle took."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx


def dispatch(
    draft: mx.array,
    verify: list[mx.array | None],
    drafted: Callable[[list[int]], None] = lambda tokens: None,
) -> float:
    """Queue the verify behind the draft, which is queued already, and wait for the draft.

    A GPU goes from one to the other without waiting for the host: that is the only order without
    a bubble. The CPU scheduler of MLX instead holds the host while its short queue is full, so
    there the draft is awaited first; nothing runs beside the host anyway.

    Args:
        draft: tokens.
        verify: everything to evaluate.
        drafted: is told the tokens as soon as they are known, and before the host is held.

    Returns:
        The time, by `time.perf_counter`, at which the draft was done.
    """
    ahead = mx.default_device() != mx.Device(mx.cpu)
    if ahead:
        mx.async_eval(verify)
    tokens = draft.tolist()  # waits for this array alone; mx.eval would wait for all that is queued
    drafted_at = time.perf_counter()
    drafted(tokens)
    if not ahead:
        mx.async_eval(verify)
    return drafted_at
