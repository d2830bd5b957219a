from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.errors import CheckpointError
from mirror_sd.training.batches import Sampling, Schedule
from mirror_sd.training.data import Text

BLOCK = 5


def texts(count: int = 40) -> list[Text]:
    rng = np.random.default_rng(3)
    found = []
    for number in range(count):
        prompt, answer = int(rng.integers(1, 9)), int(rng.integers(2, 30))
        ids = number * 100 + np.arange(prompt + answer)  # a token tells its text and position
        found.append(Text(ids, prompt, "kind"))
    return found


def schedule(**settings) -> Schedule:
    return Schedule(texts(), Sampling(batch=4, anchors=6, block_size=BLOCK, **settings))


def test_an_epoch_shows_every_text_once_and_the_next_one_in_another_order():
    plan = schedule()
    epochs = [
        [plan.batch(epoch * plan.steps_per_epoch + i).texts.tolist() for i in range(10)]
        for epoch in range(2)
    ]
    assert all(sorted(t for step in epoch for t in step) == list(range(40)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_anchors_are_drawn_anew_each_epoch():
    plan = schedule()
    seen = {}
    for step in range(2 * plan.steps_per_epoch):
        batch = plan.batch(step)
        for text, anchors in zip(batch.texts, batch.anchors, strict=True):
            seen.setdefault(int(text), []).append(anchors.tolist())
    assert sum(first != second for first, second in seen.values()) > 30


@given(step=st.integers(0, 60), ranks=st.sampled_from([1, 2, 4]))
def test_machines_share_exactly_what_one_would_see(step, ranks):
    plan = schedule(visible_prefix=0.5, feature_lag=0.5)
    whole = plan.batch(step)
    parts = [
        schedule(visible_prefix=0.5, feature_lag=0.5).batch(step, r, ranks) for r in range(ranks)
    ]
    for rank, part in enumerate(parts):
        assert part.texts.tolist() == whole.texts[rank::ranks].tolist()
        for name in ("anchors", "ends", "labels", "visible", "weights", "kept_taps"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[rank::ranks])


@given(step=st.integers(0, 60), prefix=st.sampled_from([0.0, 1.0]), lag=st.sampled_from([0.0, 1.0]))
def test_blocks_hold_what_follows_their_anchors(step, prefix, lag):
    plan = schedule(visible_prefix=prefix, feature_lag=lag)
    batch = plan.batch(step)
    for row, index in enumerate(batch.texts):
        text = texts()[index]
        used = set()
        for column, anchor in enumerate(batch.anchors[row]):
            weights = batch.weights[row, column]
            if not weights.any():
                continue
            used.add(int(anchor))
            assert text.prompt - 1 <= anchor <= len(text) - 2
            assert max(1, anchor - BLOCK) <= batch.ends[row, column] <= anchor
            assert (batch.ends[row, column] < anchor) == (lag == 1.0 and anchor > 1)
            shown = int(batch.visible[row, column].sum()) - 1
            assert (shown > 0) == (prefix == 1.0)
            for k in range(BLOCK):
                place = anchor + k
                inside = place < len(text)
                assert (weights[k] > 0) == (inside and k > shown)
                if inside:
                    assert batch.labels[row, column, k] == text.ids[place]
                if weights[k] > 0:
                    assert weights[k] == pytest.approx(np.exp(-(k - shown - 1) / 2.5))
        assert len(used) == min(6, len(text) - max(1, text.prompt - 1) - 1) or prefix == 1.0


def test_batches_are_of_like_length():
    plan = Schedule(texts(400), Sampling(batch=8, anchors=2, block_size=BLOCK))
    padded = real = 0
    for step in range(plan.steps_per_epoch):
        batch = plan.batch(step)
        padded += batch.ids.size
        real += sum(len(texts(400)[i]) for i in batch.texts)
    assert real / padded > 0.9


def test_texts_without_an_answer_are_left_out_and_none_at_all_is_an_error():
    short = [Text(np.array([1, 2, 3]), 2, "kind")] * 5
    plan = Schedule([*short, *texts(3)], Sampling(batch=16, anchors=2, block_size=BLOCK))
    assert plan.batch_size == 3
    assert sorted(plan.batch(0).texts.tolist()) == [5, 6, 7]
    with pytest.raises(CheckpointError, match="at least two tokens"):
        Schedule(short, Sampling())
