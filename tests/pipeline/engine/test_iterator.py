"""`iter(dataset)`: elements one by one, errors in their places, nothing left when it is dropped."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from dsnb.errors import CancelledError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.engine.stage import Run, Stage
from tests.pipeline.driving import failing_at, outcomes, plain
from tests.pipeline.engine.test_look_ahead import Counting, threads
from tests.support.waiting import wait_for


def test_it_is_an_iterator_that_ends_and_stays_ended() -> None:
    elements = iter(Dataset.range(2))
    assert iter(elements) is elements
    assert list(elements) == [0, 1]
    assert next(elements, "ended") == "ended"
    assert elements.closed


def test_an_error_stands_in_its_element_s_place_and_reading_goes_on() -> None:
    ds = Dataset.range(50).map(failing_at(0, 17, 18, 49))
    expected = ["RuntimeError" if x in {0, 17, 18, 49} else x for x in range(50)]
    assert [plain(x) for x in outcomes(ds)] == expected


def test_something_that_is_no_element_stands_in_its_place_too() -> None:
    ds = Dataset.range(5).map(lambda x: object() if x == 2 else x)
    assert [plain(x) for x in outcomes(ds)] == [0, 1, "InvalidArgumentError", 3, 4]


def test_the_first_element_does_not_wait_for_more() -> None:
    calls: list[int] = []
    elements = iter(Dataset.range(100).map(lambda x: calls.append(x) or x))
    next(elements)
    assert calls == [0]
    elements.close()


def test_the_longest_run_is_an_argument() -> None:
    wants: list[int] = []

    class Noting(Counting):
        def produce(self, want: int) -> Run:
            wants.append(want)
            return super().produce(want)

    assert len(list(ElementIterator(Noting(100), max_run_length=4))) == 100
    assert max(wants) == 4


def test_closing_tells_the_pipeline_what_was_not_read() -> None:
    stage = Counting(1000)
    elements = ElementIterator(stage)
    read = list(itertools.islice(elements, 10))
    given = stage.given
    elements.close()
    assert stage.closed_with == given - len(read)
    assert next(elements, "ended") == "ended"


def test_leaving_the_with_block_closes() -> None:
    stage = Counting(10)
    with ElementIterator(stage) as elements:
        next(elements)
    assert stage.closed_with is not None


def test_dropping_it_closes_at_once() -> None:
    stage = Counting(10)
    elements = ElementIterator(stage)
    next(elements)
    del elements
    assert stage.closed_with == 0


def test_the_end_of_the_data_closes_without_waiting_for_the_collector() -> None:
    elements = iter(Dataset.range(10).prefetch(2))
    assert len(list(elements)) == 10
    wait_for(lambda: not threads(), what="the thread to end")


def test_a_kept_traceback_does_not_keep_a_loop_s_iterator_open() -> None:
    ds = Dataset.range(10).map(failing_at(3)).prefetch(2)
    kept: list[BaseException] = []
    try:
        for _ in ds:
            pass
    except RuntimeError as error:
        kept.append(error)
    wait_for(lambda: not threads(), what="the thread to end although the error is kept")
    assert kept[0].__traceback__ is not None


def test_two_iterators_of_one_dataset_are_independent() -> None:
    ds = Dataset.range(3)
    first, second = iter(ds), iter(ds)
    assert [next(first), next(second), next(first), next(second)] == [0, 0, 1, 1]
    first.close()
    second.close()


def test_several_threads_share_one_iterator_without_loss() -> None:
    elements = iter(Dataset.range(5000).map(lambda x: x))
    found: list[list[Any]] = [[], [], []]
    readers = [threading.Thread(target=out.extend, args=(elements,)) for out in found]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)
    assert sorted(itertools.chain(*found)) == list(range(5000))


def test_closing_from_another_thread_ends_a_read_that_waits() -> None:
    gate = threading.Event()
    entered = threading.Event()

    def slow(x: int) -> int:
        entered.set()
        gate.wait(30)
        return x

    elements = iter(Dataset.range(5).map(slow).prefetch(1))
    found: list[str] = []

    def read() -> None:
        with pytest.raises(CancelledError):
            next(elements)
        found.append("cancelled")

    reader = threading.Thread(target=read)
    reader.start()
    assert entered.wait(30)
    elements.close()
    reader.join(10)
    assert found == ["cancelled"]
    gate.set()
    wait_for(lambda: not threads(), what="the thread to end")


def test_an_interrupt_in_user_code_loses_no_element() -> None:
    interrupted: list[int] = []

    def function(x: int) -> int:
        if x == 40 and not interrupted:
            interrupted.append(x)
            raise KeyboardInterrupt
        return x

    elements = iter(Dataset.range(100).map(function))
    out: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        out.extend(iter(elements.__next__, None))
    out.extend(elements)
    assert out == list(range(100))


def test_elements_are_numpy_and_arrays_are_read_only() -> None:
    element = next(iter(Dataset.range(1).map(lambda x: {"a": 1, "b": np.zeros(2), "c": "text"})))
    assert type(element["a"]) is np.int64
    assert not element["b"].flags.writeable
    assert type(element["c"]) is str


def test_reports_name_each_operation_with_the_last_one_first() -> None:
    elements = iter(Dataset.range(100).map(failing_at()).batch(10))
    list(elements)
    reports = elements.reports()
    assert [(report.name, report.depth, report.elements) for report in reports] == [
        ("batch(10)", 0, 10),
        ("map(picky)", 1, 100),
        ("range(100)", 2, 100),
    ]
    assert all(report.busy_ns >= 0 for report in reports)


def test_a_pipeline_is_collected_with_its_iterator() -> None:
    class Kept(Stage):
        def produce(self, want: int) -> Run:
            return [1]

    stage = Kept("kept")
    gone = weakref.ref(stage)
    elements = ElementIterator(stage)
    next(elements)
    del stage, elements
    gc.collect()
    assert gone() is None


class Withdrawn(Stage):
    """Counts to forty. What was pulled belongs to another reader when its user has had `at` elements, at some look."""

    def __init__(self, at: int, look: int) -> None:
        super().__init__("withdrawn")
        self.at, self.look = at, look
        self.given = self.had = 0

    def produce(self, want: int) -> list[int]:
        first, self.given = self.given, min(40, self.given + want)
        return list(range(first, self.given))

    def track_consumption(self, *, buffered: bool = False) -> Withdrawn:
        return self

    def consumed(self, elements: int, errors: int) -> None:
        self.had += elements

    def may_consume(self) -> bool:
        self.look -= self.had == self.at
        return self.had != self.at or self.look != 0


@pytest.mark.parametrize("look", [1, 2], ids=["in the midst of a run or behind it", "before the first of a run"])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 17, 31, 38])
def test_elements_that_belong_to_another_reader_by_now_are_left_out_and_reading_goes_on(
    at: int, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsnb.pipeline.engine.iterator._SLOW_LOOP_NS", 0)  # each element is told of
    stage = Withdrawn(at, look)
    got = list(ElementIterator(stage))
    assert got[:at] == list(range(at))
    assert got[at:] == list(range(40))[40 - len(got[at:]) :], "what comes behind the gap"
    assert stage.had == len(got)
    assert stage.given == 40, "reading went on to the end"


class ShortRuns(Withdrawn):
    """Gives its elements in runs of three, as a pipeline does whose elements take longer than the loop."""

    def produce(self, want: int) -> list[int]:
        return super().produce(min(want, 3))


def test_each_element_of_a_short_run_counts_as_consumed_at_once_however_fast_the_loop_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsnb.pipeline.engine.iterator._SLOW_LOOP_NS", 1 << 60)  # every loop is a fast one
    stage = ShortRuns(at=-1, look=0)
    assert [(element, stage.had) for element in ElementIterator(stage)] == [(n, n + 1) for n in range(40)]


class SlowlyReported(Withdrawn):
    """Gives a thousand elements at once; it takes longer to report one than a slow loop takes for one."""

    def __init__(self) -> None:
        super().__init__(at=-1, look=0)
        self.reports: list[int] = []

    def produce(self, want: int) -> list[int]:
        first, self.given = self.given, min(1000, self.given + want)
        return list(range(first, self.given))

    def consumed(self, elements: int, errors: int) -> None:
        super().consumed(elements, errors)
        self.reports.append(elements)
        until = time.perf_counter_ns() + 20_000
        while time.perf_counter_ns() < until:
            pass


def test_the_time_that_reports_take_does_not_make_a_loop_slow() -> None:
    stage = SlowlyReported()
    assert list(ElementIterator(stage)) == list(range(1000))
    assert stage.had == 1000
    assert max(stage.reports) > 1, "each element was reported although the loop is fast"
