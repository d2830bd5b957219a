from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mirror_sd.training.batches import Schedule
from mirror_sd.training.features import Computed, Stored
from tests.training.pair import SAMPLING, TAPS, TARGET


@pytest.fixture
def batch(texts):
    return Schedule(texts, SAMPLING, len(TAPS)).batch(0)


def test_the_likeliest_tokens_are_the_targets(texts, batch):
    outputs = Computed(TARGET, TAPS, likeliest=4)(batch)
    logits = TARGET.model(mx.array(batch.ids))
    chances = np.array(mx.softmax(logits, axis=-1))
    for row, index in enumerate(batch.texts):
        for place in range(len(texts[index])):
            best = set(np.argsort(-chances[row, place])[:4].tolist())
            ids = outputs.likeliest[row, place].tolist()
            assert set(ids) == best
            assert np.allclose(
                outputs.probabilities[row, place], chances[row, place][ids], atol=1e-5
            )


@pytest.mark.parametrize("likeliest", [0, 4])
def test_what_is_stored_is_what_is_computed(texts, batch, tmp_path, likeliest):
    computed = Computed(TARGET, TAPS, likeliest)
    got, wanted = Stored(tmp_path / "f.npy", texts, computed)(batch), computed(batch)
    for row, index in enumerate(batch.texts):
        n = len(texts[index])
        gap = mx.abs(got.features[row, :n].astype(mx.float32) - wanted.features[row, :n])
        assert gap.max().item() < 0.05
        if likeliest:
            assert mx.array_equal(
                mx.sort(got.likeliest[row, :n], -1), mx.sort(wanted.likeliest[row, :n], -1)
            )
            gap = mx.sort(got.probabilities[row, :n], -1) - mx.sort(
                wanted.probabilities[row, :n], -1
            )
            assert mx.abs(gap).max().item() < 1e-3


def test_stored_features_are_made_once_and_go_on_after_a_stop(texts, batch, tmp_path):
    file = tmp_path / "f.npy"
    calls = []

    class Counting(Computed):
        def of(self, ids):
            calls.append(len(ids))
            return super().of(ids)

    class Stopped(Exception):
        pass

    def stop(done, of):
        if len(calls) == 2:
            raise Stopped

    many = texts * 3
    first = Stored(file, many, Counting(TARGET, TAPS))
    assert sum(calls) == len(many)
    calls.clear()
    again = Stored(file, many, Counting(TARGET, TAPS))
    assert not calls
    assert mx.array_equal(again(batch).features, first(batch).features)
    with pytest.raises(Stopped):
        Stored(file, texts[:3] * 20, Counting(TARGET, TAPS), stop)  # other texts: made anew
    calls.clear()
    Stored(file, texts[:3] * 20, Counting(TARGET, TAPS))
    assert sum(calls) == 60  # nothing was saved before the stop, and nothing is taken for done
