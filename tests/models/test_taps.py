from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from mirror_sd.errors import UnsupportedError
from mirror_sd.models.structure import discover
from mirror_sd.models.taps import TappedModel
from mirror_sd.models.target import TargetModel
from tests import tiny
from tests.families import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_found_and_give_the_targets_own_numbers(family):
    settings = FAMILIES[family]
    model = tiny.model(settings)
    target = TargetModel(model, settings, family)  # compares the tapped logits bit for bit
    target.lend()
    depth = (settings.get("text_config") or settings)["num_hidden_layers"]
    assert (target.vocab_size, target.hidden_size, target.depth) == (tiny.VOCAB, 64, depth)
    tokens = mx.array([[3, 1, 4, 1, 5]])
    trace = TappedModel(model, target.structure, [0])(tokens, make_prompt_cache(model))
    assert mx.abs(target.embed(tokens) - trace.entering).max().item() < 1e-4
    error = mx.abs(target.logits(trace.hidden) - trace.logits).max().item()
    assert error < 1e-4 * max(1.0, mx.abs(trace.logits).max().item())


def test_factors_on_embedding_and_logits_are_measured():
    def lent(family: str) -> TargetModel:
        target = TargetModel(tiny.model(FAMILIES[family]), FAMILIES[family], family)
        target.lend()
        return target

    assert lent("gemma2").embedding_scale == pytest.approx(8.0)
    assert lent("gemma2").softcap == 3.0
    assert lent("granite").embedding_scale == pytest.approx(6.0)
    assert lent("granite").logit_scale == pytest.approx(0.25)
    assert lent("llama").embedding_scale == 1.0


def test_features_are_the_layers_outputs_in_the_order_asked_for():
    model = tiny.model(tiny.config())
    structure = discover(model)
    tokens = mx.array([[3, 1, 4]])
    outputs = []
    hidden = model.model.embed_tokens(tokens)
    for layer in model.layers:
        hidden = layer(hidden, "causal", None)
        outputs.append(hidden)
    trace = TappedModel(model, structure, [2, 0, 3])(tokens, make_prompt_cache(model))
    wanted = mx.concatenate([outputs[2], outputs[0], outputs[3]], axis=-1)
    assert mx.abs(trace.features - wanted).max().item() < 1e-5
    assert not mx.allclose(trace.features[..., :64], outputs[1])  # one layer off would show


def test_the_model_and_other_views_are_not_disturbed():
    model = tiny.model(tiny.config())
    structure = discover(model)
    before = dict(vars(model)), list(model.layers), type(model).__call__
    tokens = mx.array([[3, 1, 4]])
    plain = model(tokens)
    first, second = TappedModel(model, structure, [0]), TappedModel(model, structure, [1, 2])
    one = first(tokens, make_prompt_cache(model))
    two = second(tokens, make_prompt_cache(model))
    assert one.features.shape[-1] == 64
    assert two.features.shape[-1] == 128
    assert mx.array_equal(model(tokens), plain)
    after = dict(vars(model)), list(model.layers), type(model).__call__
    assert before[0] == after[0]
    assert all(a is b for a, b in zip(before[1], after[1], strict=True))
    assert before[2] is after[2]


def test_a_view_sees_weights_that_change_later():
    model = tiny.model(tiny.config())
    view = TappedModel(model, discover(model), [0])
    model.layers[0].mlp.down_proj.weight = model.layers[0].mlp.down_proj.weight * 2
    tokens = mx.array([[3, 1, 4]])
    assert mx.array_equal(view(tokens, make_prompt_cache(model)).logits, model(tokens))


def test_an_embedding_that_is_not_what_enters_the_layers_is_refused():
    settings = {
        "model_type": "gpt2",
        **{"n_ctx": 64, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64},
        **{"layer_norm_epsilon": 1e-5, "vocab_size": tiny.VOCAB, "num_key_value_heads": 4},
    }
    target = TargetModel(tiny.model(settings), settings, "gpt2")  # fine without a draft
    with pytest.raises(UnsupportedError, match="token embedding"):
        target.lend()
