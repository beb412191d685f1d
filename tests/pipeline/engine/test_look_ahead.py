"""Look-ahead: a bounded number of elements made ready on a thread that ends when it is told to."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from dsnb.errors import CancelledError
from dsnb.pipeline.engine.look_ahead import LookAhead
from dsnb.pipeline.engine.stage import Run, Stage
from tests.support.leaks import was_reported
from tests.support.waiting import wait_for


class Counting(Stage):
    """Gives numbers; waits at `gate` if there is one, fails at `bad`."""

    def __init__(self, count: int, *, bad: int = -1, gate: threading.Event | None = None) -> None:
        super().__init__("counting")
        self.given = 0
        self.closed_with: int | None = None
        self._count = count
        self._bad = bad
        self._gate = gate

    def produce(self, want: int) -> Run:
        if self._gate is not None:
            self._gate.wait(30)
        first = self.given
        if first == self._bad:
            self.given += 1
            raise RuntimeError(f"{first} is bad")
        end = min(first + want, self._count)
        if first < self._bad < end:
            end = self._bad
        self.given = end
        return list(range(first, end))

    def release(self, unread: int) -> None:
        self.closed_with = unread


def threads() -> list[str]:
    """The names of our threads, without those of earlier tests that failed."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("dsnb-")]
    return [thread.name for thread in ours if not was_reported(thread)]


def taken(ahead: LookAhead, want: int = 3) -> list[Any]:
    out: list[Any] = []
    while True:
        try:
            run = ahead.take(want)
        except RuntimeError as error:
            out.append(str(error))
            continue
        if not len(run):
            return out
        assert len(run) <= want
        out += run


@pytest.mark.parametrize("capacity", [1, 2, 7, None])
def test_everything_comes_in_order_and_errors_come_in_their_places(capacity: int | None) -> None:
    stage = Counting(50, bad=20)
    ahead = LookAhead(stage, "test", capacity)
    assert taken(ahead) == [*range(20), "20 is bad", *range(21, 50)]
    ahead.close_stage(0)


def test_no_thread_starts_before_the_first_take_and_it_is_named_and_a_daemon() -> None:
    ahead = LookAhead(Counting(5), "prefetch(2)", 2)
    assert threads() == []
    gate = threading.Event()
    ahead = LookAhead(Counting(5, gate=gate), "prefetch(2)", 2)
    ahead.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "dsnb-prefetch(2)")
    assert thread.daemon
    gate.set()
    ahead.close_stage(0)


def test_no_more_than_the_capacity_is_made_ready() -> None:
    stage = Counting(100)
    ahead = LookAhead(stage, "test", 5)
    ahead.start()
    wait_for(lambda: ahead.buffered == 5, what="the buffer to be full")
    assert stage.given == 5
    assert [len(ahead.take(5)), stage.given <= 10] == [1, True]  # the first run was of one
    ahead.close_stage(0)


def test_a_full_buffer_of_cheap_elements_is_filled_up_when_half_of_it_is_free() -> None:
    stage = Counting(100)
    ahead = LookAhead(stage, "test", 8)
    ahead.start()
    wait_for(lambda: ahead.buffered == 8, what="the buffer to be full")
    ahead.take(1)
    assert stage.given == 8
    while ahead.buffered > 4:
        ahead.take(1)
    wait_for(lambda: ahead.buffered == 8, what="the buffer to be full again")
    ahead.close_stage(0)


def test_closing_ends_the_thread_and_tells_the_stage_what_was_not_read() -> None:
    stage = Counting(100)
    ahead = LookAhead(stage, "test", 5)
    ahead.start()
    wait_for(lambda: ahead.buffered == 5, what="the buffer to be full")
    ahead.close_stage(2)
    assert stage.closed_with == 7
    wait_for(lambda: not threads(), what="the thread to end")


def test_a_reader_that_waits_is_woken_by_cancel() -> None:
    gate = threading.Event()
    ahead = LookAhead(Counting(5, gate=gate), "test", 2)
    found: list[BaseException] = []

    def read() -> None:
        try:
            ahead.take(1)
        except CancelledError as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(threads, what="the look-ahead to start")
    ahead.cancel()
    reader.join(10)
    assert len(found) == 1
    gate.set()
    ahead.close_stage(0)


def test_a_thread_in_user_code_is_left_behind_and_closes_the_stage_later() -> None:
    gate, entered = threading.Event(), threading.Event()

    class Entered(Counting):
        def produce(self, want: int) -> Run:
            entered.set()
            return super().produce(want)

    stage = Entered(5, gate=gate)
    ahead = LookAhead(stage, "test", 2)
    ahead.start()
    assert entered.wait(30)
    ahead.close_stage(0)
    assert stage.closed_with is None
    gate.set()
    wait_for(lambda: stage.closed_with == 0, what="the thread to close the stage")


def test_without_a_capacity_it_doubles_while_the_reader_has_to_wait() -> None:
    gates = threading.Semaphore(0)

    class Slow(Counting):
        def produce(self, want: int) -> Run:
            gates.acquire(timeout=30)
            return super().produce(1)

    ahead = LookAhead(Slow(100), "test")
    first = ahead.capacity
    for _ in range(3):
        waiting = threading.Timer(0.02, gates.release)
        waiting.start()
        ahead.take(1)
        waiting.join()
    assert ahead.capacity > first
    assert ahead.wait_ns > 0
    gates.release(100)
    ahead.close_stage(0)


def test_large_elements_keep_the_buffer_small() -> None:
    class Large(Stage):
        def produce(self, want: int) -> Run:
            return [np.broadcast_to(np.zeros(1, np.uint8), (40 << 20,))]

    ahead = LookAhead(Large("large"), "test")
    for _ in range(20):
        ahead.take(1)
    assert ahead.capacity == 2
    ahead.close_stage(0)


def test_errors_that_nobody_saw_are_no_elements_that_nobody_saw() -> None:
    stage = Counting(10, bad=3)
    ahead = LookAhead(stage, "errors", capacity=6)
    assert len(ahead.take(1)) == 1
    wait_for(lambda: ahead.buffered >= 5, what="elements before and behind the error")
    ahead.close_stage(0)
    assert stage.closed_with == stage.given - 2, "all that was pulled, but the first element and the error"
    assert stage.elements == 1
