"""Near ties, on a target whose passes over several rows round differently, as on a GPU."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mirror_sd.decoding import divergence
from mirror_sd.decoding.acceptance import ExactGreedyAcceptance, GreedyAcceptance
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.proposal import Proposal
from mirror_sd.decoding.session import Session
from mirror_sd.models.target import Target, Verification
from tests import tiny
from tests.decoding.test_session import PROMPT, TARGET, plain

NOISE = 0.25


class Noisy(Target):
    """Adds noise to the logits of passes over several rows."""

    def verify(self, tokens: mx.array) -> Verification:
        verification = super().verify(tokens)
        if tokens.shape[0] == 1:
            return verification
        noise = mx.random.uniform(-NOISE, NOISE, verification.logits.shape, key=mx.random.key(3))
        return Verification(verification.logits + noise, verification.features)


def decode(acceptance, script=(5, 3, 4)) -> tuple[list[int], Session]:
    answer = plain(tuple(PROMPT), 80)
    drafter = tiny.ScriptedDrafter(answer, len(PROMPT), script, 5)
    running = Session(Noisy(TARGET), [drafter], acceptance, FixedLength(5))
    running.prefill(PROMPT)
    cycles = list(running.stream(60, until(())))
    return [token for cycle in cycles for token in cycle.tokens], running


def test_the_noise_changes_greedy_choices():
    assert decode(GreedyAcceptance())[0] != plain(tuple(PROMPT), 80)[:60]


def test_exact_decoding_says_what_plain_decoding_says():
    said, running = decode(ExactGreedyAcceptance(2 * NOISE))
    assert said == plain(tuple(PROMPT), 80)[:60]
    assert running.statistics.accepted > 10  # and still speculates


def test_a_first_row_that_is_undecided_emits_nothing_and_is_decided_next():
    said, running = decode(ExactGreedyAcceptance(1e9))  # everything is a near tie
    assert said == plain(tuple(PROMPT), 80)[:60]
    assert running.statistics.passes == 2 * 60 - 1  # the last token is never drafted for


@pytest.mark.parametrize(
    ("best", "emitted"), [([0.5, 0.5, 0.5], 3), ([0.5, 1e-4, 0.5], 1), ([1e-4, 0.5, 0.5], 0)]
)
def test_only_what_stands_before_a_near_tie_is_emitted(best, emitted):
    logits = mx.array([[gap, 0.0, -9.0] for gap in best])
    decision = ExactGreedyAcceptance()(logits, Proposal(mx.array([0, 0])), 0)
    assert decision.accepted.item() == 2
    assert decision.emitted.item() == emitted


def test_the_margin_grows_with_the_coarseness_of_the_format():
    gaps = mx.array([[20.25, 20.0, 0.0], [20.25, 20.0, 0.0]])
    proposal = Proposal(mx.array([0]))
    exact = ExactGreedyAcceptance()
    assert exact(gaps, proposal, 0).emitted.item() == 2
    assert exact(gaps.astype(mx.bfloat16), proposal, 0).emitted.item() == 0


def test_a_single_row_is_always_decided():
    decision = ExactGreedyAcceptance()(mx.array([[1.0, 1.0]]), Proposal.none(), 0)
    assert decision.emitted.item() == 1


def test_a_wrong_token_is_not_called_a_tie():
    answer = plain(tuple(PROMPT), 80)[:20]
    wrong = [*answer[:7], (answer[7] + 1) % tiny.VOCAB, *answer[8:]]
    found = divergence.find(TARGET, PROMPT, wrong, answer)
    assert found is not None
    assert (found.position, found.plain_token) == (7, answer[7])
    assert found.margin > 100 * found.noise
    assert not found.is_tie
    assert "NOT a tie" in str(found)


def test_identical_answers_have_no_divergence():
    answer = plain(tuple(PROMPT), 80)[:20]
    assert divergence.find(TARGET, PROMPT, answer, list(answer)) is None


def test_an_answer_that_ends_early_is_no_tie():
    answer = plain(tuple(PROMPT), 80)[:20]
    found = divergence.find(TARGET, PROMPT, answer[:12], answer)
    assert found is not None
    assert (found.position, found.token, found.plain_token) == (12, None, answer[12])
    assert not found.is_tie


def test_a_margin_within_the_measured_rounding_is_a_tie():
    assert divergence.Divergence(3, 1, 2, margin=0.02, noise=0.01).is_tie
    assert not divergence.Divergence(3, 1, 2, margin=0.05, noise=0.01).is_tie
    assert divergence.Divergence(3, 1, 2, margin=5e-5, noise=0.0).is_tie
