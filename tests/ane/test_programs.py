"""Compiled drafts compute what the draft does: random drafts, several cycles with a ring."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mirror_sd.ane import plan as plans
from mirror_sd.ane import reader
from mirror_sd.ane.calibration import Calibration
from mirror_sd.ane.hardware import PRESETS
from mirror_sd.ane.host import HostedDraft, Ring
from mirror_sd.ane.parts import MLP, split
from mirror_sd.ane.reference import ReferenceDraft
from mirror_sd.ane.shapes import Bucket, DraftShape, aligned
from mirror_sd.ane.weight_check import int8_steps
from mirror_sd.ane.weights import DraftWeights
from mirror_sd.devices.device import DeviceError
from mirror_sd.errors import CheckpointError, UnsupportedError

from .drafts import (
    BIASED,
    BUCKET,
    SLIDING_ONLY,
    TINY,
    RandomTensors,
    compiled,
    hosted,
    masks,
    tables,
    worst_cosine,
)

SHAPES = {"full": TINY, "biased, sliding and full": BIASED, "sliding": SLIDING_ONLY}
CALIBRATED = Calibration(residual=0.5, features=0.25, inner=0.125, outliers=(5, 3, 40))


@pytest.mark.parametrize("calibration", [Calibration(), CALIBRATED], ids=["plain", "calibrated"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("scheme", "least"), [("fp16", 0.99999), ("int8", 0.9998)])
def test_a_program_computes_the_draft(tmp_path, shape, scheme, least, calibration):
    plan = compiled(tmp_path / "p", shape, scheme, calibration=calibration)
    assert worst_cosine(hosted(tmp_path / "p", plan), RandomTensors(shape), 6) > least


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_ring_wraps_several_times(tmp_path, shape):
    plan = compiled(tmp_path / "p", shape)
    draft = hosted(tmp_path / "p", plan)
    assert worst_cosine(draft, RandomTensors(shape), 110, rows=2) > 0.99999
    assert draft.ring.length > 3 * BUCKET.context


@pytest.mark.parametrize("scheme", ["lut6", "lut4"])
def test_palettes_are_coarser_but_compute_the_draft(tmp_path, scheme):
    plan = compiled(tmp_path / "p", TINY, scheme)
    found = worst_cosine(hosted(tmp_path / "p", plan), RandomTensors(TINY), 4)
    assert {"lut6": 0.99, "lut4": 0.95}[scheme] < found < 0.9999


@pytest.mark.parametrize("preset", PRESETS)
def test_every_hardware_computes_a_calibrated_draft(tmp_path, preset):
    plan = compiled(tmp_path / "p", BIASED, "int8", calibration=CALIBRATED)
    draft = hosted(tmp_path / "p", plan, hardware=PRESETS[preset])
    assert worst_cosine(draft, RandomTensors(BIASED), 4) > 0.9997


@pytest.mark.parametrize("limit", [13e3, 20e3, 60e3])
def test_parts_compute_the_same_to_the_bit(tmp_path, limit):
    """A draft in one program and in several, some of which begin in the middle of an MLP."""
    whole = compiled(tmp_path / "whole", TINY, "int8")
    parts = compiled(tmp_path / "parts", TINY, "int8", limit=limit)
    assert len(whole.parts) == 1
    assert len(parts.parts) > 1
    assert any(part.enters_mlp for part in parts.parts) == (limit < 18e3)
    rng, found = np.random.default_rng(0), []
    features, block = rng.standard_normal((9, 128)), rng.standard_normal((4, 64))
    for folder, plan in ((tmp_path / "whole", whole), (tmp_path / "parts", parts)):
        draft = hosted(folder, plan)
        draft(features, block)
        found.append(draft(features[:3], block))
        for index in range(len(plan.parts)):
            function = reader.read(plan.package(folder, index))[BUCKET.function]
            if plan is parts:  # matrices, and small things beside
                assert function.weight_bytes < limit * 1.25
    if limit > 18e3:  # an MLP in one piece adds up in the same order
        assert np.array_equal(found[0], found[1])
    assert np.abs(found[0] - found[1]).max() < 0.05


def test_functions_share_their_weights(tmp_path):
    widths = tuple(Bucket(32, 32, context) for context in (512, 1024, 2048))
    one = compiled(tmp_path / "one", TINY, "int8")
    three = compiled(tmp_path / "three", TINY, "int8", buckets=widths)
    sizes = [
        (plan.package(tmp_path / name, 0) / "Data/com.apple.CoreML/weights/weight.bin").stat()
        for name, plan in (("one", one), ("three", three))
    ]
    assert sizes[1].st_size < 1.1 * sizes[0].st_size  # each has its own gains of norms
    for bucket in widths:
        draft = hosted(tmp_path / "three", three, bucket)
        assert worst_cosine(draft, RandomTensors(TINY), 3) > 0.9998


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        compiled(tmp_path / name, BIASED, "int8", limit=9e3, calibration=CALIBRATED)
    files = {
        name: {
            file.relative_to(tmp_path / name): file.read_bytes()
            for file in (tmp_path / name).rglob("*")
            if file.is_file()
        }
        for name in ("a", "b")
    }
    assert files["a"] == files["b"]


def test_the_plan_survives_the_manifest(tmp_path):
    plan = compiled(
        tmp_path / "p", BIASED, "int8", limit=9e3, calibration=CALIBRATED, draft="mine",
        fingerprint="f",
    )  # fmt: skip
    assert plans.read(tmp_path / "p") == plan
    assert set(plan.errors) == {
        name.removesuffix(".weight")
        for name, size in RandomTensors(BIASED).sizes.items()
        if len(size) == 2
    }
    assert all(0 < error < 0.02 for error in plan.errors.values())


def test_damage_is_named(tmp_path):
    plan = compiled(tmp_path / "p", TINY)
    package = plan.package(tmp_path / "p", 0)
    weights = package / "Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"weight\.bin is missing or damaged"):
        plans.read(tmp_path / "p")
    with pytest.raises(CheckpointError, match="not a readable Core ML package"):
        reader.read(package)
    manifest = tmp_path / "p" / plans.MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="another version"):
        plans.read(tmp_path / "p")
    with pytest.raises(CheckpointError, match="no compiled draft"):
        plans.read(tmp_path)


def test_a_folder_of_something_else_is_kept(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(CheckpointError, match="not a compiled draft"):
        compiled(tmp_path / "photos", TINY)
    assert (tmp_path / "photos" / "cat.jpg").exists()


def test_an_earlier_result_stays_if_compiling_fails(tmp_path):
    plan = compiled(tmp_path / "p", TINY)
    lacking = dict(RandomTensors(TINY))
    del lacking["layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj"):
        compiled(tmp_path / "p", TINY, tensors=lacking)
    assert plans.read(tmp_path / "p") == plan


def test_codes_are_half_a_step_off_at_most(tmp_path):
    plan = compiled(tmp_path / "p", BIASED, "int8", calibration=CALIBRATED)
    function = reader.read(plan.package(tmp_path / "p", 0))[BUCKET.function]
    weights = DraftWeights(BIASED, RandomTensors(BIASED), CALIBRATED)
    assert 0.4 < int8_steps([function], plan.parts, weights) <= 0.5 + 1e-3


def test_branches_do_not_see_each_other(tmp_path):
    """Two branches in one call are what each is alone, at its own positions."""
    plan = compiled(tmp_path / "p", TINY)
    rng = np.random.default_rng(3)
    features, blocks = rng.standard_normal((9, 128)), rng.standard_normal((2, 5, 64))
    starts = (9, 11)
    draft = hosted(tmp_path / "p", plan)
    together = draft(
        features,
        blocks.reshape(10, 64),
        np.concatenate([np.arange(start, start + 5) for start in starts]),
        np.kron(np.eye(2, dtype=bool), np.ones((5, 5), bool)),
    )
    for index, start in enumerate(starts):
        alone = hosted(tmp_path / "p", plan)(features, blocks[index], np.arange(start, start + 5))
        assert np.allclose(together[index * 5 : index * 5 + 5], alone, atol=2e-2)


def test_features_beyond_one_call_are_absorbed(tmp_path):
    plan = compiled(tmp_path / "p", TINY)
    rng = np.random.default_rng(4)
    features, block = rng.standard_normal((75, 128)), rng.standard_normal((4, 64))
    draft = hosted(tmp_path / "p", plan)
    got = draft(draft.absorb(features), block)
    reference, places = ReferenceDraft(TINY, RandomTensors(TINY)), tables(TINY)
    reference.extend(features, *places(np.arange(75)))
    wanted = reference(block, *places(np.arange(75, 79)), masks(TINY, 75, 4, 512)).hidden
    assert np.abs(got - wanted).max() < 2e-2


def test_a_program_without_new_columns(tmp_path):
    """For a context that is kept elsewhere: the block attends to itself alone here."""
    bucket = Bucket(block=8, new=0, context=512)
    plan = compiled(tmp_path / "p", TINY, buckets=(bucket,))
    draft = hosted(tmp_path / "p", plan, bucket)
    block = np.random.default_rng(5).standard_normal((8, 64))
    got = draft(np.zeros((0, 128)), block)
    reference = ReferenceDraft(TINY, RandomTensors(TINY))
    wanted = reference(block, *tables(TINY)(np.arange(8)), masks(TINY, 0, 8, 512)).hidden
    assert np.abs(got - wanted).max() < 2e-2


def test_the_ring_forgets():
    ring = Ring(4)
    assert ring.slots(6).tolist() == [0, 1, 2, 3, 0, 1]
    assert ring.positions.tolist() == [4, 5, 2, 3]
    ring.trim_to(5)
    assert ring.positions.tolist() == [4, -1, 2, 3]
    assert ring.slots(1).tolist() == [1]
    assert ring.positions.tolist() == [4, 5, 2, 3]


def test_trimming_a_hosted_draft(tmp_path):
    plan = compiled(tmp_path / "p", TINY)
    rng = np.random.default_rng(6)
    features, block = rng.standard_normal((20, 128)), rng.standard_normal((4, 64))
    draft = hosted(tmp_path / "p", plan)
    draft(features, block)
    draft.ring.trim_to(12)
    got = draft(features[12:15], block)
    straight = hosted(tmp_path / "p", plan)
    assert np.array_equal(got, straight(features[:15], block))


def test_shapes_that_cannot_be():
    with pytest.raises(UnsupportedError, match="65 positions"):
        Bucket(65, 32, 512)
    with pytest.raises(UnsupportedError, match="new context columns"):
        Bucket(8, 65, 512)
    with pytest.raises(UnsupportedError, match="choose from"):
        Bucket(8, 8, 500)
    with pytest.raises(UnsupportedError, match="cannot share"):
        DraftShape(8, 1, 3, 2, 4, 8, 1e-6, False, (False,), (False,))
    with pytest.raises(UnsupportedError, match="odd"):
        DraftShape(8, 1, 2, 2, 3, 8, 1e-6, False, (False,), (False,))
    assert [aligned(n) for n in (1, 8, 32, 33, 64)] == [32, 32, 32, 64, 64]


def test_no_program_passes_the_limit():
    """The MLP of Qwen3.5-27B's draft alone takes 267 MB at int8: it is divided."""
    shape = DraftShape(
        5120, 5, 32, 8, 128, 17408, 1e-6, False, (False,) * 5, (False,) * 5
    )  # fmt: skip
    parts = split(shape, True, 1.0, 250e6)
    units = [unit for part in parts for unit in part.units]
    assert [u.layer for u in units if u.kind == MLP and u.channels.start == 0] == [0, 1, 2, 3, 4]
    for layer in range(5):
        pieces = [u.channels for u in units if u.kind == MLP and u.layer == layer]
        assert sorted(c for piece in pieces for c in piece) == list(range(17408))
    assert parts[0].first
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_unknown_scheme(tmp_path):
    with pytest.raises(UnsupportedError, match="cannot be stored as int3"):
        compiled(tmp_path / "p", TINY, "int3")


def test_other_shapes_are_refused_by_the_emulator(tmp_path):
    plan = compiled(tmp_path / "p", TINY)
    draft = hosted(tmp_path / "p", plan)

    class Wrong(HostedDraft):
        def _shared(self, *given):
            arrays = super()._shared(*given)
            return {**arrays, "hidden": arrays["hidden"][..., :8]}

    draft.__class__ = Wrong
    with pytest.raises(DeviceError, match=r"input hidden is \(1, 64, 1, 8\), declared as"):
        draft(np.zeros((1, 128)), np.zeros((2, 64)))
