"""Devices that run compiled programs; made in a worker, so each is a picklable recipe."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..devices.device import Arrays, Device, DeviceError
from . import plan as plans
from . import reader
from .emulator import Emulator
from .hardware import PRESETS
from .parts import outputs
from .shapes import Bucket
from .surfaces import Frameworks, SurfaceExecutor, load


@dataclass(frozen=True)
class EmulatorRecipe:
    """Makes a device that emulates.

    Attributes:
        folder: of the compiled draft.
        function: that is called in every part.
        hardware: a preset's name.
    """

    folder: Path
    function: str
    hardware: str = "ideal"

    def __call__(self) -> Device:
        """Load the programs."""
        plan = plans.read(self.folder, check=False)
        return _Emulated(
            [
                Emulator(
                    reader.read(plan.package(self.folder, index))[self.function],
                    PRESETS[self.hardware],
                )
                for index in range(len(plan.parts))
            ]
        )


class _Emulated:
    def __init__(self, parts: list[Emulator]):
        self._parts = parts

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        return self._parts[part](arrays)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class CoreMLRecipe:
    """Makes a device of Core ML through coremltools, with CPU and Neural Engine allowed. On a Mac
    only, and best in a worker: coremltools holds Python's lock.

    Attributes:
        folder: of the compiled draft.
        function: that is called in every part.
        compiled: where what Core ML compiles is kept: the first time takes long.
    """

    folder: Path
    function: str
    compiled: Path

    def __call__(self) -> Device:
        """Load the programs, compiled for this machine the first time."""
        if platform.system() != "Darwin":
            raise DeviceError("Core ML is there on a Mac only")
        import coremltools as ct

        def make(package: Path) -> str:
            return str(ct.utils.compile_model(str(package)))

        plan = plans.read(self.folder, check=False)
        models = [
            ct.models.CompiledMLModel(
                str(kept(plan.package(self.folder, index), self.compiled, make)),
                compute_units=ct.ComputeUnit.CPU_AND_NE,
                function_name=self.function,
            )
            for index in range(len(plan.parts))
        ]
        return CoreMLDevice(models)


def kept(package: Path, folder: Path, make: Callable[[Path], str]) -> Path:
    """A package as Core ML compiles it, in a place that stays, named by its content and macOS.

    Args:
        package: what is compiled.
        folder: of all that was compiled.
        make: compiles, to a place of Core ML's choice.
    """
    digest = hashlib.sha256(platform.mac_ver()[0].encode())
    for file in sorted(package.rglob("*")):
        if file.is_file():
            digest.update(plans.sha256(file).encode())
    place = folder / f"{digest.hexdigest()[:32]}.mlmodelc"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(make(package), place)
    return place


def open_surfaces(
    found: Frameworks, folder: Path, bucket: Bucket, compiled: Path, call_seconds: float
) -> SurfaceExecutor:
    """Core ML in this process, through pyobjc.

    Args:
        found: Apple's frameworks.
        folder: of the compiled draft.
        bucket: whose functions are called.
        compiled: as for `CoreMLRecipe`.
        call_seconds: how long a call may take.

    Raises:
        DeviceError: Core ML does not compile or load a program.
    """

    def make(package: Path) -> str:
        url, error = found.coreml.MLModel.compileModelAtURL_error_(found.url(str(package)), None)
        if url is None:
            raise DeviceError(f"Core ML does not compile {package.name}: {error}")
        return str(url.path())

    plan = plans.read(folder, check=False)
    packages = [plan.package(folder, index) for index in range(len(plan.parts))]
    models = [load(found, str(kept(one, compiled, make)), bucket.function) for one in packages]
    results = [outputs(plan.shape, bucket, part) for part in plan.parts]
    return SurfaceExecutor(found, models, results, call_seconds)


class CoreMLDevice:
    """Calls loaded models. coremltools takes no fp16 arrays: they are widened for it.

    Args:
        models: of every part, with coremltools' `predict`.
    """

    def __init__(self, models: list[Any]):
        self._models = models
        self._given: list[dict[str, np.ndarray]] = [{} for _ in models]

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name, in fp16."""
        # Core ML was seen to read inputs after predict returns: the arrays outlive the call.
        given = self._given[part]
        for name, values in arrays.items():
            if name in given and given[name].shape == values.shape:
                given[name][...] = values
            else:
                given[name] = values.astype(np.float32)
        found = self._models[part].predict(given)
        return {
            name: values.astype(np.float16) if values.dtype.kind == "f" else values
            for name, values in found.items()
        }

    def close(self) -> None:
        """Forget the models."""
        self._models = []
