"""The draft's vocabulary: chosen by measured cost against the measured share of what is said."""

from __future__ import annotations

import random

import pytest

from mirror_sd.api import make_session
from mirror_sd.decoding.draft_vocab import FULL, choose
from mirror_sd.decoding.output import until
from mirror_sd.decoding.profile import Profile
from mirror_sd.decoding.survival import Survival
from mirror_sd.models import token_usage
from mirror_sd.models.draft_head import DraftHead
from mirror_sd.models.loading import Draft, Pair
from mirror_sd.models.token_usage import ENOUGH, SIZES, TokenUsage
from tests import tiny
from tests.decoding.test_session import DRAFT, PROMPT, TARGET

VOCAB = 100_000
VERIFY, DRAFTING = 0.05, 0.01  # seconds, without the head


def profile_with(places: list[int]) -> Profile:
    """A profile of a target that says tokens at these places of the order, over and over."""
    profile = Profile()
    profile.usage.judge(range(VOCAB))
    for step in range(ENOUGH):
        profile.usage.observe(places[step % len(places)], in_context=False)
    for rows in range(1, 9):
        profile.costs.observe_verify(rows, 0, VERIFY)
    profile.survival["dflash"] = Survival([0.8], weight=100)
    return profile


def settled(profile: Profile, seconds, default=8192) -> int | None:
    """The choice after some answers, each of which measures drafting with the size in use."""
    size = choose(profile, "dflash", 7, VOCAB, default, seconds)
    for _ in range(4):
        for length in (1, 4, 7):
            profile.costs.observe_draft("dflash", length, DRAFTING + seconds(size) * length / 7)
        size = choose(profile, "dflash", 7, VOCAB, default, seconds)
    return size


def linear(per_token: float):
    return lambda size: per_token * (VOCAB if size is None else size)


def test_the_default_is_taken_until_enough_is_known():
    def never(size):
        raise AssertionError("nothing is timed before it can matter")

    profile = Profile()
    assert choose(profile, "dflash", 7, VOCAB, 8192, never) == 8192
    assert choose(Profile(), "dflash", 7, VOCAB, None, never) is None
    profile.usage.judge([1])
    profile.usage.observe(1, in_context=False)
    profile.costs.observe_draft("dflash", 7, 0.1)
    assert choose(profile, "dflash", 7, VOCAB, 8192, never) == 8192


def test_a_dear_head_is_cut_to_what_the_target_says():
    assert settled(profile_with([5, 600, 1900]), linear(1e-6)) == 2048
    assert settled(profile_with([5, 600, 30_000]), linear(1e-6)) == 32768


def test_a_cheap_head_stays_whole_where_rare_tokens_are_said():
    assert settled(profile_with([5, 600, 99_000]), linear(1e-9)) is None


def test_what_is_chosen_is_the_best_rate():
    """Against rates computed here from the same facts."""
    rng = random.Random(1)
    places = [int(rng.paretovariate(0.35)) % VOCAB for _ in range(ENOUGH)]
    profile = profile_with(places)
    seconds = linear(3e-7)

    def rate(size: int | None) -> float:
        held = sum(place < (size or VOCAB) for place in places) / len(places)
        held /= sum(place < 8192 for place in places) / len(places)  # 0.8 was seen with 8192
        best = 0.0
        for length in range(1, 8):
            expected = sum(min(1.0, 0.8 * held) ** j for j in range(length + 1))
            drafting = DRAFTING + seconds(size) * length / 7
            best = max(best, expected / (VERIFY + drafting))
        return best

    chosen = settled(profile, seconds)
    assert max(rate(size) for size in (*SIZES, None)) <= 1.03 * rate(chosen)


def test_another_heads_draft_times_are_forgotten():
    profile = profile_with([5])
    choose(profile, "dflash", 7, VOCAB, 8192, linear(1e-6))
    profile.costs.observe_draft("dflash", 7, DRAFTING + 8192e-6)
    assert choose(profile, "dflash", 7, VOCAB, 8192, linear(1e-6)) == 2048
    assert profile.costs.draft("dflash", 7) is None


def test_shares_are_measured_on_text_that_came_later_and_context_counts_as_held():
    usage = TokenUsage()
    usage.judge([7, 8, 9])
    for token in (7, 5000, 5000):
        usage.observe(token, in_context=token == 7)
    usage.observe(6000, in_context=True)
    assert usage.share(None) == 1.0
    assert usage.share(2048) == 0.5  # the two fives of 5000 were in no vocabulary
    assert usage.total == 4


def test_the_order_follows_the_counts_once_there_are_enough():
    usage = TokenUsage()
    assert usage.order(None) is None
    assert usage.order([3, 1]) == [3, 1]
    for _ in range(ENOUGH):
        usage.observe(1, in_context=False)
    usage.observe(9, in_context=False)
    assert usage.order([3, 1]) == [1, 9, 3]


def test_what_was_learnt_is_kept():
    profile = profile_with([5, 600, 30_000])
    profile.file = Profile.open(["vocabulary"]).file
    profile.head_seconds[2048], profile.draft_vocab = 0.25, FULL
    profile.save()
    again = Profile.open(["vocabulary"])
    assert [again.usage.share(size) for size in SIZES] == [profile.usage.share(s) for s in SIZES]
    assert again.usage.total == ENOUGH
    assert (again.head_seconds, again.draft_vocab) == ({2048: 0.25}, FULL)


def test_decoding_counts_the_targets_tokens_and_not_the_prompts(monkeypatch):
    TARGET.lend()
    pair = Pair(TARGET, Draft(DRAFT, "counted"), frozenset())
    session = make_session(pair)
    session.prefill(PROMPT)
    answer = [t for c in session.stream(30, until(())) for t in c.tokens]
    usage = session.policy.profile.usage
    # The prompt's last token is the first anchor, the answer's last one is not in the caches yet.
    assert usage.total == len(answer)
    assert usage._counts == token_usage.Counter([PROMPT[-1], *answer[:-1]])


@pytest.mark.parametrize("size", [None, 40])
def test_a_head_tells_what_was_said_and_whether_it_was_in_the_context(size):
    usage = TokenUsage()
    head = DraftHead(TARGET, size, None, usage)
    head.include([3, 200])
    head.include([200, 210, 210], said=True)
    assert usage.total == 3
    assert usage.share(2048) == 1.0  # a tiny vocabulary is held whole
    assert SIZES[0] > tiny.VOCAB
