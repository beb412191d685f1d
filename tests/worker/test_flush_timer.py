from __future__ import annotations

import threading
import time

from dsnb.worker.producer import FlushTimer
from tests.support.waiting import wait_for


class Chore:
    """Something to do so many times in a row, whenever it is begun."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.done: list[float] = []

    def act(self) -> bool:
        self.done.append(time.monotonic())
        return len(self.done) % self.times != 0


def test_it_acts_a_while_after_it_was_told_and_not_before() -> None:
    chore = Chore(1)
    overdue = FlushTimer("overdue", 0.05, chore.act)
    began = time.monotonic()
    overdue.arm()
    wait_for(lambda: chore.done, what="the chore")
    assert chore.done[0] - began >= 0.05
    overdue.end()
    assert len(chore.done) == 1


def test_it_acts_again_as_long_as_there_is_something_to_do() -> None:
    chore = Chore(3)
    overdue = FlushTimer("overdue", 0.01, chore.act)
    overdue.arm()
    wait_for(lambda: len(chore.done) == 3, what="three chores")
    overdue.arm()
    wait_for(lambda: len(chore.done) == 6, what="three more")
    overdue.end()


def test_a_thread_is_made_when_it_is_needed_and_ends_when_it_is_not() -> None:
    never = FlushTimer("never", 0.01, Chore(1).act)
    never.end()
    assert never.ident is None
    told = FlushTimer("told", 30.0, Chore(1).act)
    told.arm()
    assert any(thread is told for thread in threading.enumerate())
    began = time.monotonic()
    told.end()
    assert time.monotonic() - began < 5.0, "it waited for its time"
    assert not told.is_alive()
