"""The values that a function references: its closure, its defaults, and the globals that it actually reads.

Fingerprints, pickles and the search for unpicklable values all use this module, so that they agree.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any, Literal

import msgspec

from dsnb.code.bytecode import all_reads
from dsnb.code.usercode import is_user_module, namespace

VariableKind = Literal["closure", "default", "global"]
_MISSING = object()
_SINGLEDISPATCH_CODE = vars(functools)["singledispatch"](len).__code__


class Variable(msgspec.Struct, frozen=True):
    """A value that a function references.

    Attributes:
        kind: How the function references it.
        name: Its name in the function: "scale", or "helpers.prep" for an attribute of a user module.
        value: Its present value; a user module itself only if it is not visible which attribute is read.
        module_lookups: The user modules on the path, each with the name that is read from it.
    """

    kind: VariableKind
    name: str
    value: Any
    module_lookups: tuple[tuple[ModuleType, str], ...] = ()


def variables(function: FunctionType) -> list[Variable]:
    """All values that a function and its nested functions reference: closure, defaults, globals, in this order."""
    return [*_closure(function), *_defaults(function), *_globals(function)]


def singledispatch_registry(function: FunctionType) -> dict[type, Any]:
    """The implementations of a `functools.singledispatch` function, by class; empty for any other function."""
    if function.__code__ is not _SINGLEDISPATCH_CODE:
        return {}
    return dict(function.registry)  # type: ignore[attr-defined]


def cell_value(cell: CellType) -> tuple[Any, ...]:
    """The value of a closure cell in a tuple; an empty tuple if the variable is not assigned yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _closure(function: FunctionType) -> Iterator[Variable]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        for value in cell_value(cell):
            yield Variable("closure", name, value)


def _defaults(function: FunctionType) -> Iterator[Variable]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(values) :] if values else ()
    for name, value in zip(names, values, strict=True):
        yield Variable("default", name, value)
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield Variable("default", name, value)


def _globals(function: FunctionType) -> Iterator[Variable]:
    found = set()
    for first, *names in all_reads(function.__code__):
        # Built-ins and names that are not defined (yet) are left out: the code itself contains their names.
        if first in function.__globals__ and not _is_builtin(first, function.__globals__[first]):
            variable = _follow(first, function.__globals__[first], names)
            if variable.name not in found:
                found.add(variable.name)
                yield variable


def _is_builtin(name: str, value: Any) -> bool:
    return value is vars(builtins).get(name, _MISSING)


def _follow(name: str, value: Any, names: list[str]) -> Variable:
    lookups = []
    while names and isinstance(value, ModuleType) and is_user_module(value) and names[0] in namespace(value):
        lookups.append((value, names[0]))
        name, value, names = f"{name}.{names[0]}", namespace(value)[names[0]], names[1:]
    return Variable("global", name, value, tuple(lookups))
