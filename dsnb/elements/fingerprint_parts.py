"""What a fingerprint's walk sees of one value, and how plain data is encoded for it."""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.elements.library_names import package_of

_PLAIN_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Decomposition:
    """What is seen of a value.

    Attributes:
        kind: What sort of part it is.
        content: All of it that reaches no other value.
        edges: The values that it reaches, each under a name that is the same in every process.
        detail: It in a few words.
        problem: Why it has no value, in words; empty for nearly everything.
        unordered: Whether the order of `edges` means nothing; their names mean nothing then either.
        packages: The library that it comes from, with its version.
        self_described: Whether it is what code of its class says that it is, which may say something else each time.
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
"""Looks at a value of one kind; None where it is of another kind after all."""


def encode_plain(value: Any, depth: int = _PLAIN_DEPTH) -> bytes | None:
    """Plain data as bytes that no other data has, each with its type and length; None for what is not plain.

    Sets are sorted, dicts are not: a function may iterate over one. Deeper nesting than `depth` is not plain.
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
    """Whether a value is plain and holds no other value."""
    return type(value) in _ENCODERS


def encode_parts(*parts: Any) -> bytes:
    """Plain data that is known to be plain, as bytes."""
    content = encode_plain(parts)
    assert content is not None, parts
    return content


class _Short(reprlib.Repr):
    """A value in a few words; the order of a dict is part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write longer ones in decimal.
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"an integer of {x.bit_length()} bits"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        shown = [f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}" for key in [*x][: self.maxdict]]
        return "{" + ", ".join([*shown, *["..."] * (len(x) > self.maxdict)]) + "}"


short_repr = _Short().repr
"""A value in a few words."""


def type_name(cls: type) -> str:
    """A class as a user calls it."""
    return cls.__qualname__ if cls.__module__ in {"builtins", "__main__"} else f"{cls.__module__}.{cls.__qualname__}"


def unhashable(value: Any, problem: str) -> Decomposition:
    """A part that has no value."""
    name = type_name(type(value))
    return Decomposition("unhashable", encode_parts(name), detail=f"a {name}", problem=problem)


def library_reference(name: str) -> Decomposition:
    """Something that a library brings: by its dotted name, and the library's version."""
    package, version = package_of(name)
    return Decomposition("library", encode_parts(name), detail=name, packages=((package, version),) if package else ())
