"""Encodes frozen structs as protobuf bytes, and decodes them.

Each message of `wire/proto/*.proto` has a struct with the same name and fields, in `wire/messages` or in a higher
package (the snapshots in `monitor`). Generated types are therefore used in this package only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from google.protobuf.message import DecodeError, Message

from dsnb.errors import DataLossError
from dsnb.wire.proto import control_pb2, frame_pb2

T = TypeVar("T")


def encode(message: Any) -> bytes:
    """Encode a struct whose class has the name of a protobuf message."""
    values = msgspec.to_builtins(message, builtin_types=(bytes,))
    return _plan(type(message)).message(**values).SerializeToString()


def decode(cls: type[T], data: bytes) -> T:
    """Decode bytes from `encode` into the struct `cls`; missing fields get protobuf's defaults."""
    proto = _plan(cls).message()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise DataLossError(f"a {cls.__name__} message arrived damaged ({error})") from error
    return _from_proto(cls, proto)


def decoder(cls: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes bytes into the struct `cls`."""
    return lambda data: decode(cls, data)


def _from_proto(cls: type[T], proto: Message) -> T:
    plan = _plan(cls)
    values = dict(plan.defaults)
    for field, value in proto.ListFields():  # those that differ from protobuf's defaults
        child = plan.structs.get(field.name)
        if field.is_repeated:
            values[field.name] = tuple([_from_proto(child, item) for item in value] if child else value)
        else:
            values[field.name] = _from_proto(child, value) if child else value
    return cls(**values)


class _Plan(NamedTuple):
    """How to encode and decode a struct."""

    message: type[Message]
    structs: dict[str, type]
    """The classes of the fields that hold structs."""
    defaults: dict[str, Any]
    """Protobuf's defaults of the fields for which the struct has none, or another one."""


_plans: dict[Any, _Plan] = {}


def _plan(cls: Any) -> _Plan:
    if cls not in _plans:
        _plans[cls] = _make_plan(cls)
    return _plans[cls]


def _make_plan(cls: Any) -> _Plan:
    message: type[Message] = getattr(control_pb2, cls.__name__, None) or getattr(frame_pb2, cls.__name__)
    hints = get_type_hints(cls)
    structs = {name: found for name in cls.__struct_fields__ if (found := _struct_of(hints[name])) is not None}
    defaults = {field.name: _default(message, field.name) for field in msgspec.structs.fields(cls)}
    own = {field.name: field.default for field in msgspec.structs.fields(cls)}
    return _Plan(message, structs, {name: value for name, value in defaults.items() if own[name] != value})


def _struct_of(hint: Any) -> type | None:
    kinds = [kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, msgspec.Struct)), None)


def _default(message: type[Message], name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        return ()
    return None if field.message_type is not None else field.default_value
