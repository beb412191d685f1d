"""The shape of an element: nested tuples, lists, dicts and named tuples around leaves.

Work is done on runs, never on one element: a run of n elements is taken apart into one list for each leaf, level by
level, with a comprehension for each field. That costs some 40 ns a field and element, a fifth of a recursive walk.
"""

from __future__ import annotations

import importlib
import json
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from keyword import iskeyword
from typing import Any, Literal

from dsnb.errors import DataLossError, InvalidArgumentError

Kind = Literal["leaf", "tuple", "list", "dict", "namedtuple"]


@dataclass(frozen=True, slots=True)
class Structure:
    """How the leaves of an element are nested.

    `keys` are a dict's keys or a named tuple's field names; `origin` is where a named tuple's class was defined, as
    (module, qualified name).
    """

    kind: Kind
    children: tuple[Structure, ...] = ()
    keys: tuple[str, ...] = ()
    origin: tuple[str, str] = ("", "")

    @property
    def leaves(self) -> int:
        """The number of leaves below this node."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)

    def __str__(self) -> str:
        return describe(self, iter(["·"] * self.leaves))


LEAF = Structure("leaf")


def structure_of(element: Any) -> Structure:
    """The structure of one element.

    Example:
        >>> print(structure_of((1, {"a": 2})))
        (·, {'a': ·})
    """
    if isinstance(element, dict):
        keys = tuple(element)
        if not all(isinstance(key, str) for key in keys):
            raise InvalidArgumentError(
                f"a dict in an element has the keys {list(keys)!r}; keys must be strings",
                hint="use string keys, or a tuple",
            )
        return Structure("dict", tuple(structure_of(element[key]) for key in keys), keys)
    if isinstance(element, tuple):
        children = tuple(structure_of(child) for child in element)
        fields = getattr(element, "_fields", None)
        if fields is None:
            return Structure("tuple", children)
        cls = type(element)
        return Structure("namedtuple", children, tuple(fields), (cls.__module__, cls.__qualname__))
    if isinstance(element, list):
        return Structure("list", tuple(structure_of(child) for child in element))
    return LEAF


def columns_of(structure: Structure, run: Sequence[Any]) -> list[Sequence[Any]]:
    """Take a run of elements apart: one sequence of leaf values for each leaf, in order.

    Raises:
        StructureMismatch: with the index in the run of the first element that is built differently.
    """
    if structure.kind == "leaf":
        _check_leaves(run)
        return [run]
    _check_nodes(structure, run)
    columns: list[Sequence[Any]] = []
    for position, child in enumerate(structure.children):
        key: Any = structure.keys[position] if structure.kind == "dict" else position
        columns += columns_of(child, [element[key] for element in run])
    return columns


def elements_of(structure: Structure, columns: Iterator[Sequence[Any]], count: int | None = None) -> Sequence[Any]:
    """Put a run of elements together again from its columns; the inverse of `columns_of`.

    Args:
        structure: How each element is nested.
        columns: One for each leaf, in order.
        count: The number of elements; needed where a part of them has no leaves, as `{}` in `(1, {})`.
    """
    if structure.kind == "leaf":
        return next(columns)
    parts = [elements_of(child, columns, count) for child in structure.children]
    if not parts and count is None:
        raise InvalidArgumentError("an element without leaves has no length")
    rows: Iterable[tuple[Any, ...]] = zip(*parts, strict=True) if parts else repeat((), count or 0)
    if structure.kind == "tuple":
        return list(rows)
    if structure.kind == "list":
        return [list(row) for row in rows]
    if structure.kind == "dict":
        keys = structure.keys
        return [dict(zip(keys, row, strict=True)) for row in rows]
    return list(map(named_tuple_class(structure)._make, rows))  # type: ignore[attr-defined]


class StructureMismatch(Exception):
    """An element of a run is built differently from the first; `index` is its place in the run."""

    def __init__(self, index: int) -> None:
        super().__init__(f"element {index} of the run is built differently")
        self.index = index


_CONTAINERS = (tuple, list, dict)


def _check_leaves(run: Sequence[Any]) -> None:
    if any(issubclass(cls, _CONTAINERS) for cls in set(map(type, run))):
        raise StructureMismatch(next(i for i, leaf in enumerate(run) if isinstance(leaf, _CONTAINERS)))


def _check_nodes(structure: Structure, run: Sequence[Any]) -> None:
    fits = _fits(structure)
    # One look at the distinct (type, length) pairs; the slow search only when one of them is wrong.
    if all(map(fits, _representatives(structure, run))):
        return
    raise StructureMismatch(next(i for i, element in enumerate(run) if not fits(element)))


def _representatives(structure: Structure, run: Sequence[Any]) -> Sequence[Any]:
    if structure.kind == "dict":
        if set(map(type, run)) == {dict}:
            return list({tuple(element): element for element in run}.values())
        return run
    if set(map(type, run)) <= {tuple, list}:
        return list({(type(element), len(element)): element for element in run}.values())
    return list({type(element): element for element in run}.values()) if structure.kind == "namedtuple" else run


def _fits(structure: Structure) -> Callable[[Any], bool]:
    if structure.kind == "dict":
        names = frozenset(structure.keys)
        return lambda element: isinstance(element, dict) and names == set(element)
    if structure.kind == "list":
        return lambda element: isinstance(element, list) and len(element) == len(structure.children)
    named = structure.kind == "namedtuple"
    return lambda element: (
        isinstance(element, tuple)
        and len(element) == len(structure.children)
        and hasattr(element, "_fields") == named
        and (not named or getattr(element, "_fields", ()) == structure.keys)
    )


@lru_cache(maxsize=256)
def named_tuple_class(structure: Structure) -> type:
    """The class of a named tuple: the one that was used if it can be imported here, else one of the same fields."""
    module, name = structure.origin
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if getattr(found, "_fields", None) == structure.keys:
            return found  # type: ignore[no-any-return]
    except (ImportError, AttributeError, ValueError):
        pass  # defined in a cell or a function of another process
    plain = name.rpartition(".")[2]
    usable = plain.isidentifier() and not iskeyword(plain)
    # `rename` for classes that were made with it: their fields are called _0 and _1, which it takes from nobody else.
    return namedtuple(plain if usable else "Element", structure.keys, rename=True)  # noqa: PYI024 - known when it runs


def describe(structure: Structure, leaves: Iterator[str]) -> str:
    """The structure in Python's notation, each leaf as the next text of `leaves`."""
    if structure.kind == "leaf":
        return next(leaves)
    parts = [describe(child, leaves) for child in structure.children]
    if structure.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(structure.keys, parts, strict=True)) + "}"
    if structure.kind == "list":
        return "[" + ", ".join(parts) + "]"
    if structure.kind == "namedtuple":
        named = ", ".join(f"{key}={part}" for key, part in zip(structure.keys, parts, strict=True))
        return f"{structure.origin[1].rpartition('.')[2]}({named})"
    return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """One element from its leaves; used for specs, where there is one of each."""
    if structure.kind == "leaf":
        return next(leaves)
    parts = [rebuild(child, leaves) for child in structure.children]
    if structure.kind == "dict":
        return dict(zip(structure.keys, parts, strict=True))
    if structure.kind == "list":
        return parts
    if structure.kind == "namedtuple":
        return named_tuple_class(structure)._make(parts)  # type: ignore[attr-defined]
    return tuple(parts)


def flatten(element: Any) -> list[Any]:
    """The leaves of one element, in order."""
    if isinstance(element, dict):
        return [leaf for child in element.values() for leaf in flatten(child)]
    if isinstance(element, _CONTAINERS):
        return [leaf for child in element for leaf in flatten(child)]
    return [element]


def to_json(structure: Structure) -> str:
    """The structure as a short text that any language can read."""
    return json.dumps(_plain(structure), separators=(",", ":"))


@lru_cache(maxsize=256)
def from_json(text: str) -> Structure:
    """The structure that `to_json` wrote.

    Raises:
        DataLossError: it did not write that.
    """
    return _from_plain(json.loads(text))


def _plain(structure: Structure) -> Any:
    if structure.kind == "leaf":
        return 0
    return [structure.kind, list(structure.keys), list(structure.origin), [_plain(c) for c in structure.children]]


def _from_plain(plain: Any) -> Structure:
    if plain == 0:
        return LEAF
    kind, keys, (module, name), children = plain
    named = kind in ("dict", "namedtuple")
    known = named or kind in ("tuple", "list")
    if not known or len(set(keys)) != (len(children) if named else 0):
        raise DataLossError(f"the structure of an element arrived damaged: {plain}")
    return Structure(kind, tuple(map(_from_plain, children)), tuple(map(str, keys)), (str(module), str(name)))
