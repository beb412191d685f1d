"""How classes and errors of the user's come back from a pickle.

cloudpickle remembers a class by an id, and restoring it where it was made writes the pickled methods, with a frozen
copy of their globals, into the class that the notebook goes on using. Workers may be threads of that very kernel. So a
class comes back as a new class, and only exceptions keep their identity (`except MyError` must work on the reader's
side): one that was made in this process is never written to, one that came here is filled with what came last. And a
class comes back with all of its members: cloudpickle leaves out those that a base holds too, but a class that stands
between the two may hold others.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.elements.data_classes import find_class
from dsnb.elements.pipeline_classes import PipelineClasses
from dsnb.elements.usercode import is_user_class

# The exception classes that came to this process, and are not its own.
_received_classes: weakref.WeakSet[type] = weakref.WeakSet()
_local_classes: weakref.WeakSet[type] = weakref.WeakSet()
# The classes of the pickle that this thread restores.
_restoring = threading.local()


@contextmanager
def collecting_classes(classes: PipelineClasses) -> Iterator[None]:
    """Note the classes that are restored meanwhile."""
    before = getattr(_restoring, "classes", None)
    _restoring.classes = classes
    try:
        yield
    finally:
        _restoring.classes = before


def reduce_class(cls: type, reduced: Any, *, by_name: bool) -> Any:
    """Let a class come back as a class of its own, or, if it is an exception, as the one that is there already."""
    make, arguments, state, _, _, fill = reduced
    state[0].update(_members_shared_with_bases(cls))
    if issubclass(cls, BaseException):
        if cls not in _received_classes:
            _local_classes.add(cls)
        name = (cls.__module__, cls.__qualname__) if by_name else None
        return _exception, (name, make, arguments), (fill, state), None, None, _fill_exception_class
    # The last but one is the id by which cloudpickle finds a class again; without it, it makes a new one.
    *first, _tracker, extra = arguments
    return make, (*first, None, extra), (fill, state), None, None, _fill


def _fill(cls: type, state: tuple[Callable[[type, Any], None], Any]) -> None:
    fill, content = state
    fill(cls, content)
    if (classes := getattr(_restoring, "classes", None)) is not None:
        classes.add(cls)


def _exception(name: tuple[str, str] | None, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """The class that bears the name here, and is meant by `except` here; else the one of that id."""
    named = find_class(*name) if name is not None else None
    if named is not None and issubclass(named, BaseException):
        _local_classes.add(named)
        return named
    return make(*arguments)


def _members_shared_with_bases(cls: type) -> Iterator[tuple[str, Any]]:
    """The members of a class that are the very objects that its bases hold under the same names."""
    held = {name: (base, member) for base in reversed(cls.__bases__) for name, member in vars(base).items()}
    for name, member in vars(cls).items():
        # The module is told when the class is made.
        if name in held and held[name][1] is member and name != "__module__":
            base = held[name][0]
            yield name, member if is_user_class(base) else _LibraryMember(base, name)


@dataclass(frozen=True, slots=True)
class _LibraryMember:
    """Stands in the pickle for what a library's class holds: it may be something that cannot be pickled."""

    cls: type
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _member, (self.cls, self.name)


def _member(cls: type, name: str) -> Any:
    return vars(cls)[name]


def reduce_error(error: BaseException) -> Any:
    """How to rebuild an error."""
    reduced = error.__reduce_ex__(5)
    cls = type(error)
    knows_how = isinstance(cls.__reduce__, FunctionType) or cls.__reduce_ex__ is not object.__reduce_ex__
    if knows_how or not isinstance(reduced, tuple) or reduced[0] is not cls:
        return reduced
    return _rebuild_error, reduced[:2], *reduced[2:]


def _rebuild_error(cls: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """An error as it was, without its class's own `__init__`, which wants other arguments as often as not."""
    error = cls.__new__(cls, *arguments)
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    builtin.__init__(error, *arguments)
    return error


def _fill_exception_class(cls: type, state: tuple[Callable[[type, Any], None], Any]) -> None:
    fill, content = state
    if cls not in _local_classes:
        # Again, if it is there: what an edit changed must not stay as it was.
        _received_classes.add(cls)
        fill(cls, content)
