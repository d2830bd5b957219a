from __future__ import annotations

import pytest

from mirror_sd.errors import CheckpointError, UnsupportedError
from mirror_sd.models.draft import DFlashDraft
from mirror_sd.models.draft_config import parse
from tests.tiny import DRAFT


def read(**changes):
    return parse({k: v for k, v in {**DRAFT, **changes}.items() if v is not ...}, "here")


def test_values_are_found_in_the_nested_place_first():
    nested = {**DRAFT["dflash_config"], "block_size": 4}
    assert read(dflash_config=nested, block_size=16).block_size == 4


def test_values_are_found_at_the_top_level():
    config = read(dflash_config=..., target_layer_ids=[2, 0], mask_token_id=7)
    assert config.taps == (2, 0)
    assert config.mask_token_id == 7


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_rope_theta_is_found_inside_rope_settings(place):
    config = read(rope_theta=..., **{place: {"rope_type": "default", "rope_theta": 5e5}})
    assert config.rope_theta == 5e5
    assert config.rope_scaling is None


def test_sliding_layers_are_causal_unless_told_otherwise():
    sliding = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}
    for told, causal in ((..., True), (False, False), (True, True)):
        draft = DFlashDraft(read(**sliding, is_causal=told))
        assert draft.layers[0].self_attn.causal is causal


def test_full_layers_are_bidirectional_unless_told_otherwise():
    assert DFlashDraft(read()).layers[0].self_attn.causal is False
    assert DFlashDraft(read(is_causal=True)).layers[0].self_attn.causal is True


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dflash_config": {"mask_token_id": 1}}, "target_layer_ids"),
        ({"dflash_config": {"target_layer_ids": [0]}}, "no mask_token_id"),
        ({"block_size": ...}, "no block_size"),
        ({"block_size": 1}, "block_size is 1"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"rope_theta": ...}, "no rope_theta"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 2}, "no sliding_window"),
        ({"architectures": ["DFlash2DraftModel"]}, "no conv_kernel_size"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(changes, said):
    with pytest.raises(CheckpointError, match=said):
        read(**changes)


def test_kinds_that_are_not_supported_are_named():
    with pytest.raises(UnsupportedError, match="gelu"):
        read(hidden_act="gelu")
