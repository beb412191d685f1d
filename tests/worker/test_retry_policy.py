from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

import pytest

from dsnb.errors import CancelledError, DeadlineExceededError, NotFoundError, UnavailableError, is_element_error
from dsnb.worker.retry_policy import RetryPolicy


def answering(answers: Sequence[object]) -> Callable[[], object]:
    """A call that gives or raises one after the other, the last one for ever."""
    left = list(answers)

    def call() -> object:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


AWAY = UnavailableError("no server answers at host:1")


def policy(
    seconds: float = 30.0,
    *,
    given_up: Callable[[], bool] = lambda: False,
    connected: Callable[[], bool] = lambda: False,
    on_overdue: Callable[[Exception], None] = lambda error: pytest.fail(str(error)),
) -> RetryPolicy:
    return RetryPolicy(seconds=seconds, given_up=given_up, connected=connected, on_overdue=on_overdue)


def test_an_answer_that_comes_late_is_an_answer() -> None:
    assert policy()(answering([AWAY, AWAY, "here"])) == "here"


def test_a_task_that_the_dispatcher_does_not_know_ends_without_an_error_for_readers() -> None:
    with pytest.raises(CancelledError, match="the task is unknown"):
        policy()(answering([AWAY, NotFoundError("the task is unknown"), "never"]))


def test_readers_are_told_of_an_absence_that_lasts_and_the_answer_still_comes() -> None:
    told: list[Exception] = []

    def ask() -> str:
        if len(told) < 3:
            raise AWAY
        return "here"

    assert policy(0.05, on_overdue=told.append)(ask) == "here"
    assert len(told) == 3
    assert isinstance(told[0], DeadlineExceededError)
    assert re.search(r"no server answers at host:1 for 0\.\d+ seconds", str(told[0]))
    assert "its work_dir and port" in told[0].hint
    assert not is_element_error(told[0]), "an absence of the dispatcher would be counted as an element"


def test_whoever_is_not_needed_any_more_does_not_wait() -> None:
    began = time.monotonic()
    with pytest.raises(CancelledError, match="the task was stopped"):
        policy(given_up=lambda: True)(answering([AWAY]))
    assert time.monotonic() - began < 5.0


def test_an_answer_that_is_only_late_is_waited_for_while_the_connection_stands() -> None:
    lives, told = iter([True] * 5), list[float]()
    began = time.monotonic()
    with pytest.raises(CancelledError):
        policy(
            0.1,
            given_up=lambda: bool(told),
            connected=lambda: next(lives, False),
            on_overdue=lambda _error: told.append(time.monotonic() - began),
        )(answering([AWAY]))
    assert told[0] > 0.3, "the time counts from when the connection broke"


def test_an_answer_that_is_late_for_too_long_is_told_although_the_connection_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that hangs for ever may keep its connections."""
    monkeypatch.setattr("dsnb.worker.retry_policy.HANG_TIMEOUT_S", 0.2)
    told: list[Exception] = []
    with pytest.raises(CancelledError):
        policy(0.1, given_up=lambda: bool(told), connected=lambda: True, on_overdue=told.append)(answering([AWAY]))
    assert isinstance(told[0], DeadlineExceededError)
    assert "does a long-running cell block the dispatcher?" in told[0].hint
