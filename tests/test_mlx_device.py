"""The draft in MLX as a device: it computes what the draft computes, through programs' tensors."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mirror_sd.ane.calibration import Calibration
from mirror_sd.ane.host import HostedDraft
from mirror_sd.ane.shapes import Bucket
from mirror_sd.devices.device import Inline
from mirror_sd.errors import UnsupportedError
from mirror_sd.mlx_device import MlxDevice, MlxRecipe
from mirror_sd.models.context_columns import ContextColumns
from mirror_sd.programs import rope_tables
from tests import tiny
from tests.models.test_context_columns import PLAIN, golden


def hosted(draft, device: MlxDevice, bucket: Bucket) -> HostedDraft:
    tables, executor = rope_tables(draft), Inline(device)
    return HostedDraft(device.shape, bucket, [device.part], Calibration(), tables, executor)


@pytest.mark.parametrize("new", [32, 0])
@pytest.mark.parametrize("case", PLAIN)
def test_it_computes_the_draft(case, new):
    """Every published variant, from features and from keys and values; fp16 goes in and out."""
    draft, data = golden(case)
    bucket = Bucket(32, new, 512)
    found, columns = hosted(draft, MlxDevice(draft, bucket), bucket), ContextColumns(draft)
    context = draft.make_context(512)
    for cycle in range(2):
        features = data[f"cycle{cycle}.features"]
        block = data["embed"][data[f"cycle{cycle}.block"]]
        draft.extend(features, context)
        wanted = np.array(draft(block, context)[0])
        given = features if new else columns.of_features(features, found.length)
        rest = found.absorb(np.array(given[0]))
        got = found(rest, np.array(draft.enter(block)[0]))
        assert np.abs(got - wanted).max() < 6e-3 * np.abs(wanted).max()


def test_branches_do_not_see_each_other():
    draft, bucket = tiny.draft(), Bucket(32, 0, 512)
    found = hosted(draft, MlxDevice(draft, bucket), bucket)
    found.absorb(np.random.default_rng(0).standard_normal((9, 128)))
    blocks = np.random.default_rng(1).standard_normal((2, 4, 64))
    alone = [found(np.zeros((0, 128)), block, np.arange(9, 13)) for block in blocks]
    seen = np.kron(np.eye(2), np.ones((4, 4))).astype(bool)
    both = found(np.zeros((0, 128)), blocks.reshape(8, 64), np.tile(np.arange(9, 13), 2), seen)
    assert np.abs(both - np.concatenate(alone)).max() < 2e-2


def test_the_recipe_loads_the_draft_in_float32(tmp_path):
    bucket = Bucket(32, 0, 512)
    device = MlxRecipe(str(tiny.write_draft(tmp_path / "draft")), bucket)()
    loaded, draft = device._draft, tiny.draft()
    assert loaded.fc_dtype == mx.float32
    assert mx.array_equal(loaded.fc.weight, draft.fc.weight).item()


def test_dflash_2_is_refused():
    draft, _ = golden("dflash2")
    with pytest.raises(UnsupportedError, match="DFlash 2"):
        MlxDevice(draft, Bucket(32, 0, 512))
