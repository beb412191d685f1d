"""The decomposition of one value for a fingerprint, and the canonical encoding of plain data."""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from dsnb.code.library_names import package_of

_PLAIN_DEPTH = 6


class Decomposition(msgspec.Struct, frozen=True):
    """What a value consists of: its own content and edges to other values.

    Attributes:
        kind: The kind of component.
        content: The encoding of all that is not itself a separate value.
        edges: The values that it reaches, each with a label that is the same in every process.
        detail: A short description for users.
        problem: Why the value has no fingerprint, in words; empty for nearly all values.
        unordered: Whether the order and the labels of `edges` have no meaning.
        packages: The library that the value comes from, with its version.
        self_described: Whether code of the value's class supplied this description, which may then vary between calls.
    """

    kind: str
    content: bytes = b""
    edges: tuple[tuple[str, Any], ...] = ()
    detail: str = ""
    problem: str = ""
    unordered: bool = False
    packages: tuple[tuple[str, str], ...] = ()
    self_described: bool = False


Decomposer = Callable[[Any], Decomposition | None]
"""Decomposes values of one type; returns None for a value that it does not handle."""


def encode_plain(value: Any, depth: int = _PLAIN_DEPTH) -> bytes | None:
    """Encode plain data as bytes, unambiguously, each item with its type and length; None if the value is not plain.

    Sets are sorted. Dicts are not, because a function may iterate over one. A value nested deeper than `depth` is not
    plain.
    """
    kind = type(value)
    if kind in _ENCODERS:
        return _ENCODERS[kind](value)
    if depth == 0 or kind not in {tuple, list, dict, set, frozenset}:
        return None
    items = [part for pair in value.items() for part in pair] if kind is dict else value
    parts = []
    for item in items:
        part = encode_plain(item, depth - 1)
        if part is None:
            return None
        parts.append(part)
    if kind is set or kind is frozenset:
        parts.sort()
    return b"%s%d:" % (kind.__name__.encode(), len(parts)) + b"".join(parts)


def _encode_int(value: int) -> bytes:
    return b"i%x;" % value


def _encode_text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"s%d:" % len(raw) + raw


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    type(...): lambda _: b".",
    type(NotImplemented): lambda _: b"!",
    bool: lambda value: b"T" if value else b"F",
    int: _encode_int,
    float: lambda value: b"f" + struct.pack("<d", value),
    complex: lambda value: b"c" + struct.pack("<dd", value.real, value.imag),
    str: _encode_text,
    bytes: lambda value: b"b%d:" % len(value) + value,
    range: lambda value: b"r%x;%x;%x;" % (value.start, value.stop, value.step),
}


def is_atom(value: Any) -> bool:
    """Whether a value is plain data and no container."""
    return type(value) in _ENCODERS


def encode_parts(*parts: Any) -> bytes:
    """The encoding of values that are known to be plain."""
    content = encode_plain(parts)
    assert content is not None, parts
    return content


class _Short(reprlib.Repr):
    """A shortened repr that keeps the order of dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to convert much longer integers to decimal digits.
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"an integer of {x.bit_length()} bits"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        shown = [f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}" for key in [*x][: self.maxdict]]
        return "{" + ", ".join([*shown, *["..."] * (len(x) > self.maxdict)]) + "}"


short_repr = _Short().repr
"""A shortened repr of a value, for `Decomposition.detail`."""


def type_name(cls: type) -> str:
    """The class's name for users: qualified by its module, except for builtins and `__main__`."""
    return cls.__qualname__ if cls.__module__ in {"builtins", "__main__"} else f"{cls.__module__}.{cls.__qualname__}"


def unhashable(value: Any, problem: str) -> Decomposition:
    """The decomposition of a value without a fingerprint, and why it has none."""
    name = type_name(type(value))
    return Decomposition("unhashable", encode_parts(name), detail=f"a {name}", problem=problem)


def library_reference(name: str) -> Decomposition:
    """The decomposition of a library's object: its dotted name and the library's version."""
    package, version = package_of(name)
    return Decomposition("library", encode_parts(name), detail=name, packages=((package, version),) if package else ())
