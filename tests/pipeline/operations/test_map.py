"""`map`: serial, on threads, or whichever pays; the elements are the same."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import AUTOTUNE, Dataset
from dsnb.pipeline.engine.autotune import SerialTrial, TrialPauses
from dsnb.pipeline.engine.stage import reports
from tests.pipeline.driving import context, drain, failing_at, outcomes, plain, run, values
from tests.pipeline.engine.test_look_ahead import threads
from tests.support.waiting import wait_for


@pytest.mark.slow
@pytest.mark.parametrize("calls", [None, 1, 2, 3, AUTOTUNE])
@given(bad=st.sets(st.integers(0, 40)), wants=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_it_is_python_s_map_with_errors_in_their_places(calls: int | None, bad: set[int], wants: list[int]) -> None:
    ds = Dataset.range(41).map(failing_at(*bad), num_parallel_calls=calls)
    expected = ["RuntimeError" if x in bad else x for x in range(41)]
    assert [plain(x) for x in run(ds, wants)] == expected


def test_without_determinism_every_element_comes_once() -> None:
    ds = Dataset.range(3000).map(lambda x: x, num_parallel_calls=3, deterministic=False)
    assert sorted(values(ds)) == list(range(3000))


@pytest.mark.parametrize("calls", [None, 2])
def test_one_buffer_returned_again_and_again_gives_distinct_elements(calls: int | None) -> None:
    local = threading.local()

    def reuse(x: int) -> Any:
        if not hasattr(local, "buffer"):
            local.buffer = np.zeros(2)
        local.buffer[:] = x
        return {"x": local.buffer}

    assert values(Dataset.range(100).map(reuse, calls)) == [{"x": [x, x]} for x in range(100)]


def test_take_behind_a_map_calls_the_function_no_more_often_than_it_takes() -> None:
    calls: list[int] = []
    assert len(values(Dataset.range(100).map(lambda x: calls.append(x) or x).take(5))) == 5
    assert len(calls) == 5


def test_tuples_are_unpacked_and_dicts_are_not() -> None:
    pairs = Dataset.range(2).enumerate().map(lambda i, x: {"sum": i + x})
    assert values(pairs.map(lambda d: d["sum"])) == [0, 2]


def test_an_error_says_which_operation_and_where() -> None:
    (error,) = outcomes(Dataset.range(1).map(failing_at(0)))
    assert [note for note in error.__notes__ if note.startswith("in map(picky), ")]
    assert "driving.py:" in error.__notes__[0]


def test_a_short_function_stays_serial_with_autotune() -> None:
    def threads() -> set[str]:
        seen: set[str] = set()
        values(Dataset.range(20_000).map(lambda x: seen.add(threading.current_thread().name) or x, AUTOTUNE))
        return seen

    # On a busy machine a call that is held up looks like one that waits.
    assert any(threads() == {threading.current_thread().name} for _ in range(4))


def test_a_function_that_waits_gets_threads_with_autotune() -> None:
    seen: set[str] = set()

    def waiting(x: int) -> int:
        seen.add(threading.current_thread().name)
        time.sleep(0.002)  # what the function is about: time in which the processor is free
        return x

    assert values(Dataset.range(100).map(waiting, AUTOTUNE)) == list(range(100))
    assert len(seen) > 2


def test_threads_that_gain_nothing_are_given_up_with_autotune(monkeypatch: pytest.MonkeyPatch) -> None:
    one_at_a_time = threading.Lock()
    seen: list[str] = []

    def guarded(x: int) -> int:
        with one_at_a_time:
            seen.append(threading.current_thread().name)
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                pass
            return x

    class Misjudging(SerialTrial):
        """Finds calls of 0.1 ms, a tenth of what they take on threads that wait for each other, and wants two."""

        is_conclusive = True
        call_ns = 100_000.0

        @property
        def threads(self) -> int:
            return 2

    monkeypatch.setattr("dsnb.pipeline.operations.map.SerialTrial", Misjudging)
    stage = Dataset.range(400).map(guarded, AUTOTUNE).operation.build(context())
    assert drain(stage, [1]) == list(range(400))
    serially = {threading.current_thread().name}
    assert set(seen[:20]) != serially
    # On a busy machine the pause is over before the end, and they are tried again.
    assert any(set(seen[at : at + 20]) == serially for at in range(20, 381))
    stage.close()
    wait_for(lambda: not threads(), what="the threads to end")


def test_threads_that_once_seemed_to_gain_nothing_are_tried_again_with_autotune(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = [False]
    seen: list[str] = []

    def waiting(x: int) -> int:
        seen.append(threading.current_thread().name)
        time.sleep(0.002)
        return x

    class MisledOnce(SerialTrial):
        def gained(self, threads: int, calls: int, work_ns: int) -> bool | None:
            found = super().gained(threads, calls, work_ns)
            return wrong.pop() if found is not None and wrong else found

    monkeypatch.setattr("dsnb.pipeline.operations.map.SerialTrial", MisledOnce)
    monkeypatch.setattr("dsnb.pipeline.operations.map.TrialPauses", partial(TrialPauses, pause_ns=1_000_000))
    stage = Dataset.range(800).map(waiting, AUTOTUNE).operation.build(context())
    assert drain(stage, [1]) == list(range(800))
    assert not wrong
    assert threading.current_thread().name not in seen[-20:]
    stage.close()
    wait_for(lambda: not threads(), what="the threads to end")


def test_a_later_pass_keeps_what_was_found_out_about_threads() -> None:
    ds = Dataset.range(30).map(lambda x: time.sleep(0.002) or x, AUTOTUNE).repeat(2)
    stage = ds.operation.build(context())
    drain(stage, [1])
    assert stage.inputs[0].report(0).threads > 1
    stage.close()


def test_the_report_sums_the_work_of_all_threads() -> None:
    stage = Dataset.range(40).map(lambda x: time.sleep(0.001) or x, 4).operation.build(context())
    drain(stage)
    report, _ = reports(stage)
    assert (report.name, report.elements) == ("map(<lambda>)", 40)
    assert report.busy_ns >= 40 * 1_000_000
    assert report.wait_ns > 0
    assert report.capacity > 0
    stage.close()


def test_the_length_is_the_input_s_and_the_spec_is_unknown() -> None:
    ds = Dataset.range(5).map(lambda x: x)
    assert ds.cardinality() == 5
    assert ds.element_spec is None


def test_the_report_tells_how_many_threads_call_the_function() -> None:
    with iter(Dataset.range(100).map(lambda x: x, 3)) as elements:
        next(elements)
        assert [report.threads for report in elements.reports()] == [3, 0]
    with iter(Dataset.range(100).map(lambda x: x)) as elements:
        next(elements)
        assert [report.threads for report in elements.reports()] == [0, 0]


def test_a_slow_element_holds_back_none_that_is_ready_where_order_is_free_with_autotune() -> None:
    go_on = threading.Event()

    def first_is_slow(x: int) -> int:
        if x == 0:
            assert go_on.wait(60)
        return x

    with iter(Dataset.range(500).map(first_is_slow, AUTOTUNE, deterministic=False)) as elements:
        some = [int(next(elements)) for _ in range(100)]
        assert 0 not in some
        go_on.set()
        assert sorted([*some, *map(int, elements)]) == list(range(500))


def test_where_order_is_free_autotune_finds_out_as_well() -> None:
    short = Dataset.range(100_000).map(lambda x: sum(range(100)) and x, AUTOTUNE, deterministic=False)

    def threads() -> int:
        with iter(short) as elements:
            assert sorted(map(int, elements)) == list(range(100_000))
            return elements.reports()[0].threads

    assert 1 in (threads() for _ in range(4))  # on a busy machine a call that is held up looks like one that waits
    waiting = Dataset.range(60).map(lambda x: time.sleep(0.003) or x, AUTOTUNE, deterministic=False)
    with iter(waiting) as elements:
        some = [int(next(elements)) for _ in range(40)]
        assert elements.reports()[0].threads > 2
        assert sorted([*some, *map(int, elements)]) == list(range(60))
