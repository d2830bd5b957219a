from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import QuantizedKVCache

from mirror_sd.caches.rewind import TargetCache
from mirror_sd.errors import UnsupportedError
from tests import tiny

MODEL = tiny.model(tiny.config(head_dim=32))


def logits_after(tokens: list[int], cache: TargetCache) -> mx.array:
    out = MODEL(mx.array([tokens]), cache=cache.layers)
    cache.advance(len(tokens))
    return out[0, -1]


@given(
    cycles=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=8),
    quantized=st.booleans(),
)
def test_after_rewinding_only_kept_rows_count(cycles, quantized):
    cache, plain = TargetCache(MODEL), TargetCache(MODEL)
    if quantized:
        for c in (cache, plain):
            c.layers = [QuantizedKVCache(group_size=32, bits=8) for _ in c.layers]
    kept: list[int] = []
    for number, (rows, keep) in enumerate(cycles):
        keep = min(keep, rows)
        tokens = [(7 * number + i) % tiny.VOCAB for i in range(rows)]
        cache.mark()
        logits_after(tokens, cache)
        cache.rewind(keep)
        kept += tokens[:keep]
        assert cache.length == len(kept)
    got = logits_after([5], cache)
    for token in kept:
        logits_after([token], plain)
    wanted = logits_after([5], plain)
    assert mx.abs(got - wanted).max().item() < 1e-4


def test_a_verify_cut_short_leaves_no_rows():
    cache = TargetCache(MODEL)
    logits_after([1, 2, 3], cache)
    cache.mark()
    MODEL(mx.array([[4, 5]]), cache=cache.layers)  # interrupted before `advance`
    cache.restore()
    assert [c.offset for c in cache.layers] == [3] * 4
    cache.restore()  # nothing left to do
    assert cache.length == 3


def test_a_cache_that_cannot_be_rewound_is_refused_by_name():
    sliding = tiny.config(layer_types=["full_attention", "sliding_attention"] * 2, sliding_window=8)
    with pytest.raises(UnsupportedError, match="RotatingKVCache"):
        TargetCache(tiny.model(sliding))
