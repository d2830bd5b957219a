"""Real overlap, with the demo target and a device that only takes time."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from statistics import median

import pytest

from mirror_sd.bench import prompts
from mirror_sd.bench.oracle import Directions
from mirror_sd.bench.overlap import Bench, calibrate
from mirror_sd.bench.paced import Pace
from mirror_sd.bench.simulator import replay
from mirror_sd.decoding import plain

pytestmark = pytest.mark.slow
LENGTH, TOKENS = 3, 24


@pytest.fixture(scope="module")
def bench(demo_pair):
    pair, tokenizer = demo_pair
    prompt = prompts.builtin(1)[0].encode(tokenizer)
    text = plain.run(pair.target, tokenizer, prompt, TOKENS).tokens
    return Bench(pair, prompt, [*prompt, *text], Directions(pair.target), LENGTH)


@pytest.fixture(scope="module")
def verify(bench):
    """Seconds of a target pass over a block, warm."""
    bench.run(never, 0.0, True)  # also finds the directions
    rows = bench.run(never, 0.0, False).rows
    return median(row["verify_ms"] for row in rows if row["verified"] == LENGTH) / 1e3


def never(place):
    return False


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_draft_beside_the_verify_is_hidden(bench, verify, share):
    """With steady passes: a call sticks out of a pass that is shorter than the others."""
    paced, seconds = replace(bench, pace=Pace(2 * verify)), share * 2 * verify
    turns, beside = (paced.run(never, seconds, mirror) for mirror in (False, True))
    assert turns.tokens == beside.tokens == list(bench.text[len(bench.prompt) :])
    for run in (turns, beside):
        assert min(row["verify_ms"] for row in run.rows if row["verified"]) > 1990 * verify
    assert turns.hit_rate == 0
    assert beside.hit_rate == pytest.approx(1 - 1 / len(beside.rows), abs=0.2)  # all but the first
    assert turns.timeline.overlap == pytest.approx(0, abs=0.01)
    assert beside.beside > 0.9
    waits = [run.timeline.exposed for run in (turns, beside)]
    assert waits[0] - waits[1] > 0.9 * beside.hit_rate * waits[0]


def test_a_device_that_is_always_wrong_hides_nothing(bench, verify):
    """Up to chance: what its wrong logits rank second may be what comes."""
    run = bench.run(lambda place: True, 0.3 * verify, True)
    assert not any(row["accepted"] for row in run.rows)
    assert run.tokens == list(bench.text[len(bench.prompt) :])
    assert run.hit_rate < 0.5
    drafts = sum(row["planned"] > 0 for row in run.rows)
    assert run.timeline.exposed >= (1 - run.hit_rate) * drafts * 0.29 * verify * 1e3


def test_the_simulator_foresees_the_waiting(bench, verify):
    """As a share of what is waited for in turn, which one slow pass cannot change much."""
    seconds = 0.4 * verify
    shares = []
    for mirror in (False, True):
        machine = calibrate([bench.run(never, 0.0, mirror)], seconds * 1e3)
        run = bench.run(never, seconds, mirror)
        in_turn = seconds * 1e3 * sum(row["planned"] > 0 for row in run.rows)
        foreseen = replay(run.rows, machine, mirror).exposed / in_turn
        assert foreseen == pytest.approx(run.timeline.exposed / in_turn, abs=0.15)
        shares.append(foreseen)
    assert shares[1] < 0.4 < 0.99 < shares[0]


def test_a_device_that_holds_pythons_lock_stops_the_host(bench, verify):
    """What coremltools' predict does in-process: all else in Python stands still for a call."""
    gaps = {held: longest_gap(bench, verify, held) for held in (False, True)}
    assert gaps[True] > 0.8 * verify
    assert gaps[True] > 2 * gaps[False]


def longest_gap(bench, seconds, held):
    """Median of the longest pauses of another thread, which wants to run every 5 ms."""
    done, ticks = threading.Event(), []

    def tick():
        while not done.wait(0.005):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        bench.run(never, seconds, True, holds_gil=held)
    finally:
        done.set()
        thread.join()
    return median(sorted(b - a for a, b in itertools.pairwise(ticks))[-6:])
