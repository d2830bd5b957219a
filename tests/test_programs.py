"""A draft's RoPE as tables: those of the MLX draft, for every kind of scaling."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mirror_sd.programs import rope_tables
from tests import tiny

YARN = {
    "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
    "beta_fast": 32.0, "beta_slow": 1.0, "rope_theta": 150000.0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    "scaling", [None, YARN, LLAMA3, LINEAR], ids=["plain", "yarn", "llama3", "linear"]
)
def test_tables_turn_as_the_draft_does(scaling):
    draft = tiny.draft(rope_scaling=scaling)
    rope, size = draft.layers[0].self_attn.rope, draft.config.head_dim
    x = np.random.default_rng(0).standard_normal((1, 1, 1, size)).astype(np.float32)
    for position in (0, 1, 17, 511, 4000):
        wanted = np.array(rope(mx.array(x), offset=position))[0, 0, 0]
        cos, sin = (table[0] for table in rope_tables(draft)(np.array([position])))
        low, high = np.split(x[0, 0, 0], 2)
        got = np.concatenate([low * cos - high * sin, high * cos + low * sin])
        assert np.abs(got - wanted).max() < 2e-3
