"""Finds the variable that prevents a pipeline from being pickled.

A pickler's own error names a type ("cannot pickle '_thread.lock' object") but not where it is used. Here every part is
pickled separately, from the operation's fields down through what its functions refer to, until a value fails although
all of its parts can be pickled.
"""

from __future__ import annotations

import functools
import socket
import types
from collections.abc import Callable, Iterable, Iterator
from io import IOBase
from typing import Any

import msgspec

from dsnb.code.fingerprint.values import reduced_form
from dsnb.code.references import singledispatch_registry, variables
from dsnb.code.usercode import is_user_class, is_user_module, namespace
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation

TryPickle = Callable[[Any], Exception | None]
"""Pickles a value separately; returns the error, or None on success."""


class _Step(msgspec.Struct, frozen=True):
    """One step from a value to a part of it. A label that begins with a name is a variable; others extend one."""

    label: str
    value: Any


def unpicklable_error(operations: Iterable[Operation], error: Exception, try_pickle: TryPickle) -> InvalidArgumentError:
    """Return the error to raise for a pipeline whose pickling failed with `error`.

    Args:
        operations: All operations of the pipeline.
        error: The error of the pickler.
        try_pickle: Tests whether a value can be pickled.
    """
    for operation in operations:
        for name in operation.__struct_fields__:
            value = getattr(operation, name)
            failure = None if name == "inputs" else try_pickle(value)
            if failure is not None:
                return _describe(operation, _find(_Step(name, value), failure, try_pickle), failure)
    name = getattr(next(reversed([*operations]), None), "name", "the pipeline")
    return InvalidArgumentError(
        f"{name} cannot be sent to the workers: {type(error).__name__}: {error}", did="nothing was registered"
    )


def _find(first: _Step, failure: Exception, try_pickle: TryPickle) -> list[_Step]:
    """Return the steps to the innermost failing value; depth-first, visiting each value once because of cycles."""
    trail = [first]
    seen = {id(first.value)}
    # A value nested too deeply fails at every level: name the variable that contains all of it.
    while not _is_too_deep(failure) or isinstance(
        trail[-1].value, types.FunctionType | types.MethodType | functools.partial
    ):
        for step in _parts(trail[-1].value):
            if id(step.value) in seen:
                continue
            seen.add(id(step.value))
            inner = try_pickle(step.value)
            if inner is not None:
                trail.append(step)
                failure = inner
                break
        else:
            break
    return trail


def _is_too_deep(failure: Exception) -> bool:
    return isinstance(failure, RecursionError) or isinstance(failure.__cause__, RecursionError)


def _parts(value: Any) -> Iterator[_Step]:
    """Yield the parts that a value is pickled with, each under its owner's name for it."""
    if isinstance(value, types.FunctionType) and (registry := singledispatch_registry(value)):
        for handler in registry.values():
            yield _Step(_name_of(handler), handler)
    elif isinstance(value, types.FunctionType):
        for variable in variables(value):
            yield _Step(variable.name, variable.value)
        yield from _named(".", vars(value))
    elif isinstance(value, functools._lru_cache_wrapper | functools.cached_property):
        inner = value.func if isinstance(value, functools.cached_property) else value.__wrapped__
        yield _Step(_name_of(inner), inner)
    elif isinstance(value, types.MethodType):
        yield _Step("self", value.__self__)
        yield _Step(value.__name__, value.__func__)
    elif isinstance(value, functools.partial):
        yield _Step(_name_of(value.func), value.func)
        yield from _numbered(value.args)
        yield from _named("", value.keywords)
    elif isinstance(value, types.ModuleType):
        yield from _named(".", namespace(value) if is_user_module(value) else {})
    elif isinstance(value, type):
        yield from _named(".", dict(vars(value)) if is_user_class(value) else {})
    else:
        yield from _contents(value)


def _contents(value: Any) -> Iterator[_Step]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield _Step(f"[{key!r}]", item)
            yield _Step(f" key {key!r}", key)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _numbered(value)
    elif isinstance(value, staticmethod | classmethod):
        yield _Step(value.__func__.__name__, value.__func__)
    else:
        yield from _state(value)


def _state(value: Any) -> Iterator[_Step]:
    """Yield the parts of an instance, as its `__reduce__` states them."""
    try:
        reduced = reduced_form(value)
    except Exception:  # noqa: BLE001 - it cannot state its parts, so it is the culprit itself
        return
    if isinstance(reduced, tuple):
        _, arguments, *rest = reduced
        for state in rest[0] if rest and isinstance(rest[0], tuple) else rest[:1]:
            if isinstance(state, dict):
                yield from _named(".", state)
            else:
                yield _Step(" state", state)
        yield _Step(type(value).__name__, type(value))
        yield from _numbered(arguments)


def _named(prefix: str, items: dict[str, Any]) -> Iterator[_Step]:
    return (_Step(f"{prefix}{name}", item) for name, item in items.items())


def _numbered(items: Iterable[Any]) -> Iterator[_Step]:
    return (_Step(f"[{number}]", item) for number, item in enumerate(items))


def _describe(operation: Operation, trail: list[_Step], failure: Exception) -> InvalidArgumentError:
    variable, way = _variable_names(trail)
    culprit = trail[-1].value
    kind = _type_name(culprit)
    by = f", reached by way of {' and '.join(map(repr, way))}," if way else ""
    too_deep = _is_too_deep(failure)
    why = "is nested too deeply to be pickled" if too_deep else "cannot be pickled"
    return InvalidArgumentError(
        f"{operation.name} cannot be sent to the workers: its variable {variable!r} ({kind}){by} {why}",
        did="nothing was registered",
        hint="pass it as an array or a file's path" if too_deep else _hint(culprit),
    )


def _variable_names(trail: list[_Step]) -> tuple[str, list[str]]:
    """Return the innermost variable with the steps into it, and the variables on the way to it."""
    names: list[str] = []
    for step in trail:
        if names and step.label[0] in ".[ ":
            names[-1] += step.label
        elif names[-1:] != [step.label]:
            names.append(step.label)
    # The first one is the operation's own field, which the user never named; use it only if there is no other.
    return names[-1], names[1:-1]


def _type_name(value: Any) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ in {"builtins", "__main__"} else f"{cls.__module__}.{cls.__qualname__}"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


_LOCKS = {"lock", "RLock", "Lock", "Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "_local", "local"}


def _hint(culprit: Any) -> str:
    """Return advice for a value of this kind."""
    if isinstance(culprit, IOBase):
        return "pass the file's path, and open the file inside the function"
    if isinstance(culprit, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        return "pass a function that makes the generator, and call it inside the function"
    if isinstance(culprit, socket.socket) or "onnection" in type(culprit).__name__:
        return "pass the address, and connect inside the function"
    if type(culprit).__name__ in _LOCKS:
        return "make it inside the function, or in a module that the function imports: each worker has its own"
    return "make it inside the function, from plain values; or give its class a __reduce__ that says how to rebuild it"
