"""MIL's operations in numpy, those that drafts use and a few that bad programs do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .constants import Stored
from .hardware import Hardware
from .reader import Operation
from .rounding import half, narrow_sum, product, saturated


class Inputs:
    """What an operation is given."""

    def __init__(
        self,
        operation: Operation,
        values: Mapping[str, np.ndarray],
        constants: Mapping[str, np.ndarray],
        stored: Mapping[str, Stored],
        hardware: Hardware,
    ):
        self.type, self.hardware = operation.type, hardware
        self._given = operation.inputs
        self._values, self._constants, self._stored = values, constants, stored

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def tensor(self, name: str) -> np.ndarray:
        """An input that must be there."""
        return self._lookup(self._given[name][0])

    def tensors(self, name: str) -> list[np.ndarray]:
        """An input of several tensors."""
        return [self._lookup(one) for one in self._given[name]]

    def number(self, name: str, default: float) -> float:
        """A scalar."""
        return float(self.tensor(name)) if name in self else default

    def flag(self, name: str) -> bool:
        """A boolean, False if it is not there."""
        return bool(self.tensor(name)) if name in self else False

    def integers(self, name: str) -> list[int]:
        """A list of numbers."""
        return [int(n) for n in np.ravel(self.tensor(name))]

    def weight(self, name: str) -> Stored:
        """An input that may be stored in fewer bits."""
        key = self._given[name][0]
        if isinstance(key, str) and key in self._stored:
            return self._stored[key]
        return Stored(self._lookup(key))

    def _lookup(self, key: Any) -> np.ndarray:
        if not isinstance(key, str):
            return key.astype(np.float32) if key.dtype == np.float16 else key
        for where in (self._values, self._constants):
            if key in where:
                return where[key]
        return self._stored[key].values


Implementation = Callable[[Inputs], Any]
TABLE: dict[str, Implementation] = {}


def operation(*names: str) -> Callable[[Implementation], Implementation]:
    """Register an implementation."""

    def register(function: Implementation) -> Implementation:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return register


_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs,
    "exp": np.exp,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
}
_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mul": np.multiply,
    "real_div": np.divide,
    "sub": np.subtract,
}


@operation(*_UNARY)
def _unary(given: Inputs) -> np.ndarray:
    return _UNARY[given.type](given.tensor("x"))


@operation(*_BINARY)
def _binary(given: Inputs) -> np.ndarray:
    return _BINARY[given.type](given.tensor("x"), given.tensor("y"))


@operation("inverse")
def _inverse(given: Inputs) -> np.ndarray:
    return 1 / (given.tensor("x") + np.float32(given.number("epsilon", 1e-4)))


@operation("rsqrt")
def _rsqrt(given: Inputs) -> np.ndarray:
    return 1 / np.sqrt(given.tensor("x") + np.float32(given.number("epsilon", 1e-12)))


@operation("reduce_max")
def _reduce_max(given: Inputs) -> np.ndarray:
    return given.tensor("x").max(axis=_axes(given), keepdims=given.flag("keep_dims"))


@operation("reduce_l2_norm")
def _reduce_l2_norm(given: Inputs) -> np.ndarray:
    squares = np.square(given.tensor("x"))
    return np.sqrt(squares.sum(axis=_axes(given), keepdims=given.flag("keep_dims")))


@operation("reduce_sum", "reduce_mean")
def _reduce(given: Inputs) -> np.ndarray:
    x, axes = given.tensor("x"), _axes(given)
    narrow = given.hardware.narrow_reduce and given.hardware.half
    total = narrow_sum(x, axes) if narrow else x.sum(axis=axes, keepdims=True)
    if given.type == "reduce_mean":
        total = total / np.float32(np.prod([x.shape[axis] for axis in axes]))
    return total if given.flag("keep_dims") else np.squeeze(total, axes)


def _axes(given: Inputs) -> tuple[int, ...]:
    rank = given.tensor("x").ndim
    if "axes" not in given:
        return tuple(range(rank))
    return tuple(axis % rank for axis in given.integers("axes"))


@operation("softmax")
def _softmax(given: Inputs) -> np.ndarray:
    x, axis = given.tensor("x"), int(given.number("axis", -1))
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


@operation("reshape")
def _reshape(given: Inputs) -> np.ndarray:
    return given.tensor("x").reshape(given.integers("shape"))


@operation("transpose")
def _transpose(given: Inputs) -> np.ndarray:
    return np.transpose(given.tensor("x"), given.integers("perm"))


@operation("concat")
def _concat(given: Inputs) -> np.ndarray:
    return np.concatenate(given.tensors("values"), axis=int(given.number("axis", 0)))


@operation("slice_by_index")
def _slice(given: Inputs) -> np.ndarray:
    x = given.tensor("x")
    begin, end = given.integers("begin"), given.integers("end")
    stride = given.integers("stride") if "stride" in given else [1] * x.ndim
    open_begin, open_end = (
        given.integers(name) if name in given else [0] * x.ndim
        for name in ("begin_mask", "end_mask")
    )
    cuts = tuple(
        slice(None if open_begin[i] else begin[i], None if open_end[i] else end[i], stride[i])
        for i in range(x.ndim)
    )
    if cuts[-1].start and given.hardware.half and x.dtype.kind == "f":
        return saturated(x[cuts], given.hardware.slice_limit)
    return x[cuts]


@operation("topk")
def _topk(given: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The largest values along an axis and where they stand, the largest first."""
    x, axis, count = given.tensor("x"), int(given.number("axis", -1)), int(given.number("k", 1))
    order = np.argsort(-x, axis=axis, kind="stable").take(range(count), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


@operation("conv")
def _conv(given: Inputs) -> np.ndarray:
    """A 1x1 convolution: a linear map of the channels."""
    x, stored = given.tensor("x"), given.weight("weight")
    if stored.values.shape[2:] != (1, 1) or given.number("groups", 1) != 1:
        raise UnsupportedError("the emulator knows convolutions of size 1x1 without groups only")
    batch, channels, height, width = x.shape
    kernel = stored.values.reshape(len(stored.values), channels)
    y = _weighted(given, stored, kernel, x.reshape(batch, channels, height * width))
    if stored.scales is not None:
        y = half(y) * stored.scales[:, None]
    if "bias" in given:
        y = y + given.tensor("bias")[:, None]
    return y.reshape(batch, len(kernel), height, width)


def _weighted(given: Inputs, stored: Stored, kernel: np.ndarray, x: np.ndarray) -> np.ndarray:
    hardware = given.hardware
    if stored.int8 and hardware.half:
        x = saturated(x, hardware.int8_limit)
    return _limited(given, product(kernel, x, hardware.accumulate if hardware.half else 0))


@operation("linear")
def _linear(given: Inputs) -> np.ndarray:
    x, stored = given.tensor("x"), given.weight("weight")
    y = np.swapaxes(_weighted(given, stored, stored.values, np.swapaxes(x, -1, -2)), -1, -2)
    if stored.scales is not None:
        y = half(y) * stored.scales
    return y + given.tensor("bias") if "bias" in given else y


@operation("matmul")
def _matmul(given: Inputs) -> np.ndarray:
    x, y = given.tensor("x"), given.tensor("y")
    x = np.swapaxes(x, -1, -2) if given.flag("transpose_x") else x
    y = np.swapaxes(y, -1, -2) if given.flag("transpose_y") else y
    return _limited(given, product(x, y, given.hardware.accumulate if given.hardware.half else 0))


def _limited(given: Inputs, y: np.ndarray) -> np.ndarray:
    if not given.hardware.half:
        return y
    return saturated(y, given.hardware.product_limit, inclusive=True)
