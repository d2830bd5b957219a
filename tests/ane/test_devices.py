"""The Core ML device, against a stand-in for coremltools' loaded models."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from mirror_sd.ane.devices import CoreMLDevice, CoreMLRecipe, EmulatorRecipe, kept
from mirror_sd.devices.device import DeviceError, Inline

from .drafts import BUCKET, TINY, compiled, hosted


class Model:
    """Takes fp32 arrays only, as coremltools does, and remembers which."""

    def __init__(self):
        self.given = []

    def predict(self, arrays):
        assert all(values.dtype == np.float32 for values in arrays.values())
        self.given.append(arrays["x"])
        return {"y": arrays["x"] * 2}


def test_arrays_are_widened_and_outlive_the_call():
    model = Model()
    device = CoreMLDevice([Model(), model])
    for factor in (1, 2):
        found = device(1, {"x": np.full((1, 4, 1, 32), factor, np.float16)})
        assert found["y"].dtype == np.float16
        assert (found["y"] == 2 * factor).all()
    assert model.given[0] is model.given[1]


@pytest.mark.skipif(platform.system() == "Darwin", reason="there it loads")
def test_core_ml_elsewhere(tmp_path):
    with pytest.raises(DeviceError, match="on a Mac only"):
        CoreMLRecipe(tmp_path, "main", tmp_path)()


def test_what_core_ml_compiles_is_kept(tmp_path):
    plan = compiled(tmp_path / "p", TINY)
    made = []

    def compile_model(package):
        place = tmp_path / f"made-{len(made)}.mlmodelc"
        place.mkdir()
        made.append(package)
        return str(place)

    package = plan.package(tmp_path / "p", 0)
    first = kept(package, tmp_path / "kept", compile_model)
    assert first == kept(package, tmp_path / "kept", compile_model)
    assert first.parent == tmp_path / "kept"
    assert len(made) == 1
    compiled(tmp_path / "p", TINY, "int8")
    assert kept(package, tmp_path / "kept", compile_model) != first


def test_the_emulator_as_a_device(tmp_path):
    plan = compiled(tmp_path / "p", TINY, limit=60e3, scheme="int8")
    device = EmulatorRecipe(tmp_path / "p", BUCKET.function)()
    features, block = np.ones((3, 128)), np.ones((4, 64))
    straight = hosted(tmp_path / "p", plan)
    by_device = hosted(tmp_path / "p", plan)
    by_device._device = Inline(device)
    assert np.array_equal(by_device(features, block), straight(features, block))
