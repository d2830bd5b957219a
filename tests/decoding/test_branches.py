"""Outcomes of a verify, and branches in one block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.decoding.branches import Branch, Guess, fitting, lay_out, likeliest

GUESSES = [
    Guess([10, 11, 12], [0.6, 0.3, 0.1]),
    Guess([20, 21, 22], [0.5, 0.4, 0.1]),
    Guess([30, 31, 32], [0.9, 0.05, 0.05]),
]


def test_the_likeliest_outcomes():
    found = likeliest(9, [10, 20], GUESSES, [0.8, 0.5], 4)
    assert [branch.tokens for branch in found] == [
        (9, 10, 20, 30),  # 0.8 * 0.5 * 0.9
        (9, 10, 21),  # 0.8 * 0.5 * 0.4 / 0.5
        (9, 11),  # 0.2 * 0.3 / 0.4
        (9, 10, 22),
    ]
    assert [branch.chance for branch in found] == pytest.approx([0.36, 0.32, 0.15, 0.08])


def test_a_position_that_nothing_is_known_of_ends_it():
    found = likeliest(9, [10, 20], GUESSES[:2], [0.8, 0.5], 10)
    assert all(len(branch.tokens) < 4 for branch in found)


def test_after_plain_decoding_the_correction_is_the_next_token():
    found = likeliest(9, [], GUESSES[:1], [], 2)
    assert found == [Branch((9, 10), 0.6), Branch((9, 11), 0.3)]


@given(
    st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(1, 20),
)
def test_outcomes_exclude_each_other_and_are_ranked(shares, drafted, count):
    guesses = []
    for index, raw in enumerate(shares):
        chances = np.array(raw) / sum(raw)
        guesses.append(Guess([index * 10 + k for k in range(3)], list(chances)))
    proposal = [guess.tokens[0] for guess in guesses[:drafted]]
    survival = [guess.chances[0] for guess in guesses[:drafted]]
    found = likeliest(99, proposal, guesses, survival, count)
    assert len(found) <= count
    assert len({branch.tokens for branch in found}) == len(found)
    chances = [branch.chance for branch in found]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) <= 1 + 1e-6
    for branch in found:  # a correction is never what had been drafted there
        accepted = len(branch.tokens) - 2
        assert branch.tokens[1:-1] == tuple(proposal[:accepted])
        assert accepted == len(proposal) or branch.tokens[-1] != proposal[accepted]


def test_branches_in_one_block():
    branches = [Branch((9, 11), 0.5), Branch((9, 10, 21), 0.3), Branch((9, 10, 22), 0.1)]
    kept = fitting(branches, 2, room=9)
    assert kept == branches[:2]
    found = lay_out(kept, 2, 0)
    assert found.tokens == [9, 11, 0, 0, 9, 10, 21, 0, 0]
    assert found.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert found.rows == [2, 7]
    assert found.seen[:4, :4].all()
    assert not found.seen[:4, 4:].any()
    assert found.seen[4:, 4:].all()
