"""Core ML through pyobjc, against a stand-in for Apple's frameworks."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from mirror_sd.ane import reader
from mirror_sd.ane.devices import open_surfaces
from mirror_sd.ane.emulator import Emulator
from mirror_sd.ane.host import HostedDraft
from mirror_sd.ane.surfaces import SurfaceExecutor, load
from mirror_sd.devices.device import Checked, DeviceError

from .apple import Model, stand_in
from .drafts import BUCKET, TINY, compiled, hosted, tables

SHAPE = (1, 3, 2, 40)  # rows of 80 bytes, which are padded


def double(given):
    return {"y": 2 * given["x"]}


def executor(mood="", seconds=5.0, compute=double):
    model = Model(compute, mood)
    return SurfaceExecutor(stand_in(), [model], [{"y": SHAPE}], seconds), model


def test_arrays_come_and_go_in_place():
    device, model = executor()
    own = device.allocate(SHAPE)
    assert own.shape == SHAPE
    assert not own.any()
    own[...] = np.arange(own.size, dtype=np.float16).reshape(SHAPE)
    for factor in (1, 2):
        own *= factor
        found = device(0, {"x": own})
        assert np.array_equal(found["y"], 2 * own)
    first, second = (seen["x"] for seen in model.seen)
    assert first is second  # nothing was copied
    created = len(device._found.coreml.log)
    other = np.ones(SHAPE, np.float16)
    before = device(0, {"x": other})["y"]
    device(0, {"x": 3 * other})
    assert (before == 2).all()  # a result is not overwritten by the next call
    assert len(device._found.coreml.log) == created + 1  # one place for what must be copied
    assert [end > begin for begin, end in device.busy()] == [True] * 4
    assert device.busy() == []


def test_memory_is_given_back_with_the_array():
    device, _ = executor()
    own = device.allocate(SHAPE)
    assert len(device._lasting) == 1
    del own
    gc.collect()
    assert not device._lasting
    assert device.allocate((1, 0, 4, 32)).size == 0


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("fail", "an error of Core ML's"),
        ("hang", "did not answer within 0.05 s"),
        ("elsewhere", "did not put y where it was wanted"),
    ],
)
def test_what_goes_wrong_is_told(mood, said):
    device, _ = executor(mood, 0.05 if mood == "hang" else 5.0)
    with pytest.raises(DeviceError, match=said):
        device(0, {"x": np.ones(SHAPE, np.float16)})
    if mood == "hang":  # Core ML may still write
        with pytest.raises(DeviceError, match="has not answered an earlier call"):
            device(0, {"x": np.ones(SHAPE, np.float16)})


def test_inputs_that_are_not_taken():
    device, _ = executor()
    with pytest.raises(DeviceError, match="bad inputs"):
        device(0, {"refused": np.ones(SHAPE, np.float16)})


def test_values_that_are_not_finite():
    device, _ = executor(compute=lambda given: {"y": np.full(SHAPE, np.nan)})
    with pytest.raises(DeviceError, match="not finite"):
        Checked(device)(0, {"x": np.ones(SHAPE, np.float16)})


def test_a_function_that_does_not_load():
    with pytest.raises(DeviceError, match="does not load there: no such function"):
        load(stand_in(), "there", "main")


def test_a_compiled_draft_by_the_frameworks(tmp_path):
    """Programs are compiled once, loaded for the Neural Engine, and give what they give inline."""
    plan = compiled(tmp_path / "p", TINY, "int8")
    place = tmp_path / "kept"

    def models(path, function):
        emulator = Emulator(reader.read(plan.package(tmp_path / "p", 0))[function])
        return Model(emulator)

    found = stand_in(models)
    device = open_surfaces(found, tmp_path / "p", BUCKET, place, 5.0)
    again = open_surfaces(found, tmp_path / "p", BUCKET, place, 5.0)
    kinds = [entry[0] for entry in found.coreml.log if entry[0] != "create"]
    assert kinds == ["compile", "load", "load"]
    loads = [entry[2:] for entry in found.coreml.log if entry[0] == "load"]
    assert loads == [(BUCKET.function, "cpu and neural engine")] * 2
    again.close()
    draft = HostedDraft(
        plan.shape, BUCKET, plan.parts, plan.calibration, tables(plan.shape), device
    )
    inline = hosted(tmp_path / "p", plan)
    rng = np.random.default_rng(0)
    for _ in range(3):
        features, block = rng.standard_normal((5, 128)), rng.standard_normal((4, 64))
        assert np.array_equal(draft(features, block), inline(features, block))
    rings = device._models[0].seen
    assert all(one["keys"] is rings[0]["keys"] for one in rings)
