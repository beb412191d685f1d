"""Source text of code objects, only if it is surely the text that was compiled. For display, never for keys."""

from __future__ import annotations

import ast
import inspect
import linecache
import warnings
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

from dsnb.code.bytecode import walk_code
from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.code.fingerprint.graph import ValueGraph


def user_code_by_path(value: Any, *, root: str = "pipeline") -> dict[str, CodeType]:
    """The user's code objects that a value reaches, without nested ones, by their component paths.

    The paths are those of the fingerprint for the key of a result (`fingerprint(value, result=True)`).
    """
    parts = [part for part in ValueGraph(value, result=True).parts(root) if isinstance(part.value, CodeType)]
    return {part.path: part.value for part in parts if " > nested " not in part.path}


def source_of(code: CodeType) -> str | None:
    """The source lines of a function, decorators included; None if they are unavailable or are not what was compiled.

    A file may have been edited after it was imported, and a tool may have compiled another text than a cell's. So the
    text is compiled again, and the result must have the fingerprint of `code`.
    """
    linecache.checkcache(code.co_filename)  # drop a stale entry: the file may have been edited and reloaded
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return None
    digest = fingerprint(code).digest
    for found in _compiled(code.co_filename, "".join(lines)):
        location = (found.co_firstlineno, found.co_name)
        if location == (code.co_firstlineno, code.co_name) and fingerprint(found).digest == digest:
            return "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
    return None


@lru_cache(maxsize=64)
def _compiled(name: str, text: str) -> tuple[CodeType, ...]:
    return tuple(_all_code(name, text))


def _all_code(name: str, text: str) -> Iterator[CodeType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warned when it was first compiled
        try:
            # IPython compiles cells with this flag: they may `await` at their top level.
            top = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError):
            return
    yield from walk_code(top)
