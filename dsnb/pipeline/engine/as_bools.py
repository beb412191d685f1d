"""Converts the results of a user's predicate to truth values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dsnb.errors import InvalidArgumentError

_BOOL_TYPES: Final = frozenset({bool, np.bool_})


def as_bools(name: str, answers: list[Any], failure: BaseException | None) -> tuple[list[Any], BaseException | None]:
    """Convert results to bool up to the first that cannot be converted; return them and the error after them.

    Args:
        name: The operation's name, for errors.
        answers: The results of the predicate.
        failure: The error that ended the calls, or None.
    """
    if _BOOL_TYPES.issuperset(map(type, answers)):
        return answers, failure
    found: list[Any] = []
    for answer in answers:
        try:
            found.append(bool(answer))
        except Exception as error:  # noqa: BLE001 - a result's own __bool__ is user code too
            return found, _not_a_bool(name, answer, error)
    return found, failure


def _not_a_bool(name: str, answer: Any, cause: Exception) -> InvalidArgumentError:
    shape = f" of shape {answer.shape}" if isinstance(answer, np.ndarray) else ""
    error = InvalidArgumentError(
        f"the function of {name} answered with {type(answer).__name__}{shape}, which is neither true nor false",
        did="the element was left out; reading continues with the next",
        hint="return one truth value, for instance (x > 0).all()",
    )
    error.__cause__ = cause
    return error
