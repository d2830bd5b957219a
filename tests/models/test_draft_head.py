from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mirror_sd.api import make_session
from mirror_sd.decoding.output import until
from mirror_sd.decoding.sampling import SamplingSettings
from mirror_sd.errors import CheckpointError, PromptError
from mirror_sd.models.draft_head import RANKING, DraftHead, read_ranking
from mirror_sd.models.loading import Draft, Pair
from mirror_sd.models.target import TargetModel
from tests import tiny
from tests.decoding.test_session import DRAFT, PROMPT, TARGET, plain
from tests.families import FAMILIES

TARGET.lend()
HIDDEN = mx.random.normal((3, 64), key=mx.random.key(0))


def quantized() -> TargetModel:
    model = tiny.model(FAMILIES["gemma2"])  # tied, scaled, softcapped
    nn.quantize(model, group_size=32, bits=4)
    target = TargetModel(model, FAMILIES["gemma2"], "quantised")
    target.lend()
    return target


@pytest.mark.parametrize("target", [TARGET, quantized()], ids=["float", "quantised and tied"])
def test_scores_are_the_targets_own_for_the_tokens_that_are_in(target):
    ranking = [int(t) for t in np.random.default_rng(0).permutation(tiny.VOCAB)]
    head = DraftHead(target, 40, ranking)
    head.include([*ranking[:5], ranking[100], ranking[101]])
    logits, ids = head(HIDDEN, None)
    assert ids.tolist() == [*ranking[:40], *sorted(ranking[100:102])]
    assert mx.abs(logits - target.logits(HIDDEN)[:, ids]).max().item() < 1e-4


def test_the_full_head_is_the_targets():
    for size in (None, tiny.VOCAB, 10**6):
        logits, ids = DraftHead(TARGET, size)(HIDDEN, None)
        assert ids is None
        assert mx.array_equal(logits, TARGET.logits(HIDDEN))


def test_without_a_ranking_low_ids_come_first():
    assert DraftHead(TARGET, 10)(HIDDEN, None)[1].tolist() == list(range(10))
    assert DraftHead(TARGET, 4, [7, 3])(HIDDEN, None)[1].tolist() == [7, 3, 0, 1]


@pytest.mark.parametrize(
    "sampling", [None, SamplingSettings(temperature=0.9, seed=3)], ids=["greedy", "drawn"]
)
@pytest.mark.parametrize("size", [1, 30])
def test_the_text_does_not_depend_on_the_drafts_vocabulary(size, sampling):
    def said(draft, **settings):
        session = make_session(
            Pair(TARGET, draft, frozenset()), block_size=None, sampling=sampling, **settings
        )
        session.prefill(PROMPT)
        return [t for c in session.stream(40, until(())) for t in c.tokens]

    text = said(Draft(DRAFT, "tiny"), draft_vocab=size)
    assert text == said(None)
    if sampling is None:
        assert text == plain(tuple(PROMPT), 80)[:40]


def test_only_likely_tokens_and_those_of_the_context_are_proposed():
    pair = Pair(TARGET, Draft(DRAFT, "tiny", list(range(200, 263))), frozenset())
    session = make_session(pair, block_size=6, draft_vocab=10)
    session.prefill(PROMPT)
    known = set(range(200, 210)) | set(PROMPT)
    for cycle in session.stream(30, until(())):
        assert set(cycle.proposed) <= known
        known |= set(cycle.tokens)


def test_a_size_that_leaves_nothing_is_refused():
    with pytest.raises(PromptError, match="draft_vocab is 0"):
        make_session(Pair(TARGET, Draft(DRAFT, "tiny"), frozenset()), draft_vocab=0)


def test_rankings_are_read_and_checked(tmp_path):
    assert read_ranking(tmp_path, 10) is None
    np.save(tmp_path / RANKING, np.array([3, 1, 2], np.uint16))
    assert read_ranking(tmp_path, 10) == [3, 1, 2]
    for wrong in ([3, 3], [11]):
        np.save(tmp_path / RANKING, np.array(wrong, np.uint16))
        with pytest.raises(CheckpointError, match="does not rank a vocabulary of 10"):
            read_ranking(tmp_path, 10)
    (tmp_path / RANKING).write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="damaged"):
        read_ranking(tmp_path, 10)


def test_the_demo_draft_ranks_its_whole_vocabulary(demo_pair):
    model, _ = demo_pair
    assert model.draft.ranking is not None
    assert sorted(model.draft.ranking) == list(range(49152))
