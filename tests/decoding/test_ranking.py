from __future__ import annotations

import mlx.core as mx
import pytest

from mirror_sd.decoding.ranking import GROUP, likeliest


@pytest.mark.parametrize("size", [5, 8, GROUP, GROUP + 1, 263, 49152])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0, 20.0])
def test_the_best_are_the_best(size, spread):
    mx.random.seed(size)
    scores = mx.random.normal((4, size)) * spread
    chances, places = likeliest(scores, 8)
    wanted = mx.argsort(-scores, axis=-1)[:, :8]
    found = mx.take_along_axis(scores, places, axis=-1)
    assert found.tolist() == mx.take_along_axis(scores, wanted, axis=-1).tolist()
    true = mx.take_along_axis(mx.softmax(scores, axis=-1), places, axis=-1)
    assert mx.all(chances >= true - 1e-5).item()
    assert mx.all(chances.sum(axis=-1) <= 1 + 1e-5).item()
    if size <= 8 * GROUP or spread >= 20:  # all is counted, or what is left out is nothing
        assert mx.allclose(chances, true, atol=1e-3).item()
