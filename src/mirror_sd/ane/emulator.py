"""Executes a function of a saved package in numpy, rounding as a `Hardware` does.

It shares nothing with the builder but the names of MIL's operations, whose meaning is that of
Apple's MIL reference. Every declared shape is checked against the shape that comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from . import operations
from .constants import Stored, resolve
from .hardware import IDEAL, Hardware
from .operations import Inputs
from .reader import Function, Operation
from .rounding import half


@dataclass
class Range:
    """What a tensor's values were over all calls.

    Attributes:
        largest: absolute.
        smallest: absolute, of those that are not zero.
        infinite: how many were not finite.
    """

    largest: float = 0.0
    smallest: float = float("inf")
    infinite: int = 0

    def note(self, values: np.ndarray) -> None:
        """Take in a tensor."""
        sizes = np.abs(values[np.isfinite(values)])
        self.infinite += values.size - sizes.size
        if sizes.size:
            self.largest = max(self.largest, float(sizes.max()))
            self.smallest = min(self.smallest, float(sizes.min(initial=np.inf, where=sizes > 0)))


class Emulator:
    """A function, ready to be called.

    Args:
        function: as read from a package.
        hardware: how it computes.
        ranges: whether to keep statistics of every tensor, see `ranges`.

    Raises:
        UnsupportedError: an operation is not known.
    """

    def __init__(self, function: Function, hardware: Hardware = IDEAL, ranges: bool = False):
        self.function, self.hardware = function, hardware
        self.ranges: dict[str, Range] | None = {} if ranges else None
        self._constants = {name: _widened(v) for name, v in function.constants.items()}
        self._stored: dict[str, Stored] = {}
        self._run: list[Operation] = []
        for operation in function.operations:
            if operation.type.startswith("constexpr_"):
                self._stored[operation.outputs[0]] = resolve(operation, self._constants, hardware)
            elif operation.type in operations.TABLE:
                self._run.append(operation)
            else:
                raise UnsupportedError(f"the emulator does not know the operation {operation.type}")
        self._last_use = _last_uses(self._run)

    def __call__(
        self, arrays: Mapping[str, np.ndarray], keep: Collection[str] = ()
    ) -> dict[str, np.ndarray]:
        """Outputs by name, in fp16 (fp32 where nothing is rounded).

        Args:
            arrays: inputs by name, of the declared shapes.
            keep: names of other values to be given too.

        Raises:
            ValueError: an input or a result does not have its declared shape.
        """
        values = {name: self._input(name, arrays) for name in self.function.inputs}
        wanted = {*self.function.outputs, *keep}
        for index, operation in enumerate(self._run):
            self._execute(operation, values)
            for name in self._last_use.get(index, ()):
                if name not in wanted:
                    values.pop(name, None)
        form = np.float16 if self.hardware.half else np.float32
        return {
            name: values[name].astype(form) if values[name].dtype == np.float32 else values[name]
            for name in wanted
        }

    def _input(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        declared, given = self.function.inputs[name], np.asarray(arrays[name])
        if given.shape != declared.shape:
            raise ValueError(f"input {name} is {given.shape}, declared as {declared.shape}")
        return self._finished(given.astype(np.float32))

    def _execute(self, operation: Operation, values: dict[str, np.ndarray]) -> None:
        inputs = Inputs(operation, values, self._constants, self._stored, self.hardware)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            result = operations.TABLE[operation.type](inputs)
        results = result if isinstance(result, tuple) else (result,)
        for name, kind, found in zip(operation.outputs, operation.types, results, strict=True):
            if kind is not None and found.shape != kind.shape:
                raise ValueError(
                    f"{operation.type} {name} gives {found.shape}, declared as {kind.shape}"
                )
            values[name] = self._finished(found)
            if self.ranges is not None and found.dtype.kind == "f":
                self.ranges.setdefault(name, Range()).note(values[name])

    def _finished(self, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind != "f" or not self.hardware.half:
            return values
        return half(values, self.hardware.flush)


def _widened(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype == np.float16 else value


def _last_uses(run: list[Operation]) -> dict[int, list[str]]:
    """Per step, the values that no later step needs."""
    last: dict[str, int] = {}
    for index, operation in enumerate(run):
        for given in operation.inputs.values():
            last |= {name: index for name in given if isinstance(name, str)}
    found: dict[int, list[str]] = {}
    for name, index in last.items():
        found.setdefault(index, []).append(name)
    return found


def cosine(a: Any, b: Any) -> float:
    """Between two tensors, all values together, in fp64."""
    x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size else float(not x.any() and not y.any())
