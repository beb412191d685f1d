"""The name and source location of a user's function, as text for reports and errors."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from dsnb.code.tracebacks import format_location, format_note


def function_name(function: Callable[..., Any]) -> str:
    """Return the name that the user gave a function.

    Example:
        >>> function_name(functools.partial(len)), function_name(lambda x: x)
        ('len', '<lambda>')
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def location_of(function: Callable[..., Any], failure: BaseException | None = None) -> str:
    """Return where a function was written, as `cell 3 line 2` or `/path/module.py:12`; empty for a C function.

    Args:
        function: The user's function.
        failure: An error that it raised; then the line is the one that was running.
    """
    code = _code_of(function)
    if code is None:
        return ""
    return format_location(code.co_filename, _failing_line(code, failure) or code.co_firstlineno)


def add_location_note(failure: BaseException, operation: str, function: Callable[..., Any]) -> None:
    """Add a note to an error that names the operation and the function that was called; once for each location."""
    # An error that wraps a control-flow exception was not raised yet; its cause has the traceback.
    where = location_of(function, failure if failure.__traceback__ is not None else failure.__cause__)
    note = f"in {operation}, {where}" if where else f"in {operation}"
    _add_note_once(failure, note)


def add_unpacking_note(failure: TypeError, operation: str, function: Callable[..., Any], element: Any) -> None:
    """Add a note to an error if the function cannot take the element's parts: a tuple is unpacked, nothing else is.

    Args:
        failure: The error that the call raised.
        operation: The name of the operation that made the call.
        function: The user's function.
        element: The element that it was called with.
    """
    is_tuple = type(element) is tuple
    if _accepts(function, element if is_tuple else (element,)):
        return
    if is_tuple:
        takes = f"{len(element)} parts, as {len(element)} arguments"
        _add_note_once(
            failure,
            f"{operation} unpacks a tuple: the function is called with its {takes}; "
            "`lambda *element: ...` takes the whole tuple",
        )
    elif type(element) is list and _accepts(function, element):
        _add_note_once(
            failure,
            f"{operation} unpacks a tuple, but passes a list as one argument; make the elements tuples, or take one "
            "argument",
        )


def _accepts(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether a function can be called with these arguments; True if its signature is unknown."""
    try:
        # Not through `__wrapped__`: a decorated function may take other arguments than the one it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # many functions written in C have no signature
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _add_note_once(failure: BaseException, note: str) -> None:
    # A user may raise the same exception object again and again.
    known = getattr(failure, "__notes__", ())
    if note not in known and format_note(note) not in known:
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
