"""Differences between an imported user module and its source file: the file was edited since, or values were assigned.

A function that imports a module in its body gets the module that is already imported, which may differ from the file.
A module that matches its file has no differences, so importing it does not change a fingerprint. The comparison covers
functions, methods and names to which the file assigns a plain value, and whether the file is still the one that Python
compiled.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from dsnb.code.bytecode import analyse_code, walk_code
from dsnb.code.fingerprint.parts import encode_plain
from dsnb.code.usercode import namespace

_HEADER_BYTES: Final = 16


@lru_cache(maxsize=64)
def compile_module(text: bytes) -> CodeType:
    """The code object of a module's source text."""
    return compile(text, "<imported>", "exec", dont_inherit=True)


def source_differences(module: ModuleType, path: str, text: bytes) -> dict[str, Any]:
    """The code and the values in which an imported module differs from its file, by name.

    Args:
        module: The imported module.
        path: The path of its file.
        text: The present contents of the file.
    """
    in_source: dict[str, list[CodeType]] = {}
    for code in walk_code(compile_module(text)):
        in_source.setdefault(code.co_qualname, []).append(code)
    found: dict[str, Any] = {}
    for code in _codes_of(module, path):
        if not any(_same(code, other) for other in in_source.get(code.co_qualname, ())):
            found[code.co_qualname] = code
    names = namespace(module)
    for name, value in _plain_values(text).items():
        if name in names and encode_plain(names[name]) != encode_plain(value):
            found[name] = names[name]
    for name in _definitions(text):
        if name in names and not _is_defined_in(names[name], module, path):
            found[name] = names[name]
    compiled_from = _compiled_from(module)
    if compiled_from and compiled_from != _file_stamp(path):
        found["(the file that was imported)"] = compiled_from
    return found


def _codes_of(module: ModuleType, path: str) -> Iterator[CodeType]:
    """The present code of the functions and methods that the module's file defines."""
    for value in list(namespace(module).values()):
        members = [value]
        if isinstance(value, type) and value.__module__ == module.__name__:
            members = list(vars(value).values())
        for member in members:
            for function in _functions_in(member):
                if function.__code__.co_filename == path:
                    yield function.__code__


def _functions_in(member: Any) -> Iterator[FunctionType]:
    parts: list[Any] = [member]
    if isinstance(member, property):
        parts = [member.fget, member.fset, member.fdel]
    elif isinstance(member, staticmethod | classmethod):
        parts = [member.__func__]
    for part in parts:
        with suppress(Exception):  # attribute access on the user's objects may raise anything
            inner = unwrap(part) if callable(part) else part
            if isinstance(inner, FunctionType):
                yield inner


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects behave the same, wherever they were written."""
    mine, its = analyse_code(one), analyse_code(other)
    if mine.parts != its.parts or len(mine.constants) != len(its.constants):
        return False
    for here, there in zip(mine.constants, its.constants, strict=True):
        if isinstance(here, CodeType) and isinstance(there, CodeType):
            if not _same(here, there):
                return False
        elif encode_plain(here) != encode_plain(there):
            return False
    return True


@lru_cache(maxsize=64)
def _plain_values(text: bytes) -> dict[str, Any]:
    """The names to which a source assigns exactly one value at its top level, a literal."""
    found: dict[str, Any] = {}
    several: set[str] = set()
    for statement in ast.parse(text).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names = [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]
        several.update(name for name in names if name in found)
        with suppress(ValueError, TypeError, SyntaxError):
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                value = ast.literal_eval(statement.value)
                found.update((target.id, value) for target in targets if isinstance(target, ast.Name))
        several.update(name for name in names if name not in found)
    return {name: value for name, value in found.items() if name not in several}


@lru_cache(maxsize=64)
def _definitions(text: bytes) -> frozenset[str]:
    """The functions and classes that a source defines exactly once, at its top level and without decorators."""
    made = [part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    names = [part.name for part in made]
    return frozenset(part.name for part in made if not part.decorator_list and names.count(part.name) == 1)


def _is_defined_in(value: Any, module: ModuleType, path: str) -> bool:
    """Whether the module's file defines this function or class."""
    if isinstance(value, FunctionType):
        return value.__code__.co_filename == path
    return isinstance(value, type) and value.__module__ == module.__name__


def _compiled_from(module: ModuleType) -> tuple[int, int] | None:
    """Modification time and size of the source that the module's .pyc was compiled from; None if unknown."""
    cached = namespace(module).get("__cached__")
    if not isinstance(cached, str):
        return None
    try:
        with open(cached, "rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return None
    # Flags other than 0 mark a .pyc that is checked by hash: it holds no time and size.
    if header[:4] != importlib.util.MAGIC_NUMBER or header[4:8] != bytes(4):
        return None
    return int.from_bytes(header[8:12], "little"), int.from_bytes(header[12:16], "little")


def _file_stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF
