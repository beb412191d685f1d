"""What a user's predicate answered, as truth values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dsnb.errors import InvalidArgumentError

_BOOL_TYPES: Final = frozenset({bool, np.bool_})


def as_bools(name: str, answers: list[Any], failure: BaseException | None) -> tuple[list[Any], BaseException | None]:
    """The answers as bool, up to the first that is none, and the error behind them.

    Args:
        name: The operation's, for errors.
        answers: What the predicate gave.
        failure: The error that ended the calls, if one did.
    """
    if _BOOL_TYPES.issuperset(map(type, answers)):
        return answers, failure
    found: list[Any] = []
    for answer in answers:
        try:
            found.append(bool(answer))
        except Exception as error:  # noqa: BLE001 - an answer's own __bool__ is user code too
            return found, _not_a_bool(name, answer, error)
    return found, failure


def _not_a_bool(name: str, answer: Any, cause: Exception) -> InvalidArgumentError:
    shape = f" of shape {answer.shape}" if isinstance(answer, np.ndarray) else ""
    error = InvalidArgumentError(
        f"the function of {name} answered with {type(answer).__name__}{shape}, which is neither true nor false",
        did="the element was left out; reading goes on with the next",
        hint="return one truth value, for instance (x > 0).all()",
    )
    error.__cause__ = cause
    return error
