"""Reads a Core ML package: its protobuf and its weight file, nothing of what built it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ..errors import CheckpointError
from .mil_schema import Model

# MIL's DataType -> numpy; indices of palettes have fewer bits than their numpy type.
DTYPES: dict[int, Any] = {
    1: np.bool_, 2: str, 10: np.float16, 11: np.float32, 12: np.float64, 21: np.int8,
    22: np.int16, 23: np.int32, 24: np.int64, 31: np.uint8, 32: np.uint16, 33: np.uint32,
    34: np.uint64, 35: np.uint8, 36: np.uint8, 37: np.uint8, 38: np.uint8, 39: np.uint8,
}  # fmt: skip
BITS = {35: 4, 36: 2, 37: 1, 38: 6, 39: 3}
BLOB_MAGIC = 0xDEADBEEF
WEIGHTS = "weights"


@dataclass(frozen=True)
class TensorType:
    """A declared type.

    Attributes:
        shape: sizes; -1 for one that is not fixed.
        dtype: numpy's, or str.
        state: whether it is a state that outlives a call.
    """

    shape: tuple[int, ...]
    dtype: Any
    state: bool = False


@dataclass(frozen=True)
class Operation:
    """An operation of a function.

    Attributes:
        type: of MIL, such as conv.
        inputs: parameter -> names of values, or constants in place.
        outputs: names of what it gives.
        types: declared types of these.
        blocks: how many nested blocks it has: control flow.
    """

    type: str
    inputs: dict[str, list[Any]]
    outputs: tuple[str, ...]
    types: tuple[TensorType | None, ...]
    blocks: int = 0


@dataclass(frozen=True)
class Function:
    """A function of a program, operations in order of execution.

    Attributes:
        inputs: name -> declared type.
        outputs: names.
        operations: constants are not among them.
        constants: name -> value.
        weight_bytes: of the weight file that its constants take up.
    """

    name: str
    inputs: dict[str, TensorType]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    constants: dict[str, np.ndarray] = field(repr=False)
    weight_bytes: int = 0

    @property
    def types(self) -> dict[str, TensorType | None]:
        """Declared type of every value, inputs included."""
        found: dict[str, TensorType | None] = dict(self.inputs)
        for operation in self.operations:
            found |= dict(zip(operation.outputs, operation.types, strict=True))
        return found


def read(package: Path) -> dict[str, Function]:
    """Functions of a package by name.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        manifest = json.loads((package / "Manifest.json").read_text(encoding="utf-8"))
        root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        file = package / "Data" / root
        model = Model()
        model.ParseFromString(file.read_bytes())
        blobs = _Blobs(file.parent)
        found = model.mlProgram.functions
        return {name: _function(name, found[name], blobs) for name in sorted(found)}
    except (OSError, KeyError, ValueError, DecodeError, TypeError) as error:
        raise CheckpointError(
            f"{package} is not a readable Core ML package: {error}; compile it again"
        ) from error


class _Blobs:
    """Weight files: a 64-byte header, then for each tensor a record {magic, type, bytes, offset} of
    64 bytes that points to its data.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, np.memmap] = {}
        self.seen: dict[int, int] = {}

    def read(self, name: str, offset: int, kind: int, shape: tuple[int, ...]) -> np.ndarray:
        file = name.rsplit("/", 1)[-1]
        if file not in self._files:
            self._files[file] = np.memmap(self._folder / WEIGHTS / file, np.uint8, "r")
        data = self._files[file]
        record = np.asarray(data[offset : offset + 24])
        if len(record) < 24 or record[:4].view(np.uint32)[0] != BLOB_MAGIC:
            raise ValueError(f"no tensor at byte {offset} of {file}")
        size, start = (int(n) for n in record[8:24].view(np.uint64))
        if start + size > len(data):
            raise ValueError(f"{file} ends before the tensor at byte {start}")
        self.seen[offset] = size
        raw = data[start : start + size]
        if kind in BITS:
            return _unpack(np.asarray(raw), BITS[kind], int(np.prod(shape))).reshape(shape)
        return raw.view(DTYPES[kind]).reshape(shape)


def _unpack(raw: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Codes of `bits` bits, least significant first, packed without gaps."""
    if bits == 4:
        return np.stack([raw & 15, raw >> 4], axis=1).reshape(-1)[:count]
    found = np.unpackbits(raw, bitorder="little")[: count * bits].reshape(count, bits)
    return np.packbits(found, axis=1, bitorder="little")[:, 0]


def _function(name: str, message: Any, blobs: _Blobs) -> Function:
    blobs.seen = {}
    inputs = {value.name: _type(value.type) for value in message.inputs}
    block = message.block_specializations[message.opset]
    constants, operations = {}, []
    for operation in block.operations:
        if operation.type == "const":
            value = _value(operation.attributes["val"], blobs)
            constants[operation.outputs[0].name] = value
        else:
            operations.append(_operation(operation, blobs))
    return Function(
        name, inputs, tuple(block.outputs), tuple(operations), constants,
        sum(blobs.seen.values()),
    )  # fmt: skip


def _operation(message: Any, blobs: _Blobs) -> Operation:
    given = {
        name: [_binding(one, blobs) for one in argument.arguments]
        for name, argument in message.inputs.items()
    }
    for name, value in message.attributes.items():  # older constant expressions keep inputs here
        if name != "name":
            given.setdefault(name, [_value(value, blobs)])
    outputs = tuple(value.name for value in message.outputs)
    types = tuple(_type(value.type) for value in message.outputs)
    return Operation(message.type, given, outputs, types, len(message.blocks))


def _binding(message: Any, blobs: _Blobs) -> Any:
    return message.name if message.name else _value(message.value, blobs)


def _type(message: Any) -> TensorType:
    if message.HasField("stateType"):
        wrapped = _type(message.stateType.wrappedType)
        return TensorType(wrapped.shape, wrapped.dtype, state=True)
    tensor = message.tensorType
    shape = tuple(
        int(size.constant.size) if size.HasField("constant") else -1 for size in tensor.dimensions
    )
    return TensorType(shape, DTYPES.get(tensor.dataType))


def _value(message: Any, blobs: _Blobs) -> np.ndarray:
    kind = message.type.tensorType.dataType
    shape = _type(message.type).shape
    if message.HasField("blobFileValue"):
        blob = message.blobFileValue
        return blobs.read(blob.fileName, int(blob.offset), kind, shape)
    tensor = message.immediateValue.tensor
    for form in ("floats", "ints", "bools", "strings", "longInts", "doubles", "bytes"):
        if tensor.HasField(form):
            values = getattr(tensor, form).values
            if form == "bytes":
                return np.frombuffer(values, DTYPES[kind]).reshape(shape)
            return np.array(list(values), DTYPES[kind]).reshape(shape)
    return np.zeros(shape, DTYPES[kind])
