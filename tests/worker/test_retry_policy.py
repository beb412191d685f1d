from __future__ import annotations

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


def test_an_answer_that_comes_late_is_an_answer() -> None:
    assert (
        RetryPolicy(seconds=30.0, given_up=lambda: False, connected=lambda: False)(answering([AWAY, AWAY, "here"]))
        == "here"
    )


def test_a_task_that_the_dispatcher_does_not_know_ends_without_an_error_for_readers() -> None:
    with pytest.raises(CancelledError, match="the task is unknown"):
        RetryPolicy(seconds=30.0, given_up=lambda: False, connected=lambda: False)(
            answering([AWAY, NotFoundError("the task is unknown"), "never"])
        )


def test_an_absence_that_lasts_is_told_with_what_to_do() -> None:
    with pytest.raises(DeadlineExceededError, match=r"no server answers at host:1 for 0\.1 seconds") as error:
        RetryPolicy(seconds=0.1, given_up=lambda: False, connected=lambda: False)(answering([AWAY]))
    assert "its work_dir and port" in error.value.hint
    assert not is_element_error(error.value), "an absence of the dispatcher would be counted as an element"


def test_whoever_is_not_needed_any_more_does_not_wait() -> None:
    began = time.monotonic()
    with pytest.raises(CancelledError, match="the task was stopped"):
        RetryPolicy(seconds=30.0, given_up=lambda: True, connected=lambda: False)(answering([AWAY]))
    assert time.monotonic() - began < 5.0


def test_an_answer_that_is_only_late_is_waited_for_while_the_connection_stands() -> None:
    lives = iter([True] * 5)
    patience = RetryPolicy(seconds=0.1, given_up=lambda: False, connected=lambda: next(lives, False))
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError, match=r"for 0\.1 seconds"):
        patience(answering([AWAY]))
    assert time.monotonic() - began > 0.3, "the time counts from when the connection broke"
