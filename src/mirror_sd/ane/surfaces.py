"""Core ML in this process, through pyobjc, on arrays that the Neural Engine reads where they are.

coremltools' predict holds Python's lock, takes no fp16 and copies every input. Through pyobjc the
lock is released, arrays lie in IOSurfaces (`MLMultiArray initWithPixelBuffer:shape:`), outputs come
where they are wanted (`outputBackings`), and a call that does not end is noticed. It was written
against Apple's documentation and is tested with a stand-in; it has not run on a Mac yet.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..devices.device import Arrays, DeviceError, Span

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Frameworks:
    """Apple's frameworks as pyobjc shows them.

    Attributes:
        coreml: the module CoreML.
        quartz: the module Quartz, for CVPixelBuffer.
        url: a path to an NSURL.
        identity: an object's address, the same for all its Python wrappers.
    """

    coreml: Any
    quartz: Any
    url: Callable[[str], Any]
    identity: Callable[[Any], int]


def frameworks() -> Frameworks | None:
    """Those of this Mac; None if pyobjc is not installed."""
    try:
        import CoreML
        import objc
        import Quartz
        from Foundation import NSURL
    except ImportError:
        return None
    return Frameworks(CoreML, Quartz, NSURL.fileURLWithPath_, objc.pyobjc_id)


@dataclass(frozen=True)
class Surface:
    """An IOSurface three times: for numpy, for Core ML, and to be locked."""

    values: np.ndarray
    multi: Any
    buffer: Any


class Surfaces:
    """Makes arrays in IOSurfaces."""

    def __init__(self, found: Frameworks):
        self._found = found

    def new(self, shape: Shape) -> Surface:
        """Zeros in fp16, locked for this side.

        Raises:
            DeviceError: there is no memory for it.
        """
        quartz, width, height = self._found.quartz, shape[-1], int(np.prod(shape[:-1]))
        status, buffer = quartz.CVPixelBufferCreate(
            None, width, height, quartz.kCVPixelFormatType_OneComponent16Half,
            {quartz.kCVPixelBufferIOSurfacePropertiesKey: {}}, None,
        )  # fmt: skip
        if status or buffer is None:
            raise DeviceError(f"no IOSurface of {2 * width * height} bytes: status {status}")
        self.lock(buffer)
        stride = quartz.CVPixelBufferGetBytesPerRow(buffer)  # rows may be padded
        memory = quartz.CVPixelBufferGetBaseAddress(buffer).as_buffer(stride * height)
        flat = np.frombuffer(memory, np.float16)
        strides = [2]
        for size in shape[:0:-1]:
            strides.append(stride if len(strides) == 1 else strides[-1] * size)
        values = np.lib.stride_tricks.as_strided(flat, shape, strides[::-1])
        values[...] = 0
        multi = self._found.coreml.MLMultiArray.alloc().initWithPixelBuffer_shape_(buffer, shape)
        return Surface(values, multi, buffer)

    def lock(self, buffer: Any) -> None:
        """From here on, this side reads and writes it."""
        self._found.quartz.CVPixelBufferLockBaseAddress(buffer, 0)

    def unlock(self, buffer: Any) -> None:
        """From here on, the device does."""
        self._found.quartz.CVPixelBufferUnlockBaseAddress(buffer, 0)


def load(found: Frameworks, compiled: str, function: str) -> Any:
    """One function of a compiled model, with CPU and Neural Engine allowed.

    Raises:
        DeviceError: Core ML does not load it.
    """
    settings = found.coreml.MLModelConfiguration.alloc().init()
    settings.setComputeUnits_(found.coreml.MLComputeUnitsCPUAndNeuralEngine)
    settings.setFunctionName_(function)
    model, error = found.coreml.MLModel.modelWithContentsOfURL_configuration_error_(
        found.url(compiled), settings, None
    )
    if model is None:
        raise DeviceError(f"Core ML does not load {compiled}: {error}")
    return model


class SurfaceExecutor:
    """Runs loaded models on arrays in IOSurfaces.

    Args:
        found: Apple's frameworks.
        models: of every part.
        outputs: of every part, names and shapes.
        call_seconds: how long a call may take.
    """

    def __init__(
        self,
        found: Frameworks,
        models: Sequence[Any],
        outputs: Sequence[Mapping[str, Shape]],
        call_seconds: float,
    ):
        self._found, self._models, self._seconds = found, list(models), call_seconds
        self._surfaces = Surfaces(found)
        self._lasting: dict[int, Surface] = {}
        # Core ML was seen to read inputs after a call has ended: they stay.
        self._given: list[dict[str, Surface]] = [{} for _ in models]
        self._results = [
            {name: self._surfaces.new(shape) for name, shape in part.items()} for part in outputs
        ]
        self._busy: list[Span] = []
        self._hung = False

    def allocate(self, shape: Shape) -> np.ndarray:
        """Zeros in fp16 that the device reads where they are. The memory is given back when nobody
        refers to the array itself.
        """
        if not np.prod(shape):
            return np.zeros(shape, np.float16)
        surface = self._surfaces.new(shape)
        found = surface.values.view()  # the surface holds its own array, which would never go
        self._lasting[id(found)] = surface
        weakref.finalize(found, self._lasting.pop, id(found), None)
        return found

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name.

        Raises:
            DeviceError: Core ML failed, or did not answer in time.
        """
        if self._hung:
            raise DeviceError("it has not answered an earlier call")
        given = {name: self._surface(part, name, values) for name, values in arrays.items()}
        results = self._results[part]
        surfaces = [*given.values(), *results.values()]
        for surface in surfaces:
            self._surfaces.unlock(surface.buffer)
        try:
            begin = time.perf_counter()
            answer = self._predict(part, given, results)
            self._busy.append((begin, time.perf_counter()))
        finally:
            for surface in surfaces:
                self._surfaces.lock(surface.buffer)
        self._check(answer, results)
        return {name: surface.values.copy() for name, surface in results.items()}

    def busy(self) -> list[Span]:
        """When it computed since this was asked last, by this process's clock."""
        busy, self._busy = self._busy, []
        return busy

    def close(self) -> None:
        """Forget the models."""
        self._models = []

    def _surface(self, part: int, name: str, values: np.ndarray) -> Surface:
        """Where an input lies: it is copied only if it was not allocated here."""
        lasting = self._lasting.get(id(values))
        if lasting is not None:
            return lasting
        kept = self._given[part].get(name)
        if kept is None or kept.values.shape != values.shape:
            kept = self._given[part][name] = self._surfaces.new(values.shape)
        kept.values[...] = values
        return kept

    def _predict(
        self, part: int, given: Mapping[str, Surface], results: Mapping[str, Surface]
    ) -> Any:
        coreml, done, answers = self._found.coreml, threading.Event(), []
        values = {
            name: coreml.MLFeatureValue.featureValueWithMultiArray_(surface.multi)
            for name, surface in given.items()
        }
        provider, error = coreml.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(
            values, None
        )
        if provider is None:
            raise DeviceError(f"Core ML does not take the inputs: {error}")
        options = coreml.MLPredictionOptions.alloc().init()
        options.setOutputBackings_({name: surface.multi for name, surface in results.items()})

        def ended(answer: Any, error: Any) -> None:
            answers.append((answer, error))
            done.set()

        self._models[part].predictionFromFeatures_options_completionHandler_(
            provider, options, ended
        )
        if not done.wait(self._seconds):
            self._hung = True
            raise DeviceError(f"it did not answer within {self._seconds:g} s")
        answer, error = answers[0]
        if answer is None:
            raise DeviceError(f"Core ML failed: {error}")
        return answer

    def _check(self, answer: Any, results: Mapping[str, Surface]) -> None:
        """Core ML may decline a place for an output, and put it elsewhere."""
        for name, surface in results.items():
            multi = answer.featureValueForName_(name).multiArrayValue()
            if self._found.identity(multi) != self._found.identity(surface.multi):
                raise DeviceError(
                    f"Core ML did not put {name} where it was wanted; use --device coreml-worker"
                )
