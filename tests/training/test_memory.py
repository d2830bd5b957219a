"""Training holds no more memory after many steps than after a few."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from tests.training.pair import SAMPLING, SHORT, trainer


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_steps(texts, tmp_path):
    settings = replace(SHORT, steps=1000, full_from=1.0, checkpoint_every=100)
    active, peaks = [], []
    for report in trainer(texts, tmp_path, settings, SAMPLING).run():
        if report.step % 100 == 0:
            active.append(mx.get_active_memory())
            peaks.append(mx.get_peak_memory())
            mx.reset_peak_memory()
    assert len(active) == 10
    assert max(active[1:]) - min(active[1:]) < 0.02 * min(active)
    assert max(peaks[1:]) - min(peaks[1:]) < 0.1 * min(peaks)
