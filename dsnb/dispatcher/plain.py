"""Converts records and tables to JSON and back: dataclasses of str, numbers, `Ranges`, tuples, lists and dicts of them.

Values that are read are checked against the annotations of the classes, so that a damaged or foreign file can only lead
to an error or to values of the right types.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from dsnb.wire.ranges import Ranges

T = TypeVar("T")


def to_json(value: Any) -> str:
    """A dataclass as JSON, with fields and dict entries in their order."""
    return json.dumps(value, default=_fields_of, separators=(",", ":"))


def from_json(cls: type[T], text: str | bytes) -> T:
    """An instance of `cls` from what `to_json` wrote.

    Raises:
        ValueError: the text is not JSON, or a field is missing, unknown or of another type.
    """
    return cast("T", _read(cls, json.loads(text)))


def _fields_of(value: Any) -> Any:
    if isinstance(value, Ranges):
        return value.pairs()
    cls: Any = type(value)
    return {name: getattr(value, name) for name in _names(cls)}


@cache
def _names(cls: Any) -> tuple[str, ...]:
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is neither plain nor a dataclass")
    return tuple(field.name for field in fields(cls))


@cache
def _plan(cls: Any) -> tuple[tuple[Field[Any], Any], ...]:
    hints = get_type_hints(cls)
    return tuple((field, hints[field.name]) for field in fields(cls))


def _read(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _read_fields(kind, _checked(dict, value))
    if kind is Ranges:
        return Ranges(_read(tuple[tuple[int, int], ...], value))
    if origin in (Union, UnionType):
        return None if value is None else _read(next(one for one in inner if one is not NoneType), value)
    if origin is dict:
        # JSON keys are strings: convert them back to the annotated key type.
        return {inner[0](key): _read(inner[1], item) for key, item in _checked(dict, value).items()}
    if origin is list:
        return [_read(inner[0], item) for item in _checked(list, value)]
    if origin is tuple:
        items = _checked(list, value)
        kinds = [inner[0]] * len(items) if inner[-1] is Ellipsis else inner
        return tuple(_read(one, item) for one, item in zip(kinds, items, strict=True))
    return _checked(kind, value)


def _read_fields(cls: Any, values: dict[str, Any]) -> Any:
    known = {}
    for field, kind in _plan(cls):
        if field.name in values:
            known[field.name] = _read(kind, values.pop(field.name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{cls.__name__} lacks its {field.name}")
    if values:
        raise ValueError(f"{cls.__name__} has no {', '.join(values)}")
    return cls(**known)


def _checked(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:  # not isinstance(): a bool must not pass for an int
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value
