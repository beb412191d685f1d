"""Named tuples and dataclasses as parts of elements: their fields, how one is made, and which class a reader gets.

A pipeline comes to its worker with classes of its own, so what travels is where a class was defined and what its fields
are. A reader's elements are of the reader's *own* class: `__main__.Sample` as it is at this moment where a cell has
defined it, so that `isinstance` holds; else a class that is made here once for all elements of that description.
Nothing is imported for that: a name that came over the wire is no reason to run code.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from keyword import iskeyword
from typing import Any, Literal

DataClassKind = Literal["namedtuple", "dataclass"]

_OURS = __name__.partition(".")[0]
# What user code here defined inside of functions, where no name leads to it; the newest of each name.
_function_local_classes: weakref.WeakValueDictionary[tuple[str, str], type] = weakref.WeakValueDictionary()


def is_data_class(cls: type) -> bool:
    """Whether instances of a class are structure, field by field; dsnb's own (a `TensorSpec`) are leaves."""
    return hasattr(cls, "__dataclass_fields__") and cls.__module__.partition(".")[0] != _OURS


def field_names(cls: type) -> tuple[str, ...] | None:
    """The names of the fields of a named tuple or a dataclass, in order; None for any other class."""
    if issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
        return None if fields is None else tuple(fields)
    given: Any = cls
    return tuple(field.name for field in dataclasses.fields(given)) if is_data_class(cls) else None


def note_class(cls: type) -> None:
    """Remember a class that a pipeline takes along, for its elements to find it again."""
    if "<locals>" in cls.__qualname__ and field_names(cls) is not None:
        _function_local_classes[cls.__module__, cls.__qualname__] = cls


def local_class(kind: DataClassKind, class_path: tuple[str, str], keys: tuple[str, ...]) -> type:
    """This process's class of that place and those fields; one that is made for the purpose where it has none."""
    found = find_class(*class_path) or _function_local_classes.get(class_path)
    if found is not None and issubclass(found, tuple) == (kind == "namedtuple") and field_names(found) == keys:
        return found
    return _make_class(kind, class_path, keys)


def find_class(module: str, name: str) -> type | None:
    """The class that bears that name in this process now, if its module is imported."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


@lru_cache(maxsize=256)
def _make_class(kind: DataClassKind, class_path: tuple[str, str], keys: tuple[str, ...]) -> type:
    plain = class_path[1].rpartition(".")[2]
    name = plain if plain.isidentifier() and not iskeyword(plain) else "Element"
    # `rename` for classes that were made with it: their fields are called _0 and _1, which it takes from nobody else.
    named_tuple = partial(namedtuple, rename=True)  # noqa: PYI024 - the fields are known when it runs
    made: type = (named_tuple if kind == "namedtuple" else dataclasses.make_dataclass)(name, keys)
    # So that its instances are described as those of the class that it stands for.
    made.__module__, made.__qualname__ = class_path
    return made


def instance_factory(cls: type, keys: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """What makes an instance out of the values of its fields, as unpickling does: `__init__` is not run again."""
    if issubclass(cls, tuple):
        return cls._make  # type: ignore[attr-defined,no-any-return]
    put = object.__setattr__  # frozen ones refuse the usual way

    def make(values: Iterable[Any]) -> Any:
        made = object.__new__(cls)
        for key, value in zip(keys, values, strict=True):
            put(made, key, value)
        return made

    return make
