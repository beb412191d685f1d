from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from dsnb.errors import NotFoundError, UnavailableError
from dsnb.worker.patience import Patience


def answering(answers: Sequence[object]) -> Callable[[], object]:
    """A call that gives or raises one after the other, the last one for ever."""
    left = list(answers)

    def call() -> object:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


AWAY = UnavailableError("nobody answers at host:1")


def test_an_answer_that_comes_late_is_an_answer() -> None:
    assert (
        Patience(seconds=30.0, given_up=lambda: False, connected=lambda: False)(answering([AWAY, AWAY, "here"]))
        == "here"
    )


def test_what_is_no_absence_is_raised_soon() -> None:
    with pytest.raises(NotFoundError, match="the task is unknown"):
        Patience(seconds=30.0, given_up=lambda: False, connected=lambda: False)(
            answering([AWAY, NotFoundError("the task is unknown"), "never"])
        )


def test_the_order_to_drop_a_task_is_waited_for_when_the_dispatcher_does_not_know_it() -> None:
    """Readers then hear why from whoever cancelled it; that the task is unknown would be an element of theirs."""
    orders = iter([False, False, True])
    patience = Patience(seconds=30.0, given_up=lambda: next(orders), connected=lambda: True)
    with pytest.raises(NotFoundError, match="the task is unknown"):
        patience(answering([NotFoundError("the task is unknown")]))
    assert next(orders, "all asked") == "all asked"


def test_an_absence_that_lasts_is_told_with_what_to_do() -> None:
    with pytest.raises(UnavailableError, match=r"nobody answers at host:1 for 0\.1 seconds") as error:
        Patience(seconds=0.1, given_up=lambda: False, connected=lambda: False)(answering([AWAY]))
    assert "its work_dir and port" in error.value.hint


def test_whoever_is_not_needed_any_more_does_not_wait() -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"nobody answers at host:1$"):
        Patience(seconds=30.0, given_up=lambda: True, connected=lambda: False)(answering([AWAY]))
    assert time.monotonic() - began < 5.0


def test_an_answer_that_is_only_late_is_waited_for_while_the_connection_stands() -> None:
    lives = iter([True] * 5)
    patience = Patience(seconds=0.1, given_up=lambda: False, connected=lambda: next(lives, False))
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"for 0\.1 seconds"):
        patience(answering([AWAY]))
    assert time.monotonic() - began > 0.3, "the time counts from when the connection broke"
