"""Near ties, on a target whose passes over several rows round differently, as on a GPU."""

from __future__ import annotations

import functools
import itertools

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.generate import generate_step

from mirror_sd.decoding import divergence
from mirror_sd.decoding.acceptance import ExactGreedyAcceptance, GreedyAcceptance
from mirror_sd.decoding.length import PLAIN, FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.proposal import Proposal
from mirror_sd.decoding.session import Session
from mirror_sd.errors import Notice
from mirror_sd.models.target import Target, TargetModel
from tests import tiny
from tests.decoding.test_session import PROMPT, TARGET, plain
from tests.families import FAMILIES

# Every kind of cache: rows behind an offset, a window that wraps, chunks, recurrent states, lists.
# With the size of the rounding, and a margin of at least twice what it moves logits by.
KINDS = {
    "llama": (5e-3, 0.8),
    "gemma3": (15e-4, 0.8),
    "llama4": (5e-3, 0.3),
    "qwen3_5": (7e-4, 0.8),
    "mamba2": (7e-4, 0.8),
    "lfm2": (8e-3, 0.8),
    "falcon_h1": (1e-3, 0.35),
}
PATTERNS = ((5, 3, 4), (0, 5, 1, 5, 5), (2,))
COUNT = 60


class Rough(nn.Embedding):
    """Rounds coarsely in passes over a few rows, as a GPU's kernels may: what comes out of the
    layers behind it, cached rows and logits, differs too.
    """

    rounding = 0.0

    def __call__(self, tokens: mx.array) -> mx.array:
        rows = super().__call__(tokens)
        if not 1 < tokens.shape[-1] <= 6:
            return rows
        size = self.rounding * mx.abs(rows).max()
        return rows + mx.random.uniform(-size, size, rows.shape, key=mx.random.key(3))


@functools.cache
def rough(family: str) -> TargetModel:
    model = tiny.model(FAMILIES[family])
    for path, module in model.named_modules():
        if path.endswith("embed_tokens") or path.endswith("embeddings"):
            twin = Rough(*module.weight.shape)
            twin.weight, twin.rounding = module.weight, KINDS[family][0]
            parent = functools.reduce(getattr, path.split(".")[:-1], model)
            setattr(parent, path.split(".")[-1], twin)
            break
    else:
        raise AssertionError(f"{family} has no embedding that is known here")
    return TargetModel(model, FAMILIES[family], family)


@functools.cache
def answer_of(family: str, prompt: tuple[int, ...] = tuple(PROMPT)) -> list[int]:
    steps = generate_step(mx.array(prompt), rough(family).model, max_tokens=80)
    return [int(token) for token, _ in steps]


class Mixed(FixedLength):
    """Drafts for some cycles, then decodes plainly for some, over and over."""

    def __init__(self, drafted: int, plain: int):
        super().__init__(5)
        self._kinds = itertools.cycle([True] * drafted + [False] * plain)

    def plan(self, offers, depth):
        return super().plan(offers, depth) if next(self._kinds) else PLAIN


def decode(
    acceptance, family="llama", script=(5, 3, 4), policy=None, prompt=tuple(PROMPT)
) -> tuple[list[int], Session]:
    drafter = tiny.ScriptedDrafter(answer_of(family, prompt), len(prompt), script, 5)
    running = Session(Target(rough(family)), [drafter], acceptance, policy or FixedLength(5))
    running.prefill(prompt)
    cycles = list(running.stream(COUNT, until(())))
    return [token for cycle in cycles for token in cycle.tokens], running


def policies():
    return {"always": FixedLength(5), "few": Mixed(2, 3), "long": Mixed(9, 4)}


def test_the_rounding_changes_greedy_choices():
    changed = [
        decode(GreedyAcceptance(), family, (5,))[0] != answer_of(family)[:COUNT] for family in KINDS
    ]
    assert sum(changed) >= 4


@pytest.mark.filterwarnings("error::mirror_sd.errors.Notice")
@pytest.mark.parametrize("script", PATTERNS)
@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("family", KINDS)
def test_exact_decoding_says_what_plain_decoding_says(family, policy, script):
    said, running = decode(
        ExactGreedyAcceptance(KINDS[family][1]), family, script, policies()[policy]
    )
    assert said == answer_of(family)[:COUNT]
    assert running.statistics.accepted > 0
    assert running.statistics.redone > 0


@pytest.mark.parametrize("family", KINDS)
def test_rows_that_were_run_again_are_plain_decodings_bit_for_bit(family):
    said, running = decode(ExactGreedyAcceptance(1e9), family)  # everything is a near tie
    assert said == answer_of(family)[:COUNT]
    plain = Target(rough(family))
    for _ in plain.prefill(PROMPT[:-1]):
        pass
    for token in running.history[len(PROMPT) - 1 :]:
        plain.verify(mx.array([token]))
        plain.commit(1)
    probe = mx.array([7])
    assert mx.array_equal(running.target.verify(probe).logits, plain.verify(probe).logits)


def test_the_next_turn_does_not_depend_on_how_the_answer_was_drafted():
    answers = []
    for script in PATTERNS:
        first, running = decode(ExactGreedyAcceptance(KINDS["llama"][1]), script=script)
        prompt = (*PROMPT, *first, 9, 8, 7)
        running.drafters.clear()
        running.prefill(prompt)
        assert running.statistics.reused_tokens == len(PROMPT) - 1
        cycles = list(running.stream(20, until(())))
        answers.append([token for cycle in cycles for token in cycle.tokens])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("family", KINDS)
def test_an_interruption_while_rows_are_run_again_loses_nothing(family):
    drafter = tiny.ScriptedDrafter(answer_of(family), len(PROMPT), (5, 3, 4), 5)
    acceptance = ExactGreedyAcceptance(KINDS[family][1])
    running = Session(Target(rough(family)), [drafter], acceptance, Mixed(9, 4))
    verify, runs_again = running.target.verify, []

    def interrupted(tokens, rejectable=None):
        if rejectable is None:  # a row that is run again
            runs_again.append(tokens)
            if len(runs_again) == 3:
                raise KeyboardInterrupt
        return verify(tokens, rejectable)

    running.target.verify = interrupted
    running.prefill(PROMPT)
    with pytest.raises(KeyboardInterrupt):
        list(running.stream(COUNT, until(())))
    running.target.verify = verify
    assert running.target.length == len(running.history)
    running.prefill(PROMPT)
    said = [t for cycle in running.stream(COUNT, until(())) for t in cycle.tokens]
    assert said == answer_of(family)[:COUNT]


def test_a_margin_that_is_too_small_is_noticed():
    with pytest.warns(Notice, match="are not those of plain decoding"):
        said, _ = decode(ExactGreedyAcceptance(0.0), "lfm2", (5,), Mixed(2, 1))
    assert said != answer_of("lfm2")[:COUNT]


def test_a_first_row_that_is_undecided_emits_nothing_and_is_decided_next():
    said, running = decode(ExactGreedyAcceptance(1e9))
    assert said == answer_of("llama")[:COUNT]
    assert running.statistics.passes == 2 * COUNT - 1  # the last token is never drafted for


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


def test_a_single_row_on_plain_decodings_caches_is_final():
    decision = ExactGreedyAcceptance()(mx.array([[1.0, 1.0]]), Proposal.none(), 0)
    assert decision.emitted.item() == 0
    assert decision.final().emitted.item() == 1


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
