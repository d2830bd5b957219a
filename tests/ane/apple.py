"""A stand-in for pyobjc's CoreML and Quartz: the calls that `surfaces` makes, over numpy.

It follows Apple's documentation and pyobjc's conventions (methods with an error give a pair, blocks
are called from another thread), and writes down what it was asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from mirror_sd.ane.surfaces import Frameworks

PADDING = 128  # bytes that a row is a multiple of


class Memory:
    def __init__(self, values):
        self._values = values

    def as_buffer(self, count):
        assert count == self._values.nbytes
        return memoryview(self._values).cast("B")


class Buffer:
    """A CVPixelBuffer whose rows are padded."""

    def __init__(self, width, height):
        self.stride = -(-2 * width // PADDING) * PADDING
        self.memory = np.full((height, self.stride // 2), np.nan, np.float16)
        self.width, self.locks = width, 0


class Multi:
    """An MLMultiArray on a pixel buffer."""

    def __init__(self, buffer, shape):
        self.buffer, self.shape = buffer, shape

    @classmethod
    def alloc(cls):
        return SimpleNamespace(initWithPixelBuffer_shape_=cls)

    @property
    def values(self):
        """As the device sees them, which this side must not hold meanwhile."""
        assert self.buffer.locks == 0
        return self.buffer.memory[:, : self.buffer.width].reshape(self.shape)

    def write(self, values):
        assert self.buffer.locks == 0
        self.buffer.memory[:, : self.buffer.width] = values.reshape(-1, self.buffer.width)


class Options:
    @classmethod
    def alloc(cls):
        return SimpleNamespace(init=cls)

    def setOutputBackings_(self, backings):
        self.backings = backings

    def setComputeUnits_(self, units):
        self.units = units

    def setFunctionName_(self, name):
        self.function = name


class Provider:
    def __init__(self, values):
        self.values = values

    @classmethod
    def alloc(cls):
        def init(values, error):
            return (None, "bad inputs") if "refused" in values else (cls(values), None)

        return SimpleNamespace(initWithDictionary_error_=init)

    def featureValueForName_(self, name):
        return SimpleNamespace(multiArrayValue=lambda: self.values[name])


class Model:
    """Computes by a function of arrays by name; `mood` is how it goes wrong."""

    def __init__(self, compute: Callable, mood: str = ""):
        self.compute, self.mood, self.seen = compute, mood, []

    def predictionFromFeatures_options_completionHandler_(self, provider, options, ended):
        def work():
            if self.mood == "hang":
                return
            if self.mood == "fail":
                ended(None, "an error of Core ML's")
                return
            self.seen.append(dict(provider.values))
            given = {name: multi.values.copy() for name, multi in provider.values.items()}
            try:
                found = self.compute(given)
            except RuntimeError as error:
                ended(None, error)
                return
            placed = dict(options.backings)
            for name, multi in placed.items():
                multi.write(np.asarray(found[name], np.float16))
            if self.mood == "elsewhere":
                placed = {name: object() for name in placed}
            ended(Provider(placed), None)

        threading.Thread(target=work, daemon=True).start()


def stand_in(models: Callable[[str, str], Model | None] | None = None) -> Frameworks:
    """The frameworks.

    Args:
        models: what loading a path's function gives; None where it fails.
    """
    log: list[tuple] = []

    def create(allocator, width, height, kind, attributes, out):
        assert kind == "half"
        assert attributes == {"io": {}}
        log.append(("create", width, height))
        return 0, Buffer(width, height)

    def lock(buffer, flags):
        buffer.locks += 1
        return 0

    def unlock(buffer, flags):
        assert buffer.locks == 1
        buffer.locks -= 1
        return 0

    def load_model(url, settings, error):
        log.append(("load", url.path(), settings.function, settings.units))
        model = models(url.path(), settings.function) if models else None
        return (model, None) if model else (None, "no such function")

    def compile_model(url, error):
        from pathlib import Path

        made = Path(url.path()).with_suffix(".mlmodelc")
        made.mkdir()
        log.append(("compile", url.path()))
        return SimpleNamespace(path=lambda: str(made)), None

    quartz = SimpleNamespace(
        kCVPixelFormatType_OneComponent16Half="half",
        kCVPixelBufferIOSurfacePropertiesKey="io",
        CVPixelBufferCreate=create,
        CVPixelBufferLockBaseAddress=lock,
        CVPixelBufferUnlockBaseAddress=unlock,
        CVPixelBufferGetBytesPerRow=lambda buffer: buffer.stride,
        CVPixelBufferGetBaseAddress=lambda buffer: Memory(buffer.memory),
    )
    coreml = SimpleNamespace(
        MLComputeUnitsCPUAndNeuralEngine="cpu and neural engine",
        MLModelConfiguration=Options,
        MLPredictionOptions=Options,
        MLDictionaryFeatureProvider=Provider,
        MLMultiArray=Multi,
        MLFeatureValue=SimpleNamespace(featureValueWithMultiArray_=lambda multi: multi),
        MLModel=SimpleNamespace(
            modelWithContentsOfURL_configuration_error_=load_model,
            compileModelAtURL_error_=compile_model,
        ),
        log=log,
    )
    return Frameworks(coreml, quartz, lambda path: SimpleNamespace(path=lambda: path), id)
