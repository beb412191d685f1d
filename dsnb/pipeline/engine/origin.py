"""What a user's function is called and where it was written, in words for reports and errors."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

_IPYTHON_INPUT = re.compile(r"<ipython-input-(\d+)-")
_KERNEL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")


def function_name(function: Callable[..., Any]) -> str:
    """The name that the user gave a function.

    Example:
        >>> function_name(functools.partial(len)), function_name(lambda x: x)
        ('len', '<lambda>')
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def place_of(function: Callable[..., Any], failure: BaseException | None = None) -> str:
    """Where a function was written, as `cell 3 line 2` or `/path/module.py:12`; empty for one written in C.

    Args:
        function: The user's function.
        failure: An error that left it; then the line is the one that was running.
    """
    code = _code_of(function)
    if code is None:
        return ""
    line = _failing_line(code, failure) or code.co_firstlineno
    cell = _cell_of(code.co_filename)
    return f"{code.co_filename}:{line}" if cell is None else f"{cell} line {line}"


def add_origin(failure: BaseException, operation: str, function: Callable[..., Any]) -> None:
    """Note on an error which operation called which function when it happened; once for each place."""
    place = place_of(function, failure)
    note = f"in {operation}, {place}" if place else f"in {operation}"
    # A user may raise one and the same exception object again and again.
    if note not in getattr(failure, "__notes__", ()):
        failure.add_note(note)


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    for candidate in (function, getattr(function, "__func__", None), vars(type(function)).get("__call__")):
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def _failing_line(code: CodeType, failure: BaseException | None) -> int | None:
    if failure is None:
        return None
    lines = [line for frame, line in traceback.walk_tb(failure.__traceback__) if frame.f_code is code]
    return lines[-1] if lines else None


def _cell_of(filename: str) -> str | None:
    numbered = _IPYTHON_INPUT.match(filename)
    if numbered:
        return f"cell {numbered[1]}"
    if not _KERNEL_FILE.search(filename):
        return None
    number = _cell_numbers().get(filename)
    return "a cell," if number is None else f"cell {number}"


def _cell_numbers() -> dict[str, int]:
    # ipykernel names cells by a hash; only the shell that ran them knows their numbers. Never import it: without it
    # there is no kernel here.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
