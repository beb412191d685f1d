from __future__ import annotations

import threading

import pytest

from dsnb.wire.lifecycle import StopOnce
from tests.support.processes import python_process
from tests.support.waiting import wait_for


def test_who_asks_second_and_who_waits_go_on_when_it_is_over_and_not_before() -> None:
    ending, may_end = StopOnce(threading.Lock()), threading.Event()
    threads = [
        threading.Thread(target=ending.run, args=(may_end.wait,)),
        threading.Thread(target=ending.run, args=(lambda: pytest.fail("it ends twice"),)),
        threading.Thread(target=ending.wait),
    ]
    threads[0].start()
    wait_for(ending.requested.is_set, what="the first to begin")
    for thread in threads[1:]:
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    may_end.set()
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_an_end_that_fails_is_an_end() -> None:
    ending = StopOnce(threading.Lock())
    with pytest.raises(ZeroDivisionError):
        ending.run(lambda: [][1 // 0])
    ending.run(lambda: pytest.fail("it ends twice"))
    ending.wait()


def test_what_is_done_under_the_lock_is_done_before_the_end_begins() -> None:
    lock = threading.Lock()
    ending = StopOnce(lock)
    with lock:
        thread = threading.Thread(target=ending.run, args=(lambda: None,))
        thread.start()
        thread.join(0.1)
        assert not ending.requested.is_set()
    thread.join(5.0)
    assert ending.requested.is_set()


INSIDE_A_WAIT = """
import faulthandler, signal
from dsnb.wire.lifecycle import SignalEvent

faulthandler.dump_traceback_later(20, exit=True)
event = SignalEvent()
signal.signal(signal.SIGUSR1, lambda *_: event.set())
print("READY", flush=True)
with event._cond:  # where `wait` is when it looks at the flag
    signal.raise_signal(signal.SIGUSR1)
assert event.is_set()
"""


def test_a_signal_may_come_while_its_thread_holds_the_lock_of_the_event() -> None:
    with python_process(INSIDE_A_WAIT) as process:
        assert (process.wait_for_exit(), process.stderr) == (0, "")
