from __future__ import annotations

import pytest

from mirror_sd.training.new_draft import config_for, new_draft, tap_layers
from tests.training.pair import CONFIG, TARGET


@pytest.mark.parametrize(
    ("depth", "taps"),
    [
        (30, [1, 8, 14, 20, 27]),
        (36, [1, 9, 17, 25, 33]),
        (32, [1, 8, 15, 22, 29]),
        (64, [1, 16, 31, 46, 61]),
    ],
)
def test_taps_are_the_published_drafts(depth, taps):
    assert tap_layers(depth, 5) == taps


def test_a_new_draft_has_the_targets_shapes_and_its_last_layers_weights():
    draft = new_draft(CONFIG, TARGET, seed=3)
    last = TARGET.structure.layers[-1]
    assert draft.config.hidden_size == TARGET.hidden_size
    assert (draft.layers[-1].mlp.up_proj.weight == last.mlp.up_proj.weight).all()
    assert config_for(TARGET, 260)["dflash_config"]["mask_token_id"] == 260
