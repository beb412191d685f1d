"""How the user's classes and errors are restored from a pickle.

cloudpickle tracks a class by an id. Restoring the class in the process that defined it would overwrite the methods of
the notebook's own class with pickled ones, whose globals are a frozen copy; and workers may be threads of that kernel.
So a class is restored as a new class. Only exceptions keep their identity, because `except MyError` must work in the
reader: an exception class that this process defined is never modified, and a received one is overwritten by the newest
version that arrives. A class is restored with all its members: cloudpickle leaves out members that it shares with a
base, but a class between the two in the method resolution order may define other ones.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import msgspec

from dsnb.code.pipeline_classes import PipelineClasses
from dsnb.code.usercode import is_user_class
from dsnb.elements.data_classes import find_class

# Exception classes that this process received, and (below) those that it defined.
_received_classes: weakref.WeakSet[type] = weakref.WeakSet()
_local_classes: weakref.WeakSet[type] = weakref.WeakSet()
# `.classes`: the `PipelineClasses` of the pickle that this thread is restoring.
_restoring = threading.local()


@contextmanager
def collecting_classes(classes: PipelineClasses) -> Iterator[None]:
    """Add the classes that this thread restores within the block to `classes`."""
    before = getattr(_restoring, "classes", None)
    _restoring.classes = classes
    try:
        yield
    finally:
        _restoring.classes = before


def reduce_class(cls: type, reduced: Any, *, by_name: bool) -> Any:
    """Change cloudpickle's reduction so that a class is restored as a new class, an exception as the existing one."""
    make, arguments, state, _, _, fill = reduced
    state[0].update(_members_shared_with_bases(cls))
    if issubclass(cls, BaseException):
        if cls not in _received_classes:
            _local_classes.add(cls)
        name = (cls.__module__, cls.__qualname__) if by_name else None
        return _exception, (name, make, arguments), (fill, state), None, None, _fill_exception_class
    # The last but one is the id by which cloudpickle finds an existing class; without it, cloudpickle makes a new one.
    *first, _tracker, extra = arguments
    return make, (*first, None, extra), (fill, state), None, None, _fill


def _fill(cls: type, state: tuple[Callable[[type, Any], None], Any]) -> None:
    fill, content = state
    fill(cls, content)
    if (classes := getattr(_restoring, "classes", None)) is not None:
        classes.add(cls)


def _exception(name: tuple[str, str] | None, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """The exception class of that name in this process, which its `except` clauses mean; else the one of that id."""
    named = find_class(*name) if name is not None else None
    if named is not None and issubclass(named, BaseException):
        _local_classes.add(named)
        return named
    return make(*arguments)


def _members_shared_with_bases(cls: type) -> Iterator[tuple[str, Any]]:
    """The members of a class that are identical to members of the same name in its bases; cloudpickle omits them."""
    held = {name: (base, member) for base in reversed(cls.__bases__) for name, member in vars(base).items()}
    for name, member in vars(cls).items():
        # `__module__` is set when the class is made.
        if name in held and held[name][1] is member and name != "__module__":
            base = held[name][0]
            yield name, member if is_user_class(base) else _LibraryMember(base, name)


class _LibraryMember(msgspec.Struct, frozen=True):
    """Replaces a member of a library's class in the pickle: the member itself may not be picklable."""

    cls: type
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _member, (self.cls, self.name)


def _member(cls: type, name: str) -> Any:
    return vars(cls)[name]


def reduce_error(error: BaseException) -> Any:
    """The reduction of an error, which avoids calling its class's `__init__` if the class defines no reduction."""
    reduced = error.__reduce_ex__(5)
    cls = type(error)
    knows_how = isinstance(cls.__reduce__, FunctionType) or cls.__reduce_ex__ is not object.__reduce_ex__
    if knows_how or not isinstance(reduced, tuple) or reduced[0] is not cls:
        return reduced
    return _rebuild_error, reduced[:2], *reduced[2:]


def _rebuild_error(cls: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Rebuild an error without calling its class's own `__init__`, which often takes other arguments than `args`."""
    error = cls.__new__(cls, *arguments)
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    builtin.__init__(error, *arguments)
    return error


def _fill_exception_class(cls: type, state: tuple[Callable[[type, Any], None], Any]) -> None:
    fill, content = state
    if cls not in _local_classes:
        # Also if it was received before: the user may have edited it since.
        _received_classes.add(cls)
        fill(cls, content)
