"""`prefetch`: the same elements, made ready while the reader works."""

from __future__ import annotations

import threading
import time

import pytest

from dsnb.pipeline.dataset import AUTOTUNE, Dataset
from dsnb.pipeline.engine.stage import reports
from tests.pipeline.driving import context, failing_at, outcomes, plain, run, values
from tests.pipeline.engine.test_look_ahead import threads
from tests.support.waiting import wait_for

SIZES = pytest.mark.parametrize("size", [0, 1, 3, AUTOTUNE])


@SIZES
@pytest.mark.parametrize("wants", [[1], [5], [1024]], ids=str)
def test_elements_and_errors_are_the_input_s(size: int, wants: list[int]) -> None:
    ds = Dataset.range(60).map(failing_at(0, 31)).prefetch(size)
    assert [plain(x) for x in run(ds, wants)] == ["RuntimeError" if x in {0, 31} else x for x in range(60)]


def test_the_function_runs_on_a_thread_of_dsnb_s_while_the_reader_does_something_else() -> None:
    seen: list[str] = []
    elements = iter(Dataset.range(10).map(lambda x: seen.append(threading.current_thread().name) or x).prefetch(4))
    next(elements)
    wait_for(lambda: len(seen) >= 4, what="the thread to run ahead without being asked")
    assert set(seen) == {"dsnb-prefetch(4)"}
    elements.close()


def test_nothing_starts_before_the_first_element_is_asked_for() -> None:
    elements = iter(Dataset.range(10).prefetch(4))
    assert threads() == []
    elements.close()


def test_a_size_of_zero_needs_no_thread() -> None:
    elements = iter(Dataset.range(10).prefetch(0))
    next(elements)
    assert threads() == []
    elements.close()


def test_prefetches_above_each_other_end_together_within_bounds() -> None:
    gate = threading.Event()
    entered = threading.Event()

    def slow(x: int) -> int:
        entered.set()
        gate.wait(30)
        return x

    ds = Dataset.range(10).map(slow).prefetch(1).map(slow).prefetch(1)
    elements = iter(ds)
    reader = threading.Thread(target=lambda: next(elements, None), daemon=True)
    reader.start()
    assert entered.wait(30)
    gate.set()
    reader.join(30)
    elements.close()
    wait_for(lambda: not threads(), what="all threads to end")


def test_the_report_shows_what_lies_ready() -> None:
    stage = Dataset.range(100).map(lambda x: time.sleep(0.002) or x).prefetch(6).operation.build(context())
    for _ in range(10):  # faster than they are made: it has to wait for some
        stage.pull(1)
    wait_for(lambda: next(reports(stage)).buffered >= 3, what="elements to lie ready")
    report = next(reports(stage))
    assert report.capacity == 6
    assert report.elements == 10
    assert report.wait_ns > 0
    stage.close()


def test_spec_and_length_are_the_input_s() -> None:
    ds = Dataset.range(5).prefetch(2)
    assert len(ds) == 5
    assert ds.element_spec == Dataset.range(5).element_spec


def test_errors_are_seen_through_it_by_a_loop_that_goes_on() -> None:
    assert len(outcomes(Dataset.range(9).map(failing_at(*range(9))).prefetch(2))) == 9
    assert values(Dataset.range(0).prefetch(2)) == []
