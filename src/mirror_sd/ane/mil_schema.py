"""The part of Core ML's protobuf schema that a program's reader needs.

It is declared here so that reading a package takes neither coremltools nor anything that built it.

Names and numbers are those of Model.proto and MIL.proto, which Apple publishes with coremltools;
fields that are not declared are skipped over.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "mirror_sd.mil"
_SCALARS = {"int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_SCALARS |= {"double": 1, "float": 2}

# message -> {field: (number, type)}; a trailing * is a repeated field, map:T a map from strings.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {"specificationVersion": (1, "int32"), "mlProgram": (502, "Program")},
    "Program": {"version": (1, "int64"), "functions": (2, "map:Function")},
    "Function": {
        "inputs": (1, "NamedValueType*"),
        "opset": (2, "string"),
        "block_specializations": (3, "map:Block"),
    },
    "Block": {"outputs": (2, "string*"), "operations": (3, "Operation*")},
    "Operation": {
        "type": (1, "string"),
        "inputs": (2, "map:Argument"),
        "outputs": (3, "NamedValueType*"),
        "blocks": (4, "Block*"),
        "attributes": (5, "map:Value"),
    },
    "Argument": {"arguments": (1, "Binding*")},
    "Binding": {"name": (1, "string"), "value": (2, "Value")},
    "NamedValueType": {"name": (1, "string"), "type": (2, "ValueType")},
    "ValueType": {"tensorType": (1, "TensorType"), "stateType": (5, "StateType")},
    "StateType": {"wrappedType": (1, "ValueType")},
    "TensorType": {
        "dataType": (1, "int32"),
        "rank": (2, "int64"),
        "dimensions": (3, "Dimension*"),
    },
    "Dimension": {"constant": (1, "ConstantDimension"), "unknown": (2, "UnknownDimension")},
    "ConstantDimension": {"size": (1, "uint64")},
    "UnknownDimension": {"variadic": (1, "bool")},
    "Value": {
        "type": (2, "ValueType"),
        "immediateValue": (3, "ImmediateValue"),
        "blobFileValue": (5, "BlobFileValue"),
    },
    "ImmediateValue": {"tensor": (1, "TensorValue")},
    "BlobFileValue": {"fileName": (1, "string"), "offset": (2, "uint64")},
    "TensorValue": {
        "floats": (1, "Floats"),
        "ints": (2, "Ints"),
        "bools": (3, "Bools"),
        "strings": (4, "Strings"),
        "longInts": (5, "LongInts"),
        "doubles": (6, "Doubles"),
        "bytes": (7, "Bytes"),
    },
    "Floats": {"values": (1, "float*")},
    "Ints": {"values": (1, "int32*")},
    "Bools": {"values": (1, "bool*")},
    "Strings": {"values": (1, "string*")},
    "LongInts": {"values": (1, "int64*")},
    "Doubles": {"values": (1, "double*")},
    "Bytes": {"values": (1, "bytes")},
}


def _descriptors() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="mirror_sd/mil.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add(message, field, number, kind)
    return file


def _add(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    if kind.startswith("map:"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, "string")
        _add(entry, "value", 2, kind.removeprefix("map:"))
        kind = f"{message.name}.{entry.name}*"
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


def _model_class() -> type:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_descriptors())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))


Model = _model_class()
