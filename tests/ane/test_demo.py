"""The demo draft as saved programs, on what it was given in real decoding of 12 prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_sd.ane.package import compile_draft
from mirror_sd.ane.shapes import Bucket
from mirror_sd.bench import emulation, prompts
from mirror_sd.bench.acceptance import HeldOut
from mirror_sd.bench.calibration import calibrate, calibration_requests
from mirror_sd.bench.emulated import EmulatedDraft, Programs
from mirror_sd.bench.recording import record
from mirror_sd.programs import Tensors, shape_of

pytestmark = pytest.mark.slow

BUCKET = Bucket(32, 32, 512)
TOKENS = 24


@pytest.fixture(scope="module")
def pair(demo_pair):
    return demo_pair[0]


@pytest.fixture(scope="module")
def cycles(demo_pair):
    return record(*demo_pair, prompts.builtin(2), TOKENS)


@pytest.fixture(scope="module")
def programs(demo_pair, tmp_path_factory):
    pair, tokenizer = demo_pair
    draft = pair.draft.model
    calibration, _ = calibrate(draft, record(pair, tokenizer, calibration_requests(), 12))
    found = {}
    for scheme in ("fp16", "int8"):
        folder = tmp_path_factory.mktemp("demo") / scheme
        compile_draft(folder, shape_of(draft), Tensors(draft), [BUCKET], scheme, calibration)
        found[scheme] = Programs(folder)
    return found


@pytest.mark.parametrize(("scheme", "least"), [("fp16", 0.9999), ("int8", 0.999)])
def test_hidden_states_after_every_layer(pair, programs, cycles, scheme, least):
    found = emulation.compare(programs[scheme], pair.draft.model, cycles)
    assert {name: one.cosine for name, one in found.items() if one.cosine < least} == {}
    assert all(one.worst > 1 - 3 * (1 - least) for one in found.values())
    assert len(found) == 4
    assert len(cycles) > 100


@pytest.mark.parametrize(("scheme", "least"), [("fp16", 0.9999), ("int8", 0.999)])
def test_a_ring_that_wraps_several_times(pair, programs, cycles, scheme, least):
    """All answers as one text, twice over, each block where it was."""
    text = [replace(cycle, starts=index == 0) for index, cycle in enumerate([*cycles, *cycles])]
    assert sum(len(cycle.features) for cycle in text) > 3 * BUCKET.context
    found = emulation.compare(programs[scheme], pair.draft.model, text)
    assert {name: one.cosine for name, one in found.items() if one.cosine < least} == {}
    assert found[emulation.FINAL].worst > 0.99


@pytest.mark.parametrize("scheme", ["fp16", "int8"])
def test_acceptance_is_kept(demo_pair, programs, scheme):
    pair, tokenizer = demo_pair
    asked = [request.encode(tokenizer) for request in prompts.builtin(2)]
    held_out = HeldOut(pair.target, pair.eos_token_ids, asked, TOKENS)
    found = held_out(EmulatedDraft(programs[scheme], pair.draft.model))
    assert found == pytest.approx(held_out(pair.draft.model), rel=0.02)
