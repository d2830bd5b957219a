"""Schedules on a cost model: arithmetic by hand, the published traps, and never slower."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mirror_sd.bench.machines import PUBLISHED, Machine
from mirror_sd.bench.simulator import Branching, Text, predict, replay, stale_pipeline
from mirror_sd.bench.timeline import DEVICE, TARGET
from mirror_sd.decoding.adaptive import AdaptiveLength
from mirror_sd.decoding.length import FixedLength

RECORDED = Path(__file__).parents[1] / "decoding" / "recorded.jsonl"
TEXTS = [
    Text(record["accepted"], record["confidences"])
    for record in map(json.loads, RECORDED.read_text().splitlines())
]
BIG = next(machine for machine in PUBLISHED if machine.verify == {16: 187.0})
# What block 16 on a text that the draft knows looks like in a trace.
ALWAYS = [
    {"planned": 15, "verified": 15, "depth": 0, "ready": None if index == 0 else True}
    for index in range(2000)
]


def test_cycles_by_hand():
    machine = Machine("", "", {1: 10, 3: 30}, draft=8, score=2, launch=1, contention=0.5, slowed=1)
    rows = [
        {"planned": 2, "verified": 2, "ready": None},
        {"planned": 2, "verified": 1, "ready": True},
        {"planned": 2, "verified": 2, "ready": False},
        {"planned": 0, "verified": 0, "ready": None},
    ]
    assert replay(rows, machine, False).span == 3 * (8 + 2) + 30 + 20 + 30 + 10
    found = replay(rows, machine, True)
    # A call takes 8 + 8 beside a verify, which takes half of those 16 longer.
    assert found.span == (8 + 2 + 1 + 30 + 8) + (2 + 1 + 20 + 8) + (8 + 2 + 30) + 10
    assert found.busy(DEVICE) == 8 + 16 + 16 + 8
    assert (found.launched, found.ready) == (2, 1)
    assert found.overlap == pytest.approx(32 / 48)


def test_a_call_longer_than_the_verify_is_waited_for():
    machine = Machine("", "", {1: 10, 2: 10}, draft=25)
    rows = [{"planned": 1, "verified": 1, "ready": ready} for ready in (None, True, False)]
    assert replay(rows, machine, True).span == 25 + 25 + (25 + 25) + 10


def test_passes_between_and_beyond_measured_rows():
    machine = Machine("", "", {1: 10, 4: 40}, draft=1, deep=0.5)
    assert [machine.pass_ms(rows) for rows in (1, 2, 4, 9)] == [10, 20, 40, 40]
    assert machine.pass_ms(1, 2000) == 20


def test_the_published_bound():
    """Hiding a draft of 39 ms behind a verify of 187 gains at most 1.21x, if every outcome hits."""
    serial, mirrored = (replay(ALWAYS, BIG, mirrored=how).span for how in (False, True))
    assert serial / mirrored == pytest.approx((187 + 39) / 187, abs=1e-3)
    assert round(serial / mirrored, 2) == 1.21


def test_the_flattering_figure():
    """Sums of the shorter of both times say "90% overlap" of a pipeline that only loses, and of one
    in which nothing overlaps at all."""
    dice = random.Random(0)
    clock = stale_pipeline(2000, BIG, 16, lambda: max(0.1, dice.gauss(4.0, 1.5)))
    calls = [bar.end - bar.begin for bar in clock.bars if bar.lane == DEVICE]
    passes = [bar.end - bar.begin for bar in clock.bars if bar.lane == TARGET]
    flattering = sum(map(min, calls, passes)) / sum(calls)
    assert flattering == pytest.approx(0.9, abs=0.03)
    serial = replay(ALWAYS, BIG, mirrored=False)
    one_token = clock.timeline().span / 2000
    for accepted in (1, 2, 7):  # even a poor draft in turn is faster than one token a pass
        assert serial.span / 2000 / (1 + accepted) < one_token
    assert serial.overlap == 0
    calls = [bar.end - bar.begin for bar in serial.bars if bar.lane == DEVICE]
    assert sum(min(call, 187) for call in calls) / sum(calls) == 1


MACHINES = {
    "draft a fifth": {"draft": 20.0},
    "draft a half": {"draft": 50.0},
    "draft as long": {"draft": 100.0},
    "draft longer": {"draft": 160.0},
    "a busy device": {"draft": 50.0, "contention": 0.3, "slowed": 0.2},
    "the host is held": {"draft": 50.0, "contention": 1.0},
    "a slow host": {"draft": 20.0, "launch": 8.0},
}
FORESIGHT = {
    "none": Branching([0.001] * 16),
    "as measured": Branching([0.11, 0.06, 0.04, 0.04, 0.02, 0.02, 0.02, 0.02], 0.9),
    "good": Branching([0.4, 0.15, 0.1, 0.05], 0.95),
    "good, but branches are poor": Branching([0.4, 0.15, 0.1, 0.05], 0.1),
    "perfect": Branching([1.0]),
}


def seconds(machine, branching=None, policy=AdaptiveLength):
    return predict(TEXTS * 2, machine, policy(), branching).span


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("foresight", FORESIGHT)
@pytest.mark.parametrize("policy", [AdaptiveLength, lambda: FixedLength(3)])
def test_mirrored_is_never_slower_than_serial(machine, foresight, policy):
    """By more than three percent, on recorded text, whatever the device does."""
    here = Machine("", "", {1: 60, 2: 60, 4: 100, 8: 120}, **MACHINES[machine])
    assert seconds(here, FORESIGHT[foresight], policy) <= 1.03 * seconds(here, None, policy)


def test_foresight_pays():
    here = Machine("", "", {1: 60, 2: 60, 4: 100, 8: 120}, draft=50.0)
    serial = seconds(here, None, lambda: FixedLength(3))
    perfect = seconds(here, FORESIGHT["perfect"], lambda: FixedLength(3))
    # An answer's first block is drafted in turn, and now and then a verify is looked at alone.
    assert 0.97 * 1.5 <= serial / perfect <= 1.5


@pytest.mark.parametrize("machine", PUBLISHED[:2], ids=lambda machine: machine.name)
def test_named_machines(machine):
    plain = predict(TEXTS, machine, FixedLength(0)).span
    assert plain == pytest.approx(sum(len(text.accepted) for text in TEXTS) * 34.2)
    adaptive = predict(TEXTS, machine, AdaptiveLength()).span
    assert adaptive <= 1.03 * plain
    assert machine.source


def test_a_call_that_costs_too_much_is_tried_twice():
    """A short answer must not pay for trials that cannot end well."""
    here = Machine("", "", {1: 60, 4: 100}, draft=90.0, contention=1.0)
    few = [Text(text.accepted[:30], text.confidences[:30]) for text in TEXTS[:1]]
    found = predict(few, here, FixedLength(3), FORESIGHT["as measured"])
    assert found.launched == 2
    free = predict(few, Machine("", "", here.verify, draft=90.0), FixedLength(3), FORESIGHT["good"])
    assert free.launched > 8


def test_a_branch_gives_no_more_tokens_than_it_has():
    """Where a policy wants all that it has planned to be verified."""

    class Whole(FixedLength):
        trims = True
        seen: list[int]

        def trim(self, plan, confidences, depth):
            return plan.length

        def observe(self, outcome):
            self.seen.append(outcome.verified)
            assert outcome.verified <= len(outcome.confidences)

    policy = Whole(15)
    policy.seen = []
    many = Branching([0.05] * 16)
    texts = [Text([15] * 400, [[0.9] * 15] * 400)]
    found = predict(texts, Machine("", "", {1: 60, 16: 80}, draft=50.0), policy, many)
    assert found.ready
    assert min(policy.seen[:-2]) < 15
