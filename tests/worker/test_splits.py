"""The feed of a task, asked for by a pipeline and answered by a real dispatcher core."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from dsnb.errors import UnavailableError
from dsnb.wire.messages import SplitsReply, SplitsRequest
from dsnb.worker.splits import DispatcherFeed
from tests.dispatcher.simulation import Service


class Dispatcher:
    """Answers the feed of the one task of a pass over sources of these lengths; `down` makes calls fail.

    `now` is the feed's clock.
    """

    def __init__(self, *counts: int, background: Executor | None = None) -> None:
        self.now = 0.0
        self.service = Service()
        worker = self.service.add_worker("w")
        self.client = self.service.join(self.service.register(*counts))
        self.task_id = self.service.task(worker).task_id
        self.wants: list[int] = []
        self.answers_left = math.inf
        """How many calls are answered before others fail."""
        self.down = False
        self.feed = DispatcherFeed(
            self.task_id, len(counts), self.answer, clock=lambda: self.now, background=background
        )

    def answer(self, request: SplitsRequest) -> SplitsReply:
        self.answers_left -= 1
        if self.down or self.answers_left < 0:
            raise UnavailableError("no server answers")
        self.wants.append(request.want)
        reply: SplitsReply = self.service.call(request)
        return reply


def splits(runs: Iterator[tuple[int, int]]) -> list[int]:
    return [split for first, end in runs for split in range(first, end)]


def test_all_splits_come_once_for_each_repetition() -> None:
    dispatcher = Dispatcher(100)
    for _ in range(3):
        assert splits(dispatcher.feed.open(0)) == list(range(100))


def test_sources_have_repetitions_of_their_own() -> None:
    dispatcher = Dispatcher(5, 8)
    assert splits(dispatcher.feed.open(0)) == list(range(5))
    assert splits(dispatcher.feed.open(0)) == list(range(5))
    assert splits(dispatcher.feed.open(1)) == list(range(8))


def test_the_end_stays_the_end() -> None:
    runs = Dispatcher(3).feed.open(0)
    assert splits(runs) == [0, 1, 2]
    assert next(runs, None) is None


def test_as_many_are_wanted_as_half_a_second_takes() -> None:
    dispatcher = Dispatcher(1_000_000)
    runs = dispatcher.feed.open(0)
    for _ in range(10):
        first, end = next(runs)
        dispatcher.now += (end - first) / 1024
    assert dispatcher.wants[0] == 1
    assert dispatcher.wants[-1] == 512


def test_what_is_wanted_grows_by_steps_so_that_one_lucky_moment_does_not_take_it_all() -> None:
    dispatcher = Dispatcher(1_000_000)
    runs = dispatcher.feed.open(0)
    for _ in range(4):
        next(runs)
    assert dispatcher.wants == [1, 4, 16, 64]


def test_slow_work_is_handed_out_one_by_one() -> None:
    dispatcher = Dispatcher(1000)
    for first, end in dispatcher.feed.open(0):
        dispatcher.now += 10.0 * (end - first)
    assert set(dispatcher.wants[1:]) == {1}


def test_a_call_that_failed_is_made_again_and_no_split_is_left_out() -> None:
    dispatcher = Dispatcher(100)
    runs = dispatcher.feed.open(0)
    had = splits(iter([next(runs)]))
    dispatcher.down = True
    for _ in range(2):
        with pytest.raises(UnavailableError):
            next(runs)
    dispatcher.down = False
    assert had + splits(runs) == list(range(100))


# ---- what is done


def test_a_split_is_done_when_the_elements_made_of_it_are_consumed() -> None:
    dispatcher = Dispatcher(40)
    runs = dispatcher.feed.open(0)
    count = sum(end - first for first, end in [next(runs)])
    assert dispatcher.feed.done(1000) == (0,), "it is being read"
    next(runs)
    assert dispatcher.feed.done(1000) == (0,), "its elements are on their way"
    dispatcher.feed.mark_produced(50)
    assert dispatcher.feed.done(49) == (0,)
    assert dispatcher.feed.done(50) == (count,)


def test_splits_are_counted_for_each_source() -> None:
    dispatcher = Dispatcher(3, 7)
    splits(dispatcher.feed.open(1))
    dispatcher.feed.mark_produced(7)
    splits(dispatcher.feed.open(0))
    dispatcher.feed.mark_produced(10)
    assert dispatcher.feed.done(9) == (0, 7)
    assert dispatcher.feed.done(10) == (3, 7)


def test_what_is_given_up_of_a_repetition_is_done_with_what_was_read_of_it() -> None:
    dispatcher = Dispatcher(100)
    for _ in range(2):
        next(dispatcher.feed.open(0))
    dispatcher.feed.mark_produced(5)
    assert dispatcher.feed.done(5) == (1,)
    dispatcher.feed.end(9)
    assert dispatcher.feed.done(9) == (2,)


def test_at_the_end_of_the_pipeline_all_that_was_given_is_done_when_all_is_consumed() -> None:
    dispatcher = Dispatcher(20)
    splits(dispatcher.feed.open(0))
    dispatcher.feed.end(20)
    dispatcher.feed.end(20)
    assert dispatcher.feed.done(19) != (20,)
    assert dispatcher.feed.done(20) == (20,)


class AtOnce(Executor):
    """Does the work when it is submitted."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future has it
            future.set_exception(error)
        return future


def ahead(dispatcher: Dispatcher, count: int, run_s: float) -> list[tuple[int, int]]:
    """The first runs of a task that asks ahead and takes so many seconds for each."""
    runs, found = dispatcher.feed.open(0), []
    for _ in range(count):
        found.append(next(runs))
        dispatcher.now += run_s
    return found


def looking_ahead(count: int) -> Dispatcher:
    dispatcher = Dispatcher(count, background=AtOnce())
    dispatcher.feed.limit_runs(0.05, 0)
    return dispatcher


def test_short_runs_are_requested_ahead_and_come_once() -> None:
    dispatcher = looking_ahead(10)
    runs = ahead(dispatcher, 4, 0.05)
    assert (runs, len(dispatcher.wants)) == ([(at, at + 1) for at in range(4)], 5)
    assert [(run.first, run.end) for run in dispatcher.feed.grants()] == [(3, 4), (4, 5)], "both are in its hands"
    unfinished = dispatcher.service.core.state.tasks[dispatcher.task_id].unfinished_splits.ranges()
    assert [(run.first, run.end) for run in unfinished] == [(0, 5)], "another worker would get it with the rest"


def test_long_runs_are_requested_when_they_are_needed() -> None:
    dispatcher = looking_ahead(10)
    ahead(dispatcher, 4, 0.2)
    assert len(dispatcher.wants) == 4


def test_runs_of_large_elements_are_as_short_as_their_bytes_ask_for() -> None:
    dispatcher = Dispatcher(1000)
    dispatcher.feed.limit_runs(0.05, 1000)
    runs = dispatcher.feed.open(0)
    lengths: list[int] = []
    for position in range(1, 7):
        first, end = next(runs)
        assert dispatcher.feed.bytes_of(5) == (500 if lengths else 0)
        dispatcher.feed.note_bytes(100 * (end - first))
        dispatcher.feed.mark_produced(position)
        lengths.append(end - first)
    assert lengths == [1, 4, 10, 10, 10, 10]


def test_a_request_that_failed_ahead_is_repeated() -> None:
    dispatcher = looking_ahead(10)
    runs = dispatcher.feed.open(0)
    next(runs)
    dispatcher.now += 0.05
    dispatcher.answers_left = 1
    assert next(runs) == (1, 2)
    dispatcher.answers_left = math.inf
    assert splits(runs) == list(range(2, 10))
