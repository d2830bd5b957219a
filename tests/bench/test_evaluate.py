from __future__ import annotations

import pytest

from mirror_sd.bench.evaluate import (
    Answer,
    Draft,
    acceptance_length,
    calibration,
    calibration_error,
    positions,
)

ANSWERS = [
    Answer("a", 7, 3, [Draft(3, 3, [0.9, 0.8, 0.7]), Draft(3, 0, [0.2, 0.9, 0.9])], None),
    Answer("b", 3, 2, [Draft(3, 1, [0.95, 0.3, 0.5]), Draft(1, 1, [0.6])], None),
]


def test_acceptance_is_over_all_passes():
    assert acceptance_length(ANSWERS) == pytest.approx(2.0)


def test_a_position_counts_where_all_before_it_were_right():
    assert [(p.reached, p.right, p.blocks) for p in positions(ANSWERS)] == [
        (4, 3, 4),
        (2, 1, 3),
        (1, 1, 3),
    ]


def test_confidence_is_judged_where_it_was_put_to_the_test():
    bins = {round(b.confidence, 3): (b.right, b.count) for b in calibration(ANSWERS)}
    assert bins == {
        0.2: (0.0, 1),
        0.3: (0.0, 1),
        0.6: (1.0, 1),
        0.7: (1.0, 1),
        0.8: (1.0, 1),
        0.925: (1.0, 2),
    }


def test_the_calibration_error_is_the_mean_gap():
    gaps = [0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0.05]
    assert calibration_error(calibration(ANSWERS)) == pytest.approx(sum(gaps) / 7, abs=0.02)
