"""The length policy on recorded text.

For every token of real answers of the demo pair: how much of a block the draft had right, and how
sure it was (`benchmarks/record.py`).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mirror_sd.decoding.adaptive import AdaptiveLength
from mirror_sd.decoding.length import FixedLength, LengthPolicy, Outcome
from tests.decoding.test_adaptive import MACHINES

RECORDS = [
    json.loads(line) for line in Path(__file__).with_name("recorded.jsonl").read_text().splitlines()
]
KINDS = tuple(dict.fromkeys(record["kind"] for record in RECORDS))
ROUNDS = 3  # times that a user asks the same things


def seconds(policy: LengthPolicy, records: list[dict], machine: str, seed: int = 0) -> float:
    """How long the policy takes for the answers, one after the other."""
    dice = random.Random(seed)
    return sum(_answer(policy, record, machine, dice) for record in records)


def _answer(policy, record, machine, dice) -> float:
    verify, draft = MACHINES[machine]
    at, spent, count = 0, 0.0, len(record["accepted"])
    while at < count:
        confidences = record["confidences"][at]
        left = count - at
        plan = policy.plan({"dflash": min(len(confidences), left - 1)}, depth=100)
        verified, seen = plan.length, None
        if plan.length and policy.trims:
            seen = confidences[: plan.length]
            verified = policy.trim(plan, seen, 100)
        right = min(record["accepted"][at], verified)
        noise = 1 + 0.05 * dice.gauss(0, 1)
        drafting = draft * noise / 1000 if plan.length else 0.0
        verifying = verify[verified + 1] * noise / 1000
        spent += drafting + verifying
        at += min(right + 1, left)
        policy.observe(
            Outcome(
                plan.source, plan.length, verified, right, min(right + 1, left), 100,
                drafting, verifying, seen,
            )
        )  # fmt: skip
    policy.finish()
    return spent


def best_fixed(records: list[dict], machine: str) -> float:
    return min(seconds(FixedLength(n), records, machine) for n in range(8))


@pytest.mark.parametrize("machine", MACHINES)
def test_regret_on_recorded_text(machine):
    records = RECORDS * ROUNDS
    assert seconds(AdaptiveLength(), records, machine) <= 1.05 * best_fixed(records, machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_text_costs_more_than_three_percent(machine, kind):
    """On a machine that is known, as from the second conversation on."""
    policy = AdaptiveLength()
    seconds(policy, RECORDS, machine)
    records = [record for record in RECORDS if record["kind"] == kind] * ROUNDS
    plain = seconds(FixedLength(0), records, machine)
    assert seconds(policy, records, machine) <= 1.03 * plain


def test_the_recording_is_what_it_says():
    assert len(KINDS) == 6
    assert sum(len(record["accepted"]) for record in RECORDS) > 1000
    for record in RECORDS:
        assert len(record["confidences"]) == len(record["accepted"])
        assert all(0 <= right <= 7 for right in record["accepted"])
