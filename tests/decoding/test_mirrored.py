"""Drafting beside the verify: the text stays plain decoding's, and hits are used."""

from __future__ import annotations

import threading
import time
import warnings

import pytest

from mirror_sd.bench.oracle import Directions, Oracle
from mirror_sd.bench.overlap import Always
from mirror_sd.decoding.acceptance import GreedyAcceptance, SharedNoiseAcceptance
from mirror_sd.decoding.branch_policy import BranchPolicy
from mirror_sd.decoding.device_draft import DeviceDraft
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.mirrored import MirroredDrafter
from mirror_sd.decoding.output import until
from mirror_sd.decoding.sampling import SamplingSettings, Scorer
from mirror_sd.decoding.session import Session
from mirror_sd.devices.device import DeviceError
from mirror_sd.errors import Notice
from mirror_sd.models.target import Target
from tests import tiny

PROMPT = list(range(3, 40))
TOKENS = 80


@pytest.fixture(scope="module")
def target():
    return tiny.target()


@pytest.fixture(scope="module")
def draft():
    return tiny.draft()


@pytest.fixture(scope="module")
def head(target):
    return Directions(target)


def run(session, tokens=TOKENS):
    session.prefill(PROMPT)
    said = []
    for cycle in session.stream(tokens, until(frozenset())):
        said += cycle.tokens
    return said


def plain(target, acceptance=None, scorer=None):
    return run(
        Session(Target(target), [], acceptance or GreedyAcceptance(), FixedLength(0), scorer)
    )


def mirrored(target, draft, hosted, acceptance=None, scorer=None, length=None, **settings):
    device = DeviceDraft(draft, lambda: hosted, 512)
    drafter = MirroredDrafter(device, target, **settings)
    session = Session(
        Target(target, drafter.taps), [drafter], acceptance or GreedyAcceptance(),
        FixedLength(length or drafter.longest), scorer,
    )  # fmt: skip
    return session, drafter


PATTERNS = {
    "always right": lambda place: False,
    "always wrong": lambda place: True,
    "every third": lambda place: place % 3 == 0,
    "every fifth": lambda place: place % 5 == 0,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_text_is_plain_decodings(target, draft, head, pattern, length):
    wanted = plain(target)
    hosted = Oracle([*PROMPT, *wanted], head, PATTERNS[pattern])
    session, drafter = mirrored(target, draft, hosted, length=length, policy=Always())
    assert run(session) == wanted
    assert drafter.policy.launched
    if pattern == "always right" and length < drafter.longest:
        assert session.statistics.accepted == session.statistics.drafted
        assert drafter.policy.hits == drafter.policy.launched >= session.statistics.passes - 2


@pytest.mark.parametrize("pattern", PATTERNS)
def test_drawn_text_with_a_seed_is_plain_decodings(target, draft, head, pattern):
    settings = SamplingSettings(temperature=0.8, seed=3)

    def acceptance():
        return SharedNoiseAcceptance(settings, target.vocab_size)

    scorer = Scorer(settings.processors())
    wanted = plain(target, acceptance(), scorer)
    hosted = Oracle([*PROMPT, *wanted], head, PATTERNS[pattern])
    session, _ = mirrored(target, draft, hosted, acceptance(), scorer, length=2)
    assert run(session) == wanted


def test_a_second_turn_goes_on_with_the_context(target, draft, head):
    wanted = plain(target)
    hosted = Oracle([*PROMPT, *wanted], head)
    session, drafter = mirrored(target, draft, hosted, length=2)
    assert run(session, 20) == wanted[:20]
    again = run(session)
    assert again == wanted
    assert drafter.length == len(session.history)


def test_the_device_runs_in_one_thread_of_its_own(target, draft, head):
    threads = set()

    class Watched(Oracle):
        def __call__(self, *given):
            threads.add(threading.get_ident())
            return super().__call__(*given)

    session, _ = mirrored(target, draft, Watched([*PROMPT, *plain(target)], head), length=2)
    run(session)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_launches_that_never_hit_pause(target, draft, head):
    """A slow device whose branches never come true is left alone after a trial."""
    wanted = plain(target)

    class Slow(Oracle):
        def __call__(self, features, block, positions=None, seen=None):
            if seen is not None:
                time.sleep(0.02)
            return super().__call__(features, block, positions, seen)

    hosted = Slow([*PROMPT, *wanted], head, lambda place: True)
    session, drafter = mirrored(target, draft, hosted, length=1, policy=BranchPolicy(1))
    assert run(session) == wanted
    assert drafter.policy.hits == 0
    assert drafter.policy.launched <= 10


@pytest.mark.parametrize("calls", [0, 1, 6])
def test_a_device_that_fails(target, draft, head, calls):
    wanted = plain(target)

    class Failing(Oracle):
        def __call__(self, *given):
            self.calls = getattr(self, "calls", -1) + 1
            if self.calls == calls:
                raise DeviceError("it is gone")
            return super().__call__(*given)

    session, drafter = mirrored(target, draft, Failing([*PROMPT, *wanted], head), length=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(session) == wanted
    assert sum(issubclass(w.category, Notice) for w in caught) == 1
    launched = drafter.policy.launched
    assert run(session) == wanted
    assert drafter.policy.launched == launched
