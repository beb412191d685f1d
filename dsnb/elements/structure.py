"""The structure of an element: nested tuples, lists, dicts, named tuples and dataclasses around leaves.

The functions work on runs of elements: a run of n elements is split into one list for each leaf, level by level, with
one comprehension for each field. That costs about 40 ns for each field and element, a fifth of a recursive walk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np

from dsnb.elements.data_classes import field_names, instance_factory, is_data_class, local_class
from dsnb.errors import DataLossError, InvalidArgumentError

NodeKind = Literal["leaf", "none", "tuple", "list", "dict", "namedtuple", "dataclass"]


@dataclass(frozen=True, slots=True)
class Structure:
    """How the leaves of an element are nested. A None inside an element is a node without leaves.

    Attributes:
        kind: The type of the node.
        children: The structures of its parts.
        keys: The keys of a dict, or the field names of a named tuple or dataclass.
        class_path: Module and qualified name of the class of a named tuple or dataclass.
        cls: That class itself, if the structure was taken from an element of this process.
    """

    kind: NodeKind
    children: tuple[Structure, ...] = ()
    keys: tuple[str, ...] = ()
    class_path: tuple[str, str] = ("", "")
    cls: type | None = field(default=None, compare=False, repr=False)
    _text: str = field(default="", init=False, compare=False, repr=False)
    """The structure as JSON, cached by `structure_to_json`: all frames of a task have the same structure."""

    @property
    def leaves(self) -> int:
        """The number of leaves below this node."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)

    def __dsnb_fingerprint__(self) -> Any:
        # `cls` is part of it, although equality ignores it: later user functions may call the class's methods.
        return (self.kind, self.children, self.keys, self.class_path, self.cls)

    def __str__(self) -> str:
        return describe(self, iter(["·"] * self.leaves))


LEAF = Structure("leaf")
NONE = Structure("none")


def structure_of(element: Any) -> Structure:
    """The structure of one element.

    Example:
        >>> print(structure_of((1, {"a": 2})))
        (·, {'a': ·})
    """
    # A top-level None counts as a leaf, which is refused later: it is the result of a function without `return`.
    return LEAF if element is None else _structure_of(element)


def _structure_of(element: Any) -> Structure:
    if element is None:
        return NONE
    if isinstance(element, dict):
        return Structure("dict", _children(element.values()), _dict_keys(element))
    if isinstance(element, list):
        return Structure("list", _children(element))
    keys = field_names(type(element))
    if keys is not None:
        return class_structure(type(element), _children(field_values(element, keys)))
    return Structure("tuple", _children(element)) if isinstance(element, tuple) else LEAF


def _children(parts: Iterable[Any]) -> tuple[Structure, ...]:
    return tuple(map(_structure_of, parts))


def _dict_keys(element: dict[Any, Any]) -> tuple[str, ...]:
    keys = tuple(element)
    if not all(isinstance(key, str) for key in keys):
        raise InvalidArgumentError(
            f"a dict in an element has the keys {list(keys)!r}; keys must be strings",
            hint="use string keys, or a tuple",
        )
    return keys


def class_structure(cls: type, children: tuple[Structure, ...]) -> Structure:
    """The structure of the instances of a named tuple or dataclass."""
    kind: NodeKind = "namedtuple" if issubclass(cls, tuple) else "dataclass"
    return Structure(kind, children, field_names(cls) or (), (cls.__module__, cls.__qualname__), cls)


def field_values(element: Any, keys: tuple[str, ...]) -> Sequence[Any]:
    """The values of the fields of a named tuple or dataclass."""
    return element if isinstance(element, tuple) else [getattr(element, key) for key in keys]


def class_of(structure: Structure) -> type:
    """The class for elements in this process: `structure.cls` if it is set, else this process's class of that path."""
    return structure.cls or local_class_of(structure)


def local_class_of(structure: Structure) -> type:
    """This process's class at `structure.class_path`, for readers: `structure.cls` may be a worker's copy of it."""
    kind: Any = structure.kind
    return local_class(kind, structure.class_path, structure.keys)


def columns_of(structure: Structure, run: Sequence[Any]) -> list[Sequence[Any]]:
    """Split a run of elements into one sequence of values for each leaf, in order.

    Raises:
        StructureMismatch: an element has a different structure; the error has the index of the first one in the run.
    """
    if structure.kind == "leaf":
        _check_leaves(run)
        return [run]
    _check_nodes(structure, run)
    columns: list[Sequence[Any]] = []
    for position, child in enumerate(structure.children):
        columns += columns_of(child, list(map(_getter(structure, position), run)))
    return columns


def _getter(structure: Structure, position: int) -> Callable[[Any], Any]:
    if structure.kind == "dataclass":
        return attrgetter(structure.keys[position])
    return itemgetter(structure.keys[position] if structure.kind == "dict" else position)


def elements_of(
    structure: Structure,
    columns: Iterator[Sequence[Any]],
    count: int | None = None,
    class_of: Callable[[Structure], type] = class_of,
) -> Sequence[Any]:
    """Build a run of elements from its columns; the inverse of `columns_of`.

    Args:
        structure: How each element is nested.
        columns: One for each leaf, in order.
        count: The number of elements; required if they have no leaves.
        class_of: Returns the class to use for a node that is a named tuple or dataclass.
    """
    given = list(columns)
    if count is None:
        if not given:
            raise InvalidArgumentError("an element without leaves has no length")
        count = len(given[0])
    return _elements_of(structure, iter(given), count, class_of)


def _elements_of(
    structure: Structure, columns: Iterator[Sequence[Any]], count: int, class_of: Callable[[Structure], type]
) -> Sequence[Any]:
    if structure.kind == "leaf":
        return next(columns)
    parts = [_elements_of(child, columns, count, class_of) for child in structure.children]
    rows: Iterable[tuple[Any, ...]] = zip(*parts, strict=True) if parts else repeat((), count)
    if structure.kind == "tuple":
        return list(rows)
    if structure.kind == "dict" and parts:
        return list(map(_dict_display(structure.keys), *parts))
    return list(map(_node_factory(structure, class_of), rows))


@lru_cache(maxsize=256)
def _dict_display(keys: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """A compiled function that makes a dict of these keys from its arguments, at a third of `dict(zip(...))`'s cost."""
    names = [f"_{number}" for number in range(len(keys))]
    pairs = ", ".join(f"{key!r}: {name}" for key, name in zip(keys, names, strict=True))
    made: Callable[..., dict[str, Any]] = eval(f"lambda {', '.join(names)}: {{{pairs}}}")  # noqa: S307 - of literals
    return made


def _node_factory(structure: Structure, class_of: Callable[[Structure], type]) -> Callable[[Iterable[Any]], Any]:
    """A function that makes one node from its parts."""
    keys = structure.keys
    if structure.kind == "dict":
        return lambda parts: dict(zip(keys, parts, strict=True))
    if structure.kind in ("namedtuple", "dataclass"):
        return instance_factory(class_of(structure), keys)
    if structure.kind == "none":
        return lambda _: None
    return list if structure.kind == "list" else tuple


class StructureMismatch(Exception):
    """An element has another structure than the first one of its run; `index` is its index in the run."""

    def __init__(self, index: int) -> None:
        super().__init__(f"element {index} of the run is built differently")
        self.index = index


_CONTAINERS = (tuple, list, dict)


def _is_node(cls: type) -> bool:
    return issubclass(cls, _CONTAINERS) or is_data_class(cls)


_USUAL_LEAVES = {np.ndarray, int, float, bool, str, bytes, *(np.dtype(code).type for code in "?bBhHiIlLqQefdFD")}


def _check_leaves(run: Sequence[Any]) -> None:
    if _USUAL_LEAVES.issuperset(map(type, run)):
        return
    if any(map(_is_node, set(map(type, run)))):
        raise StructureMismatch(next(i for i, leaf in enumerate(run) if _is_node(type(leaf))))


def _check_nodes(structure: Structure, run: Sequence[Any]) -> None:
    if _plainly_fit(structure, run):
        return
    fits = _fits(structure)
    # Check one element of each distinct (type, length) pair, and search for the index only if one of them does not fit.
    if all(map(fits, _representatives(structure, run))):
        return
    raise StructureMismatch(next(i for i, element in enumerate(run) if not fits(element)))


def _plainly_fit(structure: Structure, run: Sequence[Any]) -> bool:
    """Fast check for the usual case: plain tuples of the right length, or dicts with the keys in the same order."""
    if structure.kind == "tuple":
        return set(map(type, run)) == {tuple} and set(map(len, run)) == {len(structure.children)}
    return structure.kind == "dict" and set(map(type, run)) == {dict} and set(map(tuple, run)) == {structure.keys}


def _representatives(structure: Structure, run: Sequence[Any]) -> Sequence[Any]:
    if structure.kind == "dict":
        if set(map(type, run)) == {dict}:
            return list({tuple(element): element for element in run}.values())
        return run
    if set(map(type, run)) <= {tuple, list}:
        return list({(type(element), len(element)): element for element in run}.values())
    return run if structure.kind in ("tuple", "list") else list({type(element): element for element in run}.values())


def _fits(structure: Structure) -> Callable[[Any], bool]:
    if structure.kind == "none":
        return lambda element: element is None
    if structure.kind == "dict":
        names = frozenset(structure.keys)
        return lambda element: isinstance(element, dict) and names == set(element)
    if structure.kind in ("namedtuple", "dataclass"):
        named = structure.kind == "namedtuple"
        return lambda element: isinstance(element, tuple) == named and field_names(type(element)) == structure.keys
    kind = list if structure.kind == "list" else tuple
    return lambda element: (
        isinstance(element, kind)
        and len(element) == len(structure.children)
        and (kind is list or field_names(type(element)) is None)
    )


def describe(structure: Structure, leaves: Iterator[str]) -> str:
    """The structure in Python's notation, with the next text of `leaves` for each leaf."""
    if structure.kind == "leaf":
        return next(leaves)
    if structure.kind == "none":
        return "None"
    parts = [describe(child, leaves) for child in structure.children]
    if structure.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(structure.keys, parts, strict=True)) + "}"
    if structure.kind == "list":
        return "[" + ", ".join(parts) + "]"
    if structure.kind in ("namedtuple", "dataclass"):
        named = ", ".join(f"{key}={part}" for key, part in zip(structure.keys, parts, strict=True))
        return f"{structure.class_path[1].rpartition('.')[2]}({named})"
    return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """One element from its leaves. Slow; used for element specs, of which there is one."""
    if structure.kind == "leaf":
        return next(leaves)
    return _node_factory(structure, class_of)([rebuild(child, leaves) for child in structure.children])


def flatten(element: Any) -> list[Any]:
    """The leaves of one element, in order."""
    return [None] if element is None else _flatten(element)


def _flatten(element: Any) -> list[Any]:
    if isinstance(element, dict):
        return [leaf for child in element.values() for leaf in _flatten(child)]
    if isinstance(element, _CONTAINERS):
        return [leaf for child in element for leaf in _flatten(child)]
    if element is None:
        return []
    keys = field_names(type(element))
    return [element] if keys is None else [leaf for part in field_values(element, keys) for leaf in _flatten(part)]


def structure_to_json(structure: Structure) -> str:
    """The structure as compact JSON."""
    if not structure._text:  # noqa: SLF001 - a cache of this function alone
        object.__setattr__(structure, "_text", json.dumps(_plain(structure), separators=(",", ":")))
    return structure._text  # noqa: SLF001


@lru_cache(maxsize=256)
def structure_from_json(text: str) -> Structure:
    """The structure that `structure_to_json` wrote.

    Raises:
        DataLossError: the text is no such structure.
    """
    return _from_plain(json.loads(text))


def _plain(structure: Structure) -> Any:
    if structure.kind == "leaf":
        return 0
    return [structure.kind, list(structure.keys), list(structure.class_path), [_plain(c) for c in structure.children]]


def _from_plain(plain: Any) -> Structure:
    if plain == 0:
        return LEAF
    kind, keys, (module, name), children = plain
    named = kind in ("dict", "namedtuple", "dataclass")
    known = named or kind in ("tuple", "list") or (kind == "none" and not children)
    if not known or len(set(keys)) != (len(children) if named else 0):
        raise DataLossError(f"the structure of an element arrived damaged: {plain}")
    return Structure(kind, tuple(map(_from_plain, children)), tuple(map(str, keys)), (str(module), str(name)))
