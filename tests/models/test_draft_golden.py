"""The draft against outputs of the published reference implementation."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.models.draft import DFlashDraft
from mirror_sd.models.draft_config import parse

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = [
    *("full", "nested", "yarn", "sliding_causal"),
    *("sliding_bidirectional", "gemma_like", "biased", "dflash2"),
]


def errors(case: str, **changes) -> tuple[float, float]:
    """Largest differences of hidden states and logits over all cycles."""
    folder = GOLDEN / case
    config = parse({**json.loads((folder / "config.json").read_text()), **changes}, case)
    draft = DFlashDraft(config)
    draft.load_weights(str(folder / "model.safetensors"))
    data, facts = mx.load(str(folder / "case.safetensors"), return_metadata=True)
    context = draft.make_context()
    hidden_error = logits_error = 0.0
    for i in range(int(facts["cycles"])):
        draft.extend(data[f"cycle{i}.features"], context)
        embedded = data["embed"][data[f"cycle{i}.block"]] * float(facts["embed_scale"])
        hidden = draft(embedded, context)[:, 1:]
        logits = hidden @ data["head"].T
        if config.logit_softcap:
            logits = mx.tanh(logits / config.logit_softcap) * config.logit_softcap
        hidden_error = max(hidden_error, mx.abs(hidden - data[f"cycle{i}.hidden"]).max().item())
        logits_error = max(logits_error, mx.abs(logits - data[f"cycle{i}.logits"]).max().item())
    return hidden_error, logits_error


@pytest.mark.parametrize("case", CASES)
def test_every_cycle_equals_the_reference(case):
    hidden, logits = errors(case)
    assert hidden < 1e-4
    assert logits < 1e-4


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("sliding_causal", {"is_causal": False}),
        ("sliding_bidirectional", {"is_causal": True}),
        ("sliding_causal", {"sliding_window": 17}),
        ("yarn", {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
        ("nested", {"rope_parameters": {"rope_theta": 10000.0}}),
    ],
)
def test_the_cases_tell_a_wrong_reading_apart(case, changes):
    assert errors(case, **changes)[0] > 1e-2


def test_the_selectors_path_equals_the_reference():
    folder = GOLDEN / "dflash2"
    draft = DFlashDraft(parse(json.loads((folder / "config.json").read_text()), "dflash2"))
    draft.load_weights(str(folder / "model.safetensors"))
    data, facts = mx.load(str(folder / "case.safetensors"), return_metadata=True)
    context = draft.make_context()
    walked = argmaxed = 0
    for i in range(int(facts["cycles"])):
        block = data[f"cycle{i}.block"]
        draft.extend(data[f"cycle{i}.features"], context)
        hidden = draft(data["embed"][block], context)[0, 1:]
        logits = hidden @ data["head"].T
        chosen = draft.select(hidden, logits, block[0, 0].item(), GreedyAcceptance().draw)
        path = data[f"cycle{i}.path"][0].tolist()
        assert chosen.tokens.tolist() == path
        assert chosen.candidates.shape == chosen.scores.shape == (7, 8)
        for token, row in zip(path, chosen.candidates.tolist(), strict=True):
            assert token in row
        walked += 1
        argmaxed += mx.argmax(logits, axis=-1).tolist() == path
    assert argmaxed < walked  # the selector changes the path: the case tells


def test_features_in_pieces_equal_features_at_once():
    folder = GOLDEN / "sliding_bidirectional"
    draft = DFlashDraft(parse(json.loads((folder / "config.json").read_text()), "case"))
    draft.load_weights(str(folder / "model.safetensors"))
    data = mx.load(str(folder / "case.safetensors"))
    features, block = data["cycle0.features"], data["embed"][data["cycle0.block"]]
    whole, pieces = draft.make_context(), draft.make_context()
    draft.extend(features, whole)
    for start in range(0, features.shape[1], 7):
        draft.extend(features[:, start : start + 7], pieces)
    assert mx.abs(draft(block, whole) - draft(block, pieces)).max().item() < 1e-5


def test_rows_that_no_layer_sees_are_not_computed_and_change_nothing():
    folder = GOLDEN / "sliding_causal"  # all layers slide, window 16
    draft = DFlashDraft(parse(json.loads((folder / "config.json").read_text()), "case"))
    draft.load_weights(str(folder / "model.safetensors"))
    data = mx.load(str(folder / "case.safetensors"))
    features = mx.concatenate([data["cycle0.features"]] * 3, axis=1)
    context = draft.make_context()
    draft.extend(features, context)
    assert context[0].length == features.shape[1]
    assert context[0].arrays[0].shape[2] == 256  # one step of rows, not all
    changed = mx.concatenate([features[:, :-15] * 0, features[:, -15:]], axis=1)
    other = draft.make_context()
    draft.extend(changed, other)
    block = data["embed"][data["cycle0.block"]]
    assert mx.array_equal(draft(block, context), draft(block, other))
