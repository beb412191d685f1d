"""Named tuples and dataclasses in elements: their fields, how instances are made, and which class a reader gets.

Unpickling a pipeline creates new classes on the worker. So an element carries the path of its class (module and
qualified name) and its field names. A reader's elements are instances of the reader's *own* class: the current
`__main__.Sample` if a cell defined one, so that `isinstance` holds; otherwise a class that is created once for that
path and those fields. No module is imported for it: a name received over the network must not run code.
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
# Classes that user code of this process defined inside functions and that no name leads to; the newest of each name.
_function_local_classes: weakref.WeakValueDictionary[tuple[str, str], type] = weakref.WeakValueDictionary()


def is_data_class(cls: type) -> bool:
    """Whether instances of a class are nodes of a structure: true for dataclasses except dsnb's own (`TensorSpec`)."""
    return hasattr(cls, "__dataclass_fields__") and cls.__module__.partition(".")[0] != _OURS


def field_names(cls: type) -> tuple[str, ...] | None:
    """The names of the fields of a named tuple or a dataclass, in order; None for any other class."""
    if issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
        return None if fields is None else tuple(fields)
    given: Any = cls
    return tuple(field.name for field in dataclasses.fields(given)) if is_data_class(cls) else None


def note_class(cls: type) -> None:
    """Register a class that is pickled with a pipeline, so that `local_class` finds it for the pipeline's elements."""
    if "<locals>" in cls.__qualname__ and field_names(cls) is not None:
        _function_local_classes[cls.__module__, cls.__qualname__] = cls


def local_class(kind: DataClassKind, class_path: tuple[str, str], keys: tuple[str, ...]) -> type:
    """This process's class of that path and those fields; a class made for the purpose if there is none."""
    found = find_class(*class_path) or _function_local_classes.get(class_path)
    if found is not None and issubclass(found, tuple) == (kind == "namedtuple") and field_names(found) == keys:
        return found
    return _make_class(kind, class_path, keys)


def find_class(module: str, name: str) -> type | None:
    """The class that has this qualified name now, if its module is imported; else None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


@lru_cache(maxsize=256)
def _make_class(kind: DataClassKind, class_path: tuple[str, str], keys: tuple[str, ...]) -> type:
    plain = class_path[1].rpartition(".")[2]
    name = plain if plain.isidentifier() and not iskeyword(plain) else "Element"
    # `rename=True`, because a class made with it may have the fields _0 and _1, which `namedtuple` refuses otherwise.
    named_tuple = partial(namedtuple, rename=True)  # noqa: PYI024 - the fields are known when it runs
    made: type = (named_tuple if kind == "namedtuple" else dataclasses.make_dataclass)(name, keys)
    # Its instances must have the same structure as those of the class that it replaces.
    made.__module__, made.__qualname__ = class_path
    return made


def instance_factory(cls: type, keys: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """A function that makes an instance from its field values without calling `__init__`, as unpickling does."""
    if issubclass(cls, tuple):
        return cls._make  # type: ignore[attr-defined,no-any-return]
    put = object.__setattr__  # frozen dataclasses refuse `setattr`

    def make(values: Iterable[Any]) -> Any:
        made = object.__new__(cls)
        for key, value in zip(keys, values, strict=True):
            put(made, key, value)
        return made

    return make
