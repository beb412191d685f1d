"""Several threads call a function: order, errors, bounds and the end are kept."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dsnb.errors import CancelledError
from dsnb.pipeline.engine.calls import UserFunction
from dsnb.pipeline.engine.parallel import TARGET_RUN_WORK_NS, ParallelCalls
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from tests.pipeline.driving import failing_at
from tests.pipeline.engine.test_look_ahead import Counting, threads
from tests.support.waiting import wait_for


def pool(stage: Counting, function: Any, count: int = 3, *, ordered: bool = True) -> ParallelCalls:
    return ParallelCalls(stage, UserFunction(function, "map(f)", keep_results=True), count, ordered=ordered)


def taken(calls: ParallelCalls) -> list[Any]:
    out: list[Any] = []
    while True:
        try:
            run = calls.take(4)
        except RuntimeError as error:
            out.append(str(error))
            continue
        if not len(run):
            assert not len(calls.take(1))
            calls.close_stage()
            return out
        out += run


def test_results_come_in_order_with_errors_in_their_places() -> None:
    assert taken(pool(Counting(200, bad=150), failing_at(0, 70, 199))) == [
        "0 is bad",
        *range(1, 70),
        "70 is bad",
        *range(71, 150),
        "150 is bad",
        *range(151, 199),
        "199 is bad",
    ]


def test_without_order_everything_comes_once() -> None:
    assert sorted(taken(pool(Counting(500), lambda x: x, ordered=False))) == list(range(500))


def test_without_order_a_slow_element_holds_nobody_back() -> None:
    gate = threading.Event()

    def slow_first(x: int) -> int:
        if x == 0:
            gate.wait(30)
        return x

    calls = pool(Counting(20), slow_first, 2, ordered=False)
    assert calls.take(1) == [1]
    gate.set()
    calls.close_stage()


def test_the_function_runs_on_as_many_threads_at_once_as_asked_for() -> None:
    barrier = threading.Barrier(3, timeout=30)
    calls = pool(Counting(3), lambda x: (barrier.wait(), x)[1])
    assert sorted(taken(calls)) == [0, 1, 2]


def test_few_elements_are_asked_for_ahead_of_a_slow_function() -> None:
    gate = threading.Event()
    stage = Counting(1000)
    calls = pool(stage, lambda x: (gate.wait(30), x)[1], 2)
    reader = threading.Thread(target=calls.take, args=(1,))
    reader.start()
    wait_for(lambda: stage.given == 2, what="each thread to have its first element")
    gate.set()
    reader.join(30)
    wait_for(lambda: calls.buffered_and_capacity()[0] > 0, what="results")
    assert stage.given < 1000
    calls.close_stage()


def test_after_stop_pulling_come_the_results_that_are_out_and_then_the_end() -> None:
    stage = Counting(100_000)
    calls = pool(stage, lambda x: x, 2)
    first = list(calls.take(1))
    calls.stop_pulling()
    rest = taken(calls)
    assert first + rest == list(range(len(rest) + 1))
    assert len(rest) + 1 == stage.given


def test_cancel_wakes_the_reader_and_closing_ends_the_threads() -> None:
    gate = threading.Event()
    stage = Counting(10)
    calls = pool(stage, lambda x: (gate.wait(30), x)[1], 2)
    found: list[str] = []

    def read() -> None:
        with pytest.raises(CancelledError):
            calls.take(1)
        found.append("cancelled")

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: stage.given == 2, what="both threads to be in the function")
    calls.cancel()
    reader.join(10)
    assert found == ["cancelled"]
    calls.close_stage()
    assert stage.closed_with is None  # the function has not let go of the threads
    gate.set()
    wait_for(lambda: stage.closed_with == 0, what="the last thread to close the input")
    wait_for(lambda: not threads(), what="the threads to end")


def test_work_is_counted_over_all_threads() -> None:
    calls = pool(Counting(300), lambda x: x)
    taken(calls)
    assert calls.elements == 300
    assert calls.work_ns > 0


def test_no_more_is_said_to_lie_ready_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were long because the function was quick are still there when it has become slow."""
    length = AdaptiveRunLength(target_ns=TARGET_RUN_WORK_NS)
    monkeypatch.setattr("dsnb.pipeline.engine.parallel.AdaptiveRunLength", lambda **_: length)
    calls = pool(Counting(10_000), lambda x: x)
    while calls.buffered_and_capacity()[0] < 200:
        assert len(calls.take(1)) == 1
    length.want = 1
    ready, room = calls.buffered_and_capacity()
    assert 0 < ready <= room
    calls.close_stage()
