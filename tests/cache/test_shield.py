from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from dsnb.cache.recordings.shield import Shield
from tests.support.waiting import wait_for


@pytest.fixture
def shield() -> Iterator[Shield]:
    shield = Shield()
    yield shield
    shield.close()


def test_calls_of_the_main_thread_are_made_on_another_one_and_those_of_others_are_not(shield: Shield) -> None:
    def this() -> threading.Thread:
        return threading.current_thread()

    found: list[threading.Thread] = []
    other = threading.Thread(target=lambda: found.append(shield.call(this)))
    other.start()
    other.join()
    assert found == [other]
    assert shield.call(this) is shield.call(this) is not threading.main_thread()


def test_errors_are_raised_where_the_result_is_wanted(shield: Shield) -> None:
    with pytest.raises(ZeroDivisionError):
        shield.call(lambda: 1 / 0)
    assert shield.call(lambda: 3) == 3


def test_an_interrupt_is_the_caller_s_and_the_call_goes_on_to_its_end(shield: Shield) -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go.wait(30)
        done.set()

    strike = threading.Thread(target=lambda: begun.wait(30) and signal.raise_signal(signal.SIGINT))
    strike.start()
    with pytest.raises(KeyboardInterrupt):
        shield.call(slow)
    strike.join()
    assert not done.is_set()
    go.set()
    assert shield.call(lambda: 4) == 4
    wait_for(done.is_set, what="the call to end")
