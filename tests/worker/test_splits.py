"""The feed of a task, asked for by a pipeline and answered by a real dispatcher core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsnb.errors import UnavailableError
from dsnb.wire.messages import SplitsReply, SplitsRequest
from dsnb.worker.splits import DispatcherFeed
from tests.dispatcher.simulation import Service


class Dispatcher:
    """Answers the feed of the one task of a pass over sources of these lengths; `down` makes calls fail.

    `now` is the feed's clock.
    """

    def __init__(self, *counts: int) -> None:
        self.now = 0.0
        self.service = Service()
        worker = self.service.add_worker("w")
        self.client = self.service.join(self.service.register(*counts))
        self.task_id = self.service.task(worker).task_id
        self.wants: list[int] = []
        self.down = False
        self.feed = DispatcherFeed(self.task_id, len(counts), self.answer, clock=lambda: self.now)

    def answer(self, request: SplitsRequest) -> SplitsReply:
        if self.down:
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


def test_as_many_are_wanted_as_a_fifth_of_a_second_takes() -> None:
    dispatcher = Dispatcher(1_000_000)
    runs = dispatcher.feed.open(0)
    for _ in range(10):
        first, end = next(runs)
        dispatcher.now += (end - first) / 1024
    assert dispatcher.wants[0] == 1
    assert dispatcher.wants[-1] == 204


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
