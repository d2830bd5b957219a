"""Weights that a package stores in fewer bits, as an operation meets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .hardware import Hardware
from .reader import Operation
from .rounding import half


@dataclass(frozen=True)
class Stored:
    """A weight tensor.

    Attributes:
        values: in fp32; integers where `scales` is given.
        scales: per output channel, if the hardware applies them to results.
        int8: whether it is stored as int8.
    """

    values: np.ndarray
    scales: np.ndarray | None = None
    int8: bool = False


def resolve(
    operation: Operation, constants: Mapping[str, np.ndarray], hardware: Hardware
) -> Stored:
    """What a constant expression stands for.

    Raises:
        UnsupportedError: it is not known.
    """

    def given(name: str) -> Any:
        value = operation.inputs[name][0]
        return constants[value] if isinstance(value, str) else value

    if operation.type == "constexpr_affine_dequantize":
        return _affine(
            given("quantized_data"), given("scale"), given("zero_point"), int(given("axis")),
            hardware,
        )  # fmt: skip
    if operation.type == "constexpr_lut_to_dense":
        return _rounded(_looked_up(given("indices"), given("lut")), hardware)
    raise UnsupportedError(f"the emulator does not know the operation {operation.type}")


def _affine(
    codes: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int, hardware: Hardware
) -> Stored:
    shape = [1] * codes.ndim
    shape[axis] = -1
    scales = np.asarray(scale, np.float32).reshape(-1)
    integers = codes.astype(np.float32) - np.asarray(zero, np.float32).reshape(-1).reshape(shape)
    if hardware.scale_after and hardware.half:
        return Stored(integers, np.broadcast_to(scales, codes.shape[axis]), True)
    values = _rounded(integers * scales.reshape(shape), hardware).values
    return Stored(values, None, True)


def _looked_up(indices: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """One value per index; tables [groups..., entries, 1] each serve a block of the indices."""
    if tables.shape[-1] != 1:
        raise UnsupportedError("the emulator does not know palettes of vectors")
    groups = tables.shape[:-2]
    where: list[np.ndarray] = []
    for axis, (size, count) in enumerate(zip(indices.shape, groups, strict=True)):
        shape = [1] * indices.ndim
        shape[axis] = size
        where.append((np.arange(size) // (size // count)).reshape(shape))
    return np.asarray(tables[..., 0], np.float32)[(*where, indices)]


def _rounded(values: np.ndarray, hardware: Hardware) -> Stored:
    return Stored(half(values, hardware.flush) if hardware.half else values)
