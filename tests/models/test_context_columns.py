"""Context rows prepared from single taps are those that the draft computes itself."""

from __future__ import annotations

import json

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_sd.models.context_columns import ContextColumns
from mirror_sd.models.draft import DFlashDraft
from mirror_sd.models.draft_config import parse
from tests import tiny
from tests.models.test_draft_golden import CASES, GOLDEN

PLAIN = [case for case in CASES if case != "dflash2"]


def golden(case: str) -> tuple[DFlashDraft, dict[str, mx.array]]:
    folder = GOLDEN / case
    draft = DFlashDraft(parse(json.loads((folder / "config.json").read_text()), case))
    draft.load_weights(str(folder / "model.safetensors"))
    return draft, mx.load(str(folder / "case.safetensors"))


def single(draft: DFlashDraft, features: mx.array) -> list[mx.array]:
    return mx.split(features, len(draft.config.taps), axis=-1)


@pytest.mark.parametrize("case", PLAIN)
def test_a_block_behind_streamed_rows_equals_the_reference(case):
    """Every cycle's context comes by taps, and is written as packed rows."""
    draft, data = golden(case)
    columns, context = ContextColumns(draft), draft.make_context(window=512)
    _, facts = mx.load(str(GOLDEN / case / "case.safetensors"), return_metadata=True)
    scale = float(facts["embed_scale"])
    for cycle in range(2):
        features = data[f"cycle{cycle}.features"]
        rows = columns.of_taps(single(draft, features), context[0].length)
        assert rows.shape == (1, features.shape[1], columns.width)
        columns.append(rows, context)
        hidden = draft(data["embed"][data[f"cycle{cycle}.block"]] * scale, context)[:, 1:]
        assert mx.abs(hidden - data[f"cycle{cycle}.hidden"]).max().item() < 1e-4


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans())
def test_rows_in_pieces_by_taps_or_features_are_the_same(pieces, by_taps):
    draft, data = golden("yarn")
    columns = ContextColumns(draft)
    features = data["cycle0.features"]
    features = mx.concatenate([features] * 3, axis=1)[:, : sum(pieces)]
    whole, start = columns.of_features(features, 7), 0
    for count in pieces:
        part = features[:, start : start + count]
        rows = (
            columns.of_taps(single(draft, part), 7 + start)
            if by_taps
            else columns.of_features(part, 7 + start)
        )
        assert mx.allclose(rows, whole[:, start : start + count], atol=1e-5).item()
        start += count


@pytest.mark.parametrize(("group", "divides"), [(32, True), (64, True), (128, False)])
def test_a_quantised_projection_is_divided_where_its_groups_allow(group, divides):
    draft = tiny.draft(dflash_config={"target_layer_ids": [0, 3], "mask_token_id": 260})
    nn.quantize(draft, group, 8, class_predicate=lambda path, _: path == "fc")
    columns = ContextColumns(draft)
    features = mx.random.normal((1, 5, 128))
    wanted = columns.of_features(features, 3)
    assert mx.allclose(columns.of_taps(single(draft, features), 3), wanted, atol=1e-5).item()
    assert (len(columns._pieces) == 2) == divides


def test_dividing_leaves_the_draft_as_it_is():
    draft = tiny.draft()
    before = mx.array(draft.fc.weight)
    features = mx.random.normal((1, 4, 192))
    ContextColumns(draft).of_taps(single(draft, features), 0)
    assert mx.array_equal(draft.fc.weight, before).item()
    assert draft.fc.weight.shape == (64, 192)
