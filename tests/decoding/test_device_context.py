"""A device's context: whatever comes and goes, the device holds the right rows at their places."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.decoding.device_context import DeviceContext
from mirror_sd.models.context_columns import ContextColumns
from tests import tiny

DRAFT = tiny.draft()
WIDTH = 3 * 64
WINDOW = 24


class Notebook:
    """Writes down what it is given, by position."""

    def __init__(self):
        self.length = 0
        self.rows: dict[int, np.ndarray] = {}

    def skip(self, positions):
        self.length += positions

    def take(self, rows):
        for row in rows:
            self.rows[self.length] = row
            self.length += 1

    def trim_to(self, length):
        self.length = min(length, self.length)
        self.rows = {place: row for place, row in self.rows.items() if place < self.length}


def features(count: int) -> mx.array:
    return mx.random.normal((1, count, WIDTH))


def hand_over(context: DeviceContext, device: Notebook) -> None:
    given = context.take()
    device.skip(given.skipped)
    device.take(given.rows)


EXTEND = st.tuples(st.just("extend"), st.integers(1, 40))
STREAM = st.tuples(st.just("stream"), st.integers(1, 7))
TRIM = st.tuples(st.just("trim"), st.integers(0, 50))
TAKE = st.tuples(st.sampled_from(["take", "prepare"]), st.just(0))


@pytest.mark.parametrize("streamed", [False, True])
@given(st.lists(EXTEND | STREAM | TRIM | TAKE, max_size=14))
def test_the_device_holds_what_was_said(streamed, steps):
    columns, device = ContextColumns(DRAFT) if streamed else None, Notebook()
    context = DeviceContext(DRAFT, device, WINDOW, columns)
    true = mx.zeros((1, 0, WIDTH))
    certain = 0  # rows before it may have been lost by trimming, as in every bounded context
    for what, count in steps:
        if what in ("extend", "stream"):
            fresh = features(count)
            if what == "stream" and columns:
                taps = mx.split(fresh, 3, axis=-1)
                context.append(columns.of_taps(taps, context.length))
            else:
                context.extend(fresh)
            true = mx.concatenate([true, fresh], axis=1)
        elif what == "trim":
            certain = len(true[0]) if count else certain
            true = true[:, : max(0, len(true[0]) - count)]
            certain = min(certain, len(true[0]))
            context.trim_to(len(true[0]))
        elif what == "prepare":
            context.prepare()
        else:
            hand_over(context, device)
        assert context.length == len(true[0])
    hand_over(context, device)
    length = device.length
    assert length == context.length
    wanted = columns.of_features(true, 0) if columns and length else true
    for place in range(max(0, length - WINDOW), length):
        if place in device.rows:
            assert np.allclose(device.rows[place], np.array(wanted[0, place]), atol=1e-5)
        else:
            assert place < certain
    if length and not certain:
        in_mlx(context, true)


def in_mlx(context: DeviceContext, true: mx.array) -> None:
    """The MLX draft, in the place of the device, sees what one sees that was there all along."""
    block = mx.random.normal((1, 5, 64))
    wanted = DRAFT.make_context(WINDOW)
    DRAFT.extend(true, wanted)
    found = context.on_mlx()
    assert mx.allclose(DRAFT(block, found), DRAFT(block, wanted), atol=1e-4).item()
    fresh = features(3)
    context.extend(fresh)
    DRAFT.extend(fresh, wanted)
    assert mx.allclose(DRAFT(block, found), DRAFT(block, wanted), atol=1e-4).item()
