"""Encodes frozen structs as protobuf bytes, and decodes them.

Each message of `wire/proto/*.proto` has a struct with the same name and fields, in `wire/messages` or in a higher
package (the snapshots in `monitor`). Generated types are therefore used in this package only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import DecodeError, Message

from dsnb.errors import DataLossError
from dsnb.wire.proto import control_pb2, frame_pb2

T = TypeVar("T")

_Plan = tuple[tuple[str, bool, type | None], ...]


def encode(message: Any) -> bytes:
    """Encode a struct whose class has the name of a protobuf message."""
    return _to_proto(message).SerializeToString()


def decode(cls: type[T], data: bytes) -> T:
    """Decode bytes from `encode` into the struct `cls`; missing fields get protobuf's defaults."""
    proto = _proto_class(cls)()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise DataLossError(f"a {cls.__name__} message arrived damaged ({error})") from error
    return _from_proto(cls, proto)


def decoder(cls: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes bytes into the struct `cls`."""
    return lambda data: decode(cls, data)


def _to_proto(message: Any) -> Message:
    cls = type(message)
    proto = _proto_class(cls)()
    for name, repeated, child in _plan(cls):
        value = getattr(message, name)
        if repeated:
            getattr(proto, name).extend(map(_to_proto, value) if child else value)
        elif child is None:
            setattr(proto, name, value)
        elif value is not None:
            getattr(proto, name).CopyFrom(_to_proto(value))
    return proto


def _from_proto(cls: type[T], proto: Any) -> T:
    values: dict[str, Any] = {}
    for name, repeated, child in _plan(cls):
        value = getattr(proto, name)
        if repeated:
            values[name] = tuple(_from_proto(child, item) for item in value) if child else tuple(value)
        elif child is None:
            values[name] = value
        else:
            values[name] = _from_proto(child, value) if proto.HasField(name) else None
    return cls(**values)


_plans: dict[Any, _Plan] = {}


def _plan(cls: Any) -> _Plan:
    """For each field: its name, whether it is repeated, and the struct of its values if those are messages."""
    if cls not in _plans:
        hints = get_type_hints(cls)
        _plans[cls] = tuple(_field(name, hints[name]) for name in cls.__struct_fields__)
    return _plans[cls]


def _field(name: str, hint: Any) -> tuple[str, bool, type | None]:
    kinds = [
        kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ]
    return name, get_origin(hint) is tuple, kinds[0] if kinds else None


def _proto_class(cls: Any) -> type[Message]:
    name = cls.__name__
    found: type[Message] = getattr(control_pb2, name, None) or getattr(frame_pb2, name)
    return found
