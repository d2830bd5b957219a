"""Sampling under speculation: the same distribution, and with a seed the same text."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from mirror_sd.api import make_session
from mirror_sd.decoding.acceptance import RejectionAcceptance, SharedNoiseAcceptance
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.proposal import Proposal
from mirror_sd.decoding.sampling import SamplingSettings, Scorer
from mirror_sd.decoding.session import Session
from mirror_sd.errors import PromptError
from mirror_sd.models.loading import Pair
from mirror_sd.models.target import Target
from tests import tiny
from tests.decoding.test_session import DRAFT, PROMPT, TARGET

TARGET.lend()  # its embedding and head, to the draft
DRAWS = 200_000


def run(sampling: SamplingSettings, drafter=None, count: int = 40) -> list[int]:
    acceptance = SharedNoiseAcceptance(sampling, tiny.VOCAB)
    target = Target(TARGET, drafter.taps if drafter else ())
    scorer = Scorer(sampling.processors())
    drafters = [drafter] if drafter else []
    running = Session(target, drafters, acceptance, FixedLength(5), scorer)
    running.prefill(PROMPT)
    return [token for cycle in running.stream(count, until(())) for token in cycle.tokens]


SETTINGS = [
    SamplingSettings(temperature=1.0, seed=1),
    SamplingSettings(temperature=0.6, top_p=0.8, seed=2),
    SamplingSettings(temperature=1.5, top_k=12, seed=2**40 + 3),
    SamplingSettings(temperature=0.9, min_p=0.1, seed=4),
    SamplingSettings(temperature=0.8, repetition_penalty=1.4, frequency_penalty=0.5, seed=5),
    SamplingSettings(
        temperature=1.0, presence_penalty=1.0, logit_bias={7: 4.0}, banned_tokens={3}, seed=6
    ),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=lambda s: f"seed {s.seed}")
def test_a_seed_gives_the_same_text_with_any_draft_and_none(sampling):
    wanted = run(sampling)
    assert len(set(wanted)) > 10
    assert run(sampling, DFlashDrafter(DRAFT, TARGET)) == wanted
    for script in ([5], [0], [2, 4, 1]):
        assert run(sampling, tiny.ScriptedDrafter(wanted, len(PROMPT), script, 5)) == wanted


def test_seeds_differ_and_so_do_unseeded_answers():
    texts = {tuple(run(SamplingSettings(temperature=1.0, seed=s))) for s in (1, 2)}
    assert len(texts) == 2
    unseeded = {tuple(run(SamplingSettings(temperature=1.0))) for _ in range(2)}
    assert len(unseeded) == 2


def test_a_draft_that_draws_with_the_same_noise_agrees_more_often():
    """The point of sharing noise: two nearby distributions mostly say the same token."""
    logits = mx.random.normal((400, 50), key=mx.random.key(0))
    near = logits + 0.1 * mx.random.normal((400, 50), key=mx.random.key(1))
    shared = SharedNoiseAcceptance(SamplingSettings(temperature=1.0, seed=1), 50)
    apart = RejectionAcceptance(SamplingSettings(temperature=1.0, seed=1), 50)
    own = shared.draw(logits, 0)
    assert (shared.draw(near, 0) == own).sum().item() > 350
    assert (apart.draw(near, 0) == own).sum().item() < 150


# --- distributions --------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = p * counts.sum()
    return float((((counts - expected) ** 2) / expected).sum())


def limit(width: int) -> float:
    """Chi-square beyond which fewer than 1 in a million right samplers fall (Wilson-Hilferty)."""
    df, z = width - 1, 4.75
    return df * (1 - 2 / (9 * df) + z * math.sqrt(2 / (9 * df))) ** 3


P = np.array([0.35, 0.25, 0.15, 0.1, 0.1, 0.05])
Q = np.array([0.05, 0.3, 0.3, 0.1, 0.05, 0.2])


def reject(p: np.ndarray, q: np.ndarray, draws: int, residual: bool = True) -> np.ndarray:
    """What many one-token blocks emit. Rows do not depend on what was said, so every emitted token
    is an independent draw, corrections and bonus tokens included.

    Without `residual`, the correction is drawn from p itself: the classic mistake.
    """
    acceptance = RejectionAcceptance(SamplingSettings(temperature=1.0, seed=11), len(p))
    if not residual:
        right = acceptance._residual
        acceptance._residual = lambda p, q, *rest: right(p, mx.zeros_like(q), *rest)
    target = mx.log(mx.array(np.stack([p, p]), dtype=mx.float32))
    draft = mx.log(mx.array(q[None], dtype=mx.float32))
    counts = np.zeros(len(p), dtype=np.int64)
    start = 0
    while counts.sum() < draws:
        decisions = []
        for position in range(start, start + 4000, 2):
            proposal = Proposal(acceptance.draw(draft, position), draft)
            decisions.append(acceptance(target, proposal, position))
        start += 4000
        tokens = np.array(mx.stack([d.tokens for d in decisions]))
        emitted = np.array(mx.stack([d.emitted for d in decisions]))
        counts += np.bincount(tokens[np.arange(2) < emitted[:, None]], minlength=len(p))
    return counts


@pytest.mark.parametrize(
    "draws", [20_000, pytest.param(DRAWS, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_rejection_sampling_draws_from_the_target(draws):
    assert chi_square(reject(P, Q, draws), P) < limit(len(P))


def test_the_chi_square_notices_a_wrong_residual():
    assert chi_square(reject(P, Q, 20_000, residual=False), P) > 10 * limit(len(P))


def test_shared_noise_draws_from_the_target():
    acceptance = SharedNoiseAcceptance(SamplingSettings(temperature=1.0, seed=3), len(P))
    rows = mx.broadcast_to(mx.log(mx.array(P, dtype=mx.float32)), (20_000, len(P)))
    counts = np.zeros(len(P), dtype=np.int64)
    for start in range(0, DRAWS, len(rows)):
        decision = acceptance(rows[:1], Proposal.none(), start)
        assert decision.emitted.item() == 1
        drawn = np.array(acceptance.draw(rows, start))
        assert drawn[0] == decision.tokens.item()
        counts += np.bincount(drawn, minlength=len(P))
    assert chi_square(counts, P) < limit(len(P))


def test_rejection_sampling_over_candidates_draws_from_the_target():
    """As DFlash 2 proposes: q lives on some tokens only."""
    acceptance = RejectionAcceptance(SamplingSettings(temperature=1.0, seed=5), len(P))
    target = mx.log(mx.array(np.stack([P, P]), dtype=mx.float32))
    candidates = mx.array([[4, 1, 2]])
    scores = mx.array([[0.3, 1.0, -0.4]])
    counts = np.zeros(len(P), dtype=np.int64)
    for start in range(0, 24_000, 6000):
        decisions = []
        for position in range(start, start + 6000, 2):
            tokens = acceptance.draw(scores, position, candidates)
            decisions.append(acceptance(target, Proposal(tokens, scores, candidates), position))
        first = np.array(mx.stack([d.tokens[0] for d in decisions]))
        counts += np.bincount(first, minlength=len(P))
    assert chi_square(counts, P) < limit(len(P))


def test_rejection_sampling_of_certain_tokens_draws_from_the_target():
    """As an n-gram drafter proposes: without scores."""
    acceptance = RejectionAcceptance(SamplingSettings(temperature=1.0, seed=6), len(P))
    target = mx.log(mx.array(np.stack([P, P]), dtype=mx.float32))
    counts = np.zeros(len(P), dtype=np.int64)
    for start in range(0, 24_000, 6000):
        decisions = [
            acceptance(target, Proposal(mx.array([2])), position)
            for position in range(start, start + 6000, 2)
        ]
        first = np.array(mx.stack([d.tokens[0] for d in decisions]))
        counts += np.bincount(first, minlength=len(P))
    assert chi_square(counts, P) < limit(len(P))


# --- settings -------------------------------------------------------------------------------------


@given(
    script=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    penalties=st.tuples(
        st.sampled_from([1.0, 1.3]), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.4])
    ),
)
@settings(max_examples=20)
def test_processors_see_the_history_they_see_in_plain_decoding(script, penalties):
    """Greedy with penalties: every row of a block must know the drafted tokens before it."""
    repetition, presence, frequency = penalties
    sampling = SamplingSettings(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    theirs = make_logits_processors(
        repetition_penalty=repetition if repetition != 1.0 else None,
        presence_penalty=presence or None,
        frequency_penalty=frequency or None,
    )
    steps = generate_step(mx.array(PROMPT), TARGET.model, max_tokens=30, logits_processors=theirs)
    wanted = [int(token) for token, _ in steps]
    drafter = tiny.ScriptedDrafter(wanted, len(PROMPT), script, 5)
    running = make_session(
        Pair(TARGET, None, frozenset()),
        sampling=sampling,
        drafters=[drafter],
        policy=FixedLength(5),
    )
    running.prefill(PROMPT)
    assert [t for c in running.stream(30, until(())) for t in c.tokens] == wanted


def test_banned_tokens_never_come_and_only_allowed_ones_do():
    free = run(SamplingSettings(temperature=1.0, seed=1))
    banned = frozenset(free[:5])
    said = run(SamplingSettings(temperature=1.0, seed=1, banned_tokens=banned))
    assert not banned & set(said)
    allowed = frozenset({7, 8, 9})
    sampling = SamplingSettings(temperature=1.0, seed=1, allowed_tokens=allowed)
    assert set(run(sampling, DFlashDrafter(DRAFT, TARGET))) == allowed


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"top_k": 999}, "top_k is 999"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"logit_bias": {263: 1.0}}, "token id 263"),
        ({"banned_tokens": frozenset({-1})}, "token id -1"),
        ({"allowed_tokens": frozenset()}, "no token may come"),
        ({"temperature": math.nan}, "temperature is nan"),
    ],
)
def test_settings_out_of_range_are_refused(sampling, said):
    with pytest.raises(PromptError, match=said):
        SamplingSettings(**sampling).check(tiny.VOCAB)


def test_exact_and_a_temperature_contradict_each_other():
    with pytest.raises(PromptError, match="with a temperature use a seed"):
        make_session(
            Pair(TARGET, None, frozenset()), exact=True, sampling=SamplingSettings(temperature=1.0)
        )
