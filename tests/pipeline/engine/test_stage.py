"""What every stage promises: counting, errors in place, cancelling, closing once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.errors import CancelledError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Run, Stage, as_list, reports
from tests.pipeline.driving import context, drain
from tests.support.waiting import wait_for


class Source(Stage):
    def __init__(self, *runs: Any) -> None:
        super().__init__("source")
        self.runs = list(runs)
        self.released: list[int] = []

    def produce(self, want: int) -> Run:
        run = self.runs.pop(0) if self.runs else []
        if isinstance(run, Exception):
            raise run
        return run

    def release(self, unread: int) -> None:
        self.released.append(unread)


class Through(Stage):
    def produce(self, want: int) -> Run:
        return self.inputs[0].pull(want)


class OneToOne(Through):
    one_to_one = True


def test_pull_counts_elements_and_time() -> None:
    stage = Source([1, 2], [3])
    assert [stage.pull(2), stage.pull(2), stage.pull(2)] == [[1, 2], [3], []]
    assert stage.elements == 3
    assert stage.spent_ns > 0


def test_time_of_the_inputs_is_taken_off() -> None:
    source = Source([1])
    stage = Through("through", source)
    stage.pull(1)
    assert stage.own_ns() == stage.spent_ns - source.spent_ns


def test_a_pull_that_goes_on_is_counted_and_no_counter_goes_back() -> None:
    """A function may take minutes; a report must not show an idle worker, and then one that did it all in a moment."""
    gate = threading.Event()
    stage = Dataset.range(3).map(lambda x: gate.wait(30.0) and x).operation.build(context())
    thread = threading.Thread(target=stage.pull, args=(1,))
    thread.start()
    busy = [next(reports(stage)).busy_ns]
    wait_for(lambda: busy.append(next(reports(stage)).busy_ns) or busy[-1] > 20_000_000, what="the time to be counted")
    gate.set()
    thread.join()
    busy.append(next(reports(stage)).busy_ns)
    assert busy == sorted(busy)
    stage.close()


def test_waiting_for_splits_is_waiting_and_no_work() -> None:
    class Slow:
        refused = False

        def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
            time.sleep(0.05)  # what the dispatcher takes to answer
            yield 0, 1

        def repetition(self, provider: int) -> int:
            return 0

    stage = Dataset.range(1).repeat(2).operation.build(context(splits=Slow()))
    drain(stage)
    source = list(reports(stage))[-1]
    assert source.wait_ns >= 100_000_000
    assert source.busy_ns < 100_000_000
    stage.close()


def test_fail_after_delivers_first_and_raises_at_the_next_pull() -> None:
    stage = Source()
    assert stage.fail_after(ValueError("x"), [1]) == [1]
    with pytest.raises(ValueError, match="x"):
        stage.pull(1)
    assert stage.pull(1) == []


def test_fail_after_raises_at_once_if_there_is_nothing_to_deliver() -> None:
    with pytest.raises(ValueError, match="x"):
        Source().fail_after(ValueError("x"), [])


@pytest.mark.parametrize("through, passed_on", [(OneToOne, 2), (Through, 0)])
def test_unread_elements_count_as_never_pulled_as_far_as_that_can_be_told(through: type[Stage], passed_on: int) -> None:
    source = Source([1, 2, 3])
    stage = through("through", source)
    stage.pull(3)
    stage.close(2)
    stage.close(1)
    assert (stage.elements, source.released) == (1, [passed_on])


def test_inputs_are_closed_even_if_letting_go_fails() -> None:
    class Bad(Through):
        def release(self, unread: int) -> None:
            raise OSError("disk")

    source = Source()
    with pytest.raises(OSError, match="disk"):
        Bad("bad", source).close()
    assert source.released == [0]


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_pull_after_cancel_or_close_is_an_error_and_no_end(how: str) -> None:
    source = Source([1])
    stage = Through("through", source)
    getattr(stage, how)()
    for each in (stage, source):
        with pytest.raises(CancelledError):
            each.pull(1)


def test_a_stage_that_is_built_late_shares_the_fate_of_its_owner() -> None:
    owner, late, later = Source(), Source([1]), Source()
    owner.cancel()
    owner.adopt(late)
    with pytest.raises(CancelledError):
        late.pull(1)
    owner.close()
    owner.adopt(later)
    assert later.released == [0]


def test_counters_carry_on_over_all_inputs() -> None:
    def used() -> Stage:
        stage = Through("through", Source([1, 2]))
        stage.pull(2)
        return stage

    first, second = used(), used()
    before = [report.elements for report in reports(second)]
    second.continue_counters(first)
    assert before == [2, 2]
    assert [report.elements for report in reports(second)] == [4, 4]


def test_runs_become_lists_of_scalars_rows_or_text() -> None:
    assert as_list([1]) == [1]
    assert [type(x) for x in as_list(np.arange(2))] == [np.int64, np.int64]
    assert as_list(np.array([b"a"])) == [b"a"]
    assert type(as_list(np.array(["a"]))[0]) is str
