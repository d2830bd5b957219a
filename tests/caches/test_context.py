"""The draft's context against a plain list of rows."""

from __future__ import annotations

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.caches import context
from mirror_sd.caches.context import ContextCache


def rows(first: int, count: int) -> mx.array:
    """Rows that carry their own position, [1, 1, count, 1]."""
    return mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("block"), st.integers(1, 9)),
        st.tuples(st.just("trim"), st.integers(0, 12)),
    ),
    max_size=40,
)


def expected(length: int, window: int | None, sinks: int) -> list[int]:
    known = list(range(length))
    if window is None:
        return known
    recent = max(min(sinks, length), length - window)
    return known[:sinks] + known[recent:]


@given(steps=steps, window=st.sampled_from([None, 5, 30]), sinks=st.sampled_from([0, 3]))
def test_a_block_sees_the_window_the_sinks_and_itself(steps, window, sinks):
    small, context.STEP = context.STEP, 16  # so that buffers grow and are compacted
    try:
        cache = ContextCache(window, sinks)
        lowest = 0  # rows before this may be gone after a trim
        for action, count in steps:
            if action == "append":
                cache.append(rows(cache.length, count), -rows(cache.length, count))
                lowest = max(lowest, cache.length - (window or cache.length))
            elif action == "trim":
                cache.trim_to(max(0, cache.length - count))
            keys, values = cache.with_block(rows(1000, 2), -rows(1000, 2))
            seen = [int(x) for x in keys.reshape(-1).tolist()]
            assert mx.array_equal(keys, -values)
            assert seen[-2:] == [1000, 1001]
            wanted = expected(cache.length, window, sinks)
            missing = set(wanted) - set(seen)
            assert set(seen[:-2]) <= set(wanted)
            assert all(sinks <= row < lowest for row in missing)
            assert cache.visible == len(seen) - 2
            assert seen[:-2] == sorted(seen[:-2])
    finally:
        context.STEP = small


def test_without_trims_nothing_is_missing():
    cache = ContextCache(window=5, sinks=2)
    for _ in range(200):
        cache.append(rows(cache.length, 3), rows(cache.length, 3))
    keys, _ = cache.with_block(rows(1000, 1), rows(1000, 1))
    assert keys.reshape(-1).tolist() == [0, 1, 595, 596, 597, 598, 599, 1000]
    assert cache.arrays[0].shape[2] <= 2 * context.STEP  # old rows are really dropped


def test_skipped_rows_count_as_positions():
    cache = ContextCache(window=4)
    cache.skip(100)
    cache.append(rows(100, 6), rows(100, 6))
    keys, _ = cache.with_block(rows(1000, 1), rows(1000, 1))
    assert cache.length == 106
    assert keys.reshape(-1).tolist() == [102, 103, 104, 105, 1000]
