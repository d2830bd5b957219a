"""The draft over many anchors at once gives what it gives block by block while decoding."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mirror_sd.training.forward import Blocks, hidden_states
from tests import tiny

LENGTH, BLOCK = 23, 6
SHAPES = {
    "full": {},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7},
    "sliding, not causal": {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 7,
        "is_causal": False,
    },
    "biased": {"attention_bias": True},
    "scaled": {"dflash_config": {**tiny.DRAFT["dflash_config"], "input_embedding_scale": 3.0}},
}


def block_by_block(draft, features, embedded, end: int) -> mx.array:
    """As `DFlashDrafter` does it, with the features of the first `end` tokens."""
    context = draft.make_context()
    draft.extend(features[:, :end], context)
    return draft(embedded, context)


@pytest.mark.parametrize("shape", SHAPES)
def test_many_anchors_give_what_single_blocks_give(shape):
    draft = tiny.draft(**SHAPES[shape])
    features = mx.random.normal((2, LENGTH, 3 * 64), key=mx.random.key(1))
    embedded = mx.random.normal((2, 4, BLOCK, 64), key=mx.random.key(2))
    anchors = np.array([[3, 17, 9, 1], [22, 5, 5, 12]])
    blocks = Blocks(embedded, mx.array(anchors), mx.array(anchors))
    together = hidden_states(draft, features, blocks)
    for row in range(2):
        for column in range(4):
            alone = block_by_block(
                draft,
                features[row : row + 1],
                embedded[row : row + 1, column],
                anchors[row, column],
            )
            assert mx.abs(together[row, column] - alone[0]).max().item() < 1e-4


def test_features_behind_the_visible_ones_do_not_matter():
    draft = tiny.draft()
    features = mx.random.normal((1, LENGTH, 3 * 64), key=mx.random.key(1))
    embedded = mx.random.normal((1, 1, BLOCK, 64), key=mx.random.key(2))
    blocks = Blocks(embedded, mx.array([[12]]), mx.array([[8]]))
    one = hidden_states(draft, features, blocks)
    changed = mx.concatenate([features[:, :8], features[:, 8:] + 5], axis=1)
    assert mx.array_equal(one, hidden_states(draft, changed, blocks))
    assert not mx.array_equal(one, hidden_states(draft, features + 1e-2, blocks))
