"""Checks of what users pass to the methods of `Dataset`, made at the call: an error then points at the user's line."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation

AUTOTUNE: Final = -1
"""For `num_parallel_calls` and `buffer_size`: let dsnb choose, by measuring while it runs."""


def whole(name: str, value: Any, least: int | None = None, hint: str = "") -> int:
    """The value as an int, if it is a whole number and not below `least`."""
    if isinstance(value, bool):
        raise InvalidArgumentError(f"`{name}` is {value!r}, not a whole number", hint=hint or "pass an int")
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(
            f"`{name}` is {value!r} ({type(value).__name__}), not a whole number", hint=hint or "pass an int"
        ) from None
    if least is not None and number < least:
        raise InvalidArgumentError(f"`{name}` is {number}", hint=hint or f"pass {least} or more")
    return number


def optional_whole(name: str, value: Any, least: int | None = None, hint: str = "") -> int | None:
    """As `whole`, and None stays None."""
    return None if value is None else whole(name, value, least, hint)


def function_of(name: str, value: Any) -> Callable[..., Any]:
    """The value, if it can be called and is not a dataset."""
    if isinstance(getattr(value, "operation", None), Operation):
        raise InvalidArgumentError(
            f"`{name}` is a Dataset, not a function", hint="pass a function that is called for each element"
        )
    if not callable(value):
        raise InvalidArgumentError(
            f"`{name}` is {value!r} ({type(value).__name__}), not a function",
            hint="pass the function itself: map(decode), not map(decode(x))",
        )
    return value  # type: ignore[no-any-return]


def operation_of(name: str, value: Any) -> Operation:
    """The operation of a dataset."""
    operation = getattr(value, "operation", None)
    if not isinstance(operation, Operation):
        raise InvalidArgumentError(f"`{name}` is {type(value).__name__}, not a Dataset", hint="pass a dsnb.Dataset")
    return operation


def parallel_calls(value: Any) -> int | None:
    """What `num_parallel_calls` may be: None, AUTOTUNE, or 1 and more."""
    number = optional_whole("num_parallel_calls", value)
    if number is not None and number != AUTOTUNE and number < 1:
        raise InvalidArgumentError(f"`num_parallel_calls` is {number}", hint="pass None, dsnb.AUTOTUNE, or 1 and more")
    return number


def flag(name: str, value: Any) -> bool:
    """The value, if it is a truth value."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"`{name}` is {value!r}, not a truth value", hint="pass True or False")
    return value


def optional_flag(name: str, value: Any) -> bool | None:
    """As `flag`, and None stays None."""
    return None if value is None else flag(name, value)
