"""Every kind of cache, taken back: what follows must be as if rejected rows had never been."""

from __future__ import annotations

import functools
import threading

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from mirror_sd.caches.rewind import rewindable
from mirror_sd.caches.target_cache import TargetCache
from mirror_sd.errors import UnsupportedError
from mirror_sd.models.target import Target, TargetModel
from tests import tiny
from tests.families import FAMILIES

KV_KINDS = {
    "KVCache": KVCache,
    "QuantizedKVCache": lambda: QuantizedKVCache(group_size=32, bits=8),
    "ConcatenateKVCache": ConcatenateKVCache,
    "RotatingKVCache": lambda: RotatingKVCache(max_size=9),
    "RotatingKVCache with kept rows": lambda: RotatingKVCache(max_size=9, keep=2),
    "CacheList": lambda: CacheList(KVCache(), RotatingKVCache(max_size=9)),
}
RECURRENT = ("qwen3_5", "qwen3_next", "mamba2", "lfm2", "falcon_h1", "jamba", "rwkv7")


def rows(first: int, count: int) -> mx.array:
    """Keys that carry their position, [1, 1, count, 32]."""
    positions = mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)
    return mx.broadcast_to(positions, (1, 1, count, 32))


def write(cache, first: int, count: int) -> list[list[int]]:
    """Write rows; returns the positions each part then sees."""
    if isinstance(cache, CacheList):
        return [seen for part in cache.caches for seen in write(part, first, count)]
    keys, _ = cache.update_and_fetch(rows(first, count), rows(first, count))
    if isinstance(cache, QuantizedKVCache):
        keys = mx.dequantize(*keys, group_size=cache.group_size, bits=cache.bits)
    return [[round(x) for x in keys[0, 0, :, 0].tolist()]]


def seen_next(cache, length: int) -> list[set[int]]:
    """The positions that the next single row sees."""
    return [set(part) for part in write(cache, length, 1)]


cycles = st.lists(st.tuples(st.integers(2, 6), st.integers(0, 6)), min_size=1, max_size=10)


@pytest.mark.parametrize("kind", KV_KINDS)
@given(prompt=st.integers(1, 30), cycles=cycles)
def test_key_value_caches_see_what_they_would_have_seen(kind, prompt, cycles):
    speculative, plain = KV_KINDS[kind](), KV_KINDS[kind]()
    way_back = rewindable(speculative, replayer=None)
    write(speculative, 0, prompt)
    write(plain, 0, prompt)
    length = prompt
    for count, keep in cycles:
        keep = min(keep, count)
        way_back.mark(rejectable=True)
        write(speculative, length, count)
        way_back.rewind(count, keep)
        for position in range(length, length + keep):
            write(plain, position, 1)
        length += keep
    assert seen_next(speculative, length) == seen_next(plain, length)


@pytest.mark.parametrize("kind", [*KV_KINDS, "ChunkedKVCache"])
@given(prompt=st.integers(0, 30), counts=st.lists(st.integers(1, 6), min_size=1, max_size=10))
def test_a_saved_state_comes_back_after_any_number_of_passes(kind, prompt, counts):
    makers = {**KV_KINDS, "ChunkedKVCache": lambda: ChunkedKVCache(8)}
    cache, plain = makers[kind](), makers[kind]()
    way_back = rewindable(cache, replayer=None)
    for position in range(prompt):
        write(cache, position, 1)
        write(plain, position, 1)
    saved, length = way_back.save(), prompt
    for count in counts:
        way_back.mark(rejectable=count > 1)
        write(cache, length, count)
        way_back.rewind(count, count)
        length += count
        if kind == "ChunkedKVCache":
            cache.maybe_trim_front()
    way_back.restore(saved)
    assert seen_next(cache, prompt) == seen_next(plain, prompt)


def test_a_chunked_cache_sees_what_it_would_have_seen():
    speculative, plain = ChunkedKVCache(8), ChunkedKVCache(8)
    way_back = rewindable(speculative, replayer=None)
    length = 0
    for count, keep in ((5, 5), (6, 2), (4, 0), (6, 6), (6, 3), (5, 1)):
        speculative.maybe_trim_front()
        way_back.mark(rejectable=True)
        write(speculative, length, count)
        way_back.rewind(count, keep)
        for position in range(length, length + keep):
            plain.maybe_trim_front()
            write(plain, position, 1)
        length += keep
    speculative.maybe_trim_front()
    plain.maybe_trim_front()
    (got,), (wanted,) = write(speculative, length, 1), write(plain, length, 1)
    assert got[-8:] == wanted[-8:]


@pytest.mark.parametrize("kind", KV_KINDS)
def test_everything_can_be_cleared_and_written_again(kind):
    cache = KV_KINDS[kind]()
    way_back = rewindable(cache, replayer=None)
    fresh = write(cache, 0, 5)
    write(cache, 5, 12)
    way_back.clear()
    assert write(cache, 0, 5) == fresh


def test_only_what_is_exact_can_be_trimmed_without_a_mark():
    cache = RotatingKVCache(max_size=9)
    way_back = rewindable(cache, replayer=None)
    write(cache, 0, 7)
    assert way_back.can_trim(3)
    write(cache, 7, 4)
    assert not way_back.can_trim(3)
    assert way_back.can_trim(0)


def test_a_kind_that_is_not_known_is_refused_by_name():
    class OddCache(KVCache):
        pass

    with pytest.raises(UnsupportedError, match="OddCache"):
        TargetCache([KVCache(), OddCache()], replayer=None)


# --- recurrent states -----------------------------------------------------------------------------


@functools.cache
def model(family: str) -> TargetModel:
    return TargetModel(tiny.model(FAMILIES[family]), FAMILIES[family], family)


def states(target: Target) -> list[mx.array]:
    found: list[mx.array] = []
    for cache in target.cache.layers:
        for part in cache.caches if isinstance(cache, CacheList) else [cache]:
            if isinstance(part, ArraysCache):
                found += part.cache
    return found


def largest_difference(one: Target, other: Target) -> float:
    pairs = zip(states(one), states(other), strict=True)
    return max(mx.abs(a - b).max().item() for a, b in pairs)


def after(family: str, tokens: list[int]) -> Target:
    target = Target(model(family))
    for _ in target.prefill(tokens):
        pass
    return target


@pytest.mark.parametrize("family", RECURRENT)
@settings(max_examples=8)
@given(cycles=cycles)
def test_recurrent_states_are_those_after_the_accepted_tokens(family, cycles):
    known = [3, 1, 4, 1, 5]
    target = after(family, known)
    for number, (count, keep) in enumerate(cycles):
        keep = min(keep, count)
        block = [(31 * number + 7 * i) % 250 for i in range(count)]
        target.verify(mx.array(block))
        target.commit(keep)
        known += block[:keep]
    assert largest_difference(target, after(family, known)) < 2e-4


@pytest.mark.parametrize("family", RECURRENT)
def test_the_comparison_would_notice_a_state_left_after_the_whole_block(family):
    known, block = [3, 1, 4, 1, 5], [9, 2, 6, 5]
    target = after(family, known)
    target.verify(mx.array(block))
    target.commit(len(block))  # as if nothing were taken back
    assert largest_difference(target, after(family, known + block[:2])) > 1e-2


@pytest.mark.parametrize("family", RECURRENT)
def test_projections_are_not_computed_again(family, monkeypatch):
    """A rewind runs convolution and recurrence only: no linear layer is called."""
    import mlx.nn as nn

    target = after(family, [3, 1, 4])
    target.verify(mx.array([9, 2, 6, 5]))
    calls = []
    real = nn.Linear.__call__
    monkeypatch.setattr(nn.Linear, "__call__", lambda self, x: calls.append(1) or real(self, x))
    target.commit(2)
    mx.eval(states(target))
    assert calls == []


def test_marks_are_references():
    target = after("qwen3_5", [3, 1, 4])
    before = states(target)
    target.verify(mx.array([9, 2, 6, 5]))
    target.commit(0)
    assert all(a is b for a, b in zip(before, states(target), strict=True))


def test_two_targets_and_the_plain_model_do_not_disturb_each_other():
    shared = model("qwen3_5")
    wanted = shared.model(mx.array([[3, 1, 4, 1]]))
    one, two = after("qwen3_5", [3, 1, 4]), after("qwen3_5", [9, 2])
    one.verify(mx.array([7, 7, 7]))
    two.verify(mx.array([8, 8, 8, 8]))
    assert mx.array_equal(shared.model(mx.array([[3, 1, 4, 1]])), wanted)
    one.commit(1)
    two.commit(3)
    assert largest_difference(one, after("qwen3_5", [3, 1, 4, 7])) < 2e-4
    assert largest_difference(two, after("qwen3_5", [9, 2, 8, 8, 8])) < 2e-4


def test_two_threads_one_after_the_other():
    results: dict[str, list[list[float]]] = {}

    def work(name: str) -> None:
        target = after("qwen3_5", [3, 1, 4])
        target.verify(mx.array([7, 7, 7]))
        target.commit(1)
        results[name] = [state.reshape(-1).tolist() for state in states(target)]

    mx.eval(model("qwen3_5").model.parameters())
    for name in ("first", "second"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    work("main")
    assert results["first"] == results["second"] == results["main"]


def test_a_layer_that_handles_its_state_itself_is_refused():

    from mirror_sd.models.recurrence import Recurrences

    watcher = Recurrences()
    watcher.start()
    with pytest.raises(UnsupportedError, match="handles its recurrent state itself"):
        watcher.check([ArraysCache(2)], "odd")
