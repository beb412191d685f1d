"""Checks of what users pass to the methods of `Dataset`, made at the call: an error then points at the user's line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.specs import can_follow

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


def positive(name: str, value: Any) -> float:
    """The value, if it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise InvalidArgumentError(f"`{name}` is {value!r}", hint="pass a number of seconds above 0")
    return float(value)


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


def alternatives(datasets: Any) -> tuple[Operation, ...]:
    """The operations of datasets of which each element is taken from one: at least one, of one kind."""
    found = tuple(operation_of("datasets", dataset) for dataset in datasets)
    if not found:
        raise InvalidArgumentError("`datasets` is empty", hint="pass a list of one dataset or more")
    known = [source.element_spec for source in found if source.element_spec is not None]
    for spec in known:
        if not can_follow(known[0], spec):
            raise InvalidArgumentError(
                f"elements of the specs {known[0]} and {spec} cannot be in one dataset",
                hint="give all datasets the same structure, dtypes and numbers of dimensions with `map`",
            )
    return found


def shares_of(weights: Any, count: int) -> list[float]:
    """The weights of `count` datasets; None for all alike."""
    if weights is None:
        return [1.0] * count
    try:
        shares = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        shares = []
    if len(shares) != count or not all(0 <= share < math.inf for share in shares) or not any(shares):
        raise InvalidArgumentError(
            f"`weights` is {weights!r} for {count} dataset(s)",
            hint="pass one number for each dataset: 0 or more, and at least one of them above 0",
        )
    return shares
