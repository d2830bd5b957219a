"""Intervals, and what is said of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.bench import timeline
from mirror_sd.bench.timeline import DEVICE, TARGET
from mirror_sd.errors import MirrorError


def row(at, draft, verify, device=(), ready=None, verified=3):
    return {
        "at_ms": at, "draft_ms": draft, "redo_ms": 0.0, "verify_ms": verify,
        "cycle_ms": draft + verify, "planned": verified, "verified": verified, "ready": ready,
        "device": None if device is None else list(device),
    }  # fmt: skip


def test_hand_made_cycles():
    """A block of 10 ms, a verify of 50 with branches of 20 beside it, and one that is ready."""
    found = timeline.read(
        [
            row(0, 10, 50, [["block", 0, 10]]),
            row(60, 0, 50, [["branches", 15, 35]], ready=True),
            row(110, 10, 50, [["branches", 100, 115], ["block", 115, 120]], ready=False),
        ]
    )
    assert found.span == 170
    assert found.busy(TARGET) == 150
    assert found.idle(TARGET) == 20
    assert found.busy(DEVICE) == 10 + 20 + 15 + 5
    assert found.overlap == pytest.approx((20 + 10) / 50)
    assert found.exposed == 20
    assert (found.launched, found.ready, found.hit_rate) == (2, 1, 0.5)
    assert timeline.text(found, 0, 170, 17) == [
        "      target .VVVVVVVVVV.VVVVV",
        "draft device D.B.......BD.....",
    ]


def test_a_draft_where_the_target_runs_is_waited_for():
    found = timeline.read([row(0, 10, 50, None), row(60, 0, 20, None, verified=0)])
    assert found.lanes == [TARGET]
    assert found.exposed == 10
    assert found.overlap is None
    assert found.hit_rate is None
    assert timeline.text(found, 0, 80, 8) == ["      target DVVVVVPP"]


def test_scoring_what_a_device_drafted_is_the_targets_work():
    """From when the block was there; no drafting is waited for meanwhile."""
    found = timeline.read([row(0, 20, 40, [["block", 0, 10]]), row(60, 10, 40, [], ready=True)])
    assert found.busy(TARGET) == (10 + 40) + (10 + 40)
    assert found.exposed == 10
    assert timeline.text(found, 0, 110, 11)[0] == "      target .SVVVVSVVVV"


def test_being_waited_for_is_no_overlap():
    """A device that works only before the verify hides nothing, however long the verify takes."""
    found = timeline.read(
        [row(0, 10, 90, [["block", 1, 9]]), row(100, 10, 90, [["block", 101, 109]])]
    )
    assert found.overlap == 0
    assert found.exposed == 16


def test_an_old_trace():
    old = row(0, 1, 1)
    del old["at_ms"]
    with pytest.raises(MirrorError, match="no intervals"):
        timeline.read([old])


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: tuple(sorted(pair)))
)


@given(SPANS, SPANS)
def test_unions_and_intersections_are_those_of_sets(first, second):
    def cells(spans):
        return {cell for begin, end in spans for cell in range(begin, end)}

    a, b = timeline.union(first), timeline.union(second)
    assert cells(a) == cells(first)
    assert timeline.length(a) == len(cells(first))
    assert all(x[1] < y[0] for x, y in pairwise(a))
    both = timeline.intersection(a, b)
    assert cells(both) == cells(first) & cells(second)
    assert timeline.length(both) == len(cells(first) & cells(second))
