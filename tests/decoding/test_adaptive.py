"""The length policy on synthetic machines and texts, against the best fixed length in hindsight."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.decoding.adaptive import AdaptiveLength
from mirror_sd.decoding.costs import CostTable, depth_bucket
from mirror_sd.decoding.length import FixedLength, LengthPolicy, Outcome
from mirror_sd.decoding.profile import Profile
from mirror_sd.decoding.survival import Survival, expected_tokens

LONGEST = 7
TOKENS = 2000
# Milliseconds of a target pass by rows, and of a draft: a CPU, a GPU, a GPU with a step at 4 rows.
MACHINES = {
    "cpu": ({1: 80, 2: 98, 3: 123, 4: 148, 5: 150, 6: 152, 7: 170, 8: 182}, 28),
    "gpu": ({1: 20, 2: 20.4, 3: 20.8, 4: 21, 5: 21.5, 6: 22, 7: 22.5, 8: 23}, 4),
    "step": ({1: 30, 2: 31, 3: 32, 4: 33, 5: 52, 6: 53, 7: 54, 8: 55}, 5),
}
# How often a draft is right, from stretch to stretch of the text.
TEXTS = {
    "hopeless": [0.15],
    "poor": [0.45],
    "fair": [0.65],
    "good": [0.88],
    "drifting": [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2],
    "alternating": [0.9, 0.2] * 4,
}


def text_of(kind: str, seed: int) -> list[bool]:
    """For each token whether the draft would have said it."""
    dice = random.Random(seed)
    chances = TEXTS[kind]
    size = TOKENS // len(chances)
    return [dice.random() < chance for chance in chances for _ in range(size)]


def seconds(policy: LengthPolicy, text: list[bool], machine: str, seed: int = 0) -> float:
    """How long the policy takes for the text."""
    verify, draft = MACHINES[machine]
    dice = random.Random(seed)
    at, spent = 0, 0.0
    while at < len(text):
        left = len(text) - at
        plan = policy.plan({"dflash": min(LONGEST, left - 1)}, depth=100)
        right = 0
        while right < plan.length and text[at + right]:
            right += 1
        noise = 1 + 0.05 * dice.gauss(0, 1)
        drafting = draft * noise / 1000 if plan.length else 0.0
        verifying = verify[plan.length + 1] * noise / 1000
        emitted = min(right + 1, left)
        spent += drafting + verifying
        at += emitted
        policy.observe(
            Outcome(plan.source, plan.length, plan.length, right, emitted, 100, drafting, verifying)
        )
    return spent


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("seed", range(2))
def test_regret_against_the_best_fixed_length_in_hindsight(machine, kind, seed):
    text = text_of(kind, seed)
    best = min(seconds(FixedLength(n), text, machine) for n in range(LONGEST + 1))
    assert seconds(AdaptiveLength(), text, machine) <= 1.05 * best


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_hopeless_text_costs_at_most_three_percent(machine, seed):
    text = [False] * 1000
    plain = seconds(FixedLength(0), text, machine)
    assert seconds(AdaptiveLength(), text, machine, seed) <= 1.03 * plain


def test_alternating_text_is_faster_than_any_fixed_length():
    """Where neither drafting nor plain decoding is right all along, switching beats both."""
    text = text_of("alternating", 1)
    best = min(seconds(FixedLength(n), text, "cpu") for n in range(LONGEST + 1))
    assert seconds(AdaptiveLength(), text, "cpu") < 0.95 * best


def test_stationary_text_is_not_met_with_oscillation():
    policy = AdaptiveLength()
    lengths = []
    real = policy.plan

    def plan(offers, depth):
        chosen = real(offers, depth)
        lengths.append(chosen.length)
        return chosen

    policy.plan = plan
    seconds(policy, text_of("good", 2), "gpu")
    late = lengths[len(lengths) // 2 :]
    changes = sum(a != b for a, b in itertools.pairwise(late))
    assert changes < len(late) / 20


def test_a_known_machine_is_not_measured_again():
    first = AdaptiveLength()
    seconds(first, text_of("hopeless", 1), "cpu")
    first.profile.file = Profile.open(["m"]).file
    first.finish()
    again = AdaptiveLength(Profile.open(["m"]))
    text = [False] * 300
    assert seconds(again, text, "cpu") <= 1.03 * seconds(FixedLength(0), text, "cpu")


def test_a_source_that_offers_nothing_is_not_chosen():
    policy = AdaptiveLength()
    for _ in range(20):
        plan = policy.plan({"ngram": 0}, 10)
        assert plan.length == 0
        policy.observe(Outcome(None, 0, 0, 0, 1, 10, 0.0, 0.02))


def test_the_source_with_the_higher_expected_gain_is_chosen():
    policy = AdaptiveLength()
    for source, seconds_of_draft, chance in (("dflash", 0.02, 0.5), ("ngram", 0.0, 0.9)):
        policy.costs.observe_draft(source, 4, seconds_of_draft)
        policy.survival[source] = Survival([chance], weight=50)
    for rows in (1, 2, 3, 5):
        policy.costs.observe_verify(rows, 10, 0.05 + 0.001 * rows)
    policy.observe(Outcome(None, 0, 0, 0, 1, 10, 0.0, 0.051))
    assert policy.plan({"dflash": 4, "ngram": 4}, 10).source == "ngram"
    assert policy.plan({"dflash": 4, "ngram": 0}, 10).source == "dflash"


def test_unconfident_tokens_are_not_verified():
    policy = AdaptiveLength()
    for rows in range(1, 9):
        policy.costs.observe_verify(rows, 10, MACHINES["cpu"][0][rows] / 1000)
    policy.costs.observe_draft("dflash", 7, 0.028)
    policy.observe(Outcome(None, 0, 0, 0, 1, 10, 0.0, 0.08))
    policy.survival["dflash"] = Survival([0.9], weight=50)
    plan = policy.plan({"dflash": 7}, 10)
    assert plan.length > 0
    assert policy.trim(plan, [0.95] * plan.length, 10) == plan.length
    assert policy.trim(plan, [0.95, 0.95, *[0.05] * (plan.length - 2)], 10) <= 3
    assert policy.trim(plan, [0.05] * plan.length, 10) == 0


# --- costs and survival ---------------------------------------------------------------------------


def test_costs_are_medians_of_the_latest_measurements():
    table = CostTable()
    for took in (9.0, 0.1, 0.11, 0.12, 0.1):
        table.observe_verify(1, 10, took)
    assert table.verify(1, 10) == 0.11
    for took in [0.2] * 9:
        table.observe_verify(1, 10, took)
    assert table.verify(1, 10) == 0.2  # a drift is followed


def test_unmeasured_rows_lie_between_their_neighbours():
    table = CostTable()
    table.observe_verify(2, 10, 0.1)
    table.observe_verify(6, 10, 0.3)
    assert table.verify(1, 10) == 0.1
    assert table.verify(4, 10) == pytest.approx(0.2)
    assert table.verify(8, 10) == pytest.approx(0.4)


def test_a_new_depth_borrows_the_staircase_and_scales_it():
    table = CostTable()
    for rows, took in ((1, 0.1), (2, 0.11), (4, 0.2), (8, 0.3)):
        table.observe_verify(rows, 10, took)
    assert table.verify(8, 5000) == pytest.approx(0.3)
    table.observe_verify(1, 5000, 0.2)
    assert table.verify(8, 5000) == pytest.approx(0.6)
    assert table.verify(8, 10) == pytest.approx(0.3)


@pytest.mark.parametrize(("depth", "bucket"), [(0, 0), (255, 0), (256, 1), (512, 2), (4096, 5)])
def test_depth_buckets_double(depth, bucket):
    assert depth_bucket(depth) == bucket


def test_a_profile_survives_on_disk():
    profile = Profile.open(["a machine", "a pair"])
    profile.costs.observe_verify(3, 700, 0.25)
    profile.costs.observe_draft("dflash", 7, 0.03)
    profile.survival["dflash"] = Survival([0.8])
    profile.survival["dflash"].observe(2, 1)
    profile.save()
    again = Profile.open(["a machine", "a pair"])
    assert again.costs.verify(3, 700) == 0.25
    assert again.costs.draft("dflash", 7) == 0.03
    wanted = profile.survival["dflash"].chances(2)
    assert again.survival["dflash"].chances(2) == pytest.approx(wanted, abs=1e-3)
    assert Profile.open(["another machine", "a pair"]).costs.verify(1, 0) is None


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"costs": {"version": 99}, "survival": {}}', '{"costs": 3}']
)
def test_a_damaged_or_older_profile_is_as_none(content):
    profile = Profile.open(["x"])
    assert profile.file is not None
    profile.file.parent.mkdir(parents=True, exist_ok=True)
    profile.file.write_text(content)
    assert Profile.open(["x"]).costs.verify(1, 0) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    Profile(file=tmp_path / "file" / "profile.json").save()


@given(chances=st.lists(st.floats(0, 1), max_size=8))
def test_expected_tokens_grow_by_the_chance_to_get_there(chances):
    expected = expected_tokens(chances)
    assert expected[0] == 1
    reached = 1.0
    for i, chance in enumerate(chances):
        reached *= chance
        assert expected[i + 1] - expected[i] == pytest.approx(reached)


def test_survival_counts_positions_that_were_reached_only():
    survival = Survival([0.5], weight=2, decay=1.0)
    for _ in range(100):
        survival.observe(4, 2)  # the third position fails every time
    first, second, third, fourth = survival.chances(4)
    assert first > 0.95
    assert second > 0.95
    assert third < 0.05
    assert fourth > 0.8  # never reached: it leans on the first


def test_bad_luck_far_out_is_forgotten_when_short_drafts_go_well():
    survival = Survival([0.9])
    for _ in range(20):
        survival.observe(3, 2)
    low = survival.chances(3)[2]
    for _ in range(400):
        survival.observe(1, 1)
    assert low < 0.2
    assert survival.chances(3)[2] > 0.6


def test_what_was_left_out_for_lack_of_confidence_does_not_flatter_the_draft():
    """Half of the drafts are not worth verifying; the other half is right."""
    survival = Survival()
    for _ in range(100):
        survival.observe(1, 1, [0.95])
        survival.observe(0, 0, [0.15])
    assert survival.chances(1)[0] == pytest.approx(0.55, abs=0.1)


def test_confidence_is_calibrated_by_what_came_of_it():
    survival = Survival()
    for _ in range(400):
        survival.observe(1, 0, [0.95])  # a boastful draft
    assert survival.calibrated([0.95])[0] < 0.1
    assert survival.calibrated([0.55])[0] == pytest.approx(0.55)
