"""`repeat`: pass after pass, each built anew, and no endless search for an element."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Run, Stage, reports
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, failing_at, outcomes, plain, run, values
from tests.pipeline.engine.test_look_ahead import threads
from tests.support.waiting import wait_for


@given(st.integers(0, 9), st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_a_list_times_a_number(count: int, times: int, wants: list[int]) -> None:
    ds = Dataset.range(count).repeat(times)
    assert run(ds, wants) == list(range(count)) * times
    assert ds.cardinality() == count * times


@pytest.mark.parametrize("forever", [None, -1])
def test_without_a_count_it_never_ends(forever: int | None) -> None:
    ds = Dataset.range(3).repeat(forever)
    assert [int(x) for x in islice(ds, 8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert ds.cardinality() == INFINITE_CARDINALITY


def test_repeats_nest() -> None:
    assert values(Dataset.range(2).repeat(2).concatenate(Dataset.range(1)).repeat(2)) == [0, 1, 0, 1, 0] * 2


@pytest.mark.parametrize(
    "empty", [Dataset.range(0), Dataset.range(5).filter(lambda x: False)], ids=["known", "unknown"]
)
def test_an_endless_repeat_of_nothing_ends(empty: Dataset) -> None:
    assert values(empty.repeat()) == []
    assert values(empty.repeat().repeat()) == []


def test_it_ends_when_a_later_pass_is_empty() -> None:
    passes = iter([2, 1, 0, 5])
    ds = Dataset.from_generator(lambda: iter(range(next(passes)))).repeat()
    assert values(ds) == [0, 1, 0]


def test_errors_come_in_every_pass() -> None:
    found = outcomes(Dataset.range(3).map(failing_at(1)).repeat(2))
    assert [plain(x) for x in found] == [0, "RuntimeError", 2] * 2


def test_a_pass_of_errors_alone_does_not_go_on_for_ever() -> None:
    assert [plain(x) for x in outcomes(Dataset.range(2).map(failing_at(0, 1)).repeat())] == ["RuntimeError"] * 2


def test_counters_grow_over_the_passes() -> None:
    stage = Dataset.range(4).map(lambda x: x).prefetch(2).repeat(3).operation.build(context())
    drain(stage)
    assert [(report.name, report.elements) for report in reports(stage)] == [
        ("repeat(3)", 12),
        ("prefetch(2)", 12),
        ("map(<lambda>)", 12),
        ("range(4)", 12),
    ]
    stage.close()


def test_threads_of_a_pass_end_with_it() -> None:
    elements = iter(Dataset.range(3).prefetch(1).repeat())
    list(islice(elements, 20))
    wait_for(lambda: len(threads()) <= 1, what="threads of earlier passes to end")
    elements.close()
    wait_for(lambda: not threads(), what="the last thread to end")


def test_closing_in_the_middle_closes_the_pass_at_hand() -> None:
    closed: list[int] = []

    def careful() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(1)

    elements = iter(Dataset.from_generator(careful).repeat())
    list(islice(elements, 13))
    elements.close()
    assert len(closed) == 2


class Sparse(Operation, frozen=True, kw_only=True):
    """A source like a service: some passes are empty."""

    passes: list[int] = msgspec.field(default_factory=list)

    def build(self, context: BuildContext) -> Stage:
        if not self.passes:
            raise StopAsyncIteration("the service is gone")
        return Once(self.passes.pop(0))


class Once(Stage):
    def __init__(self, count: int) -> None:
        super().__init__("sparse")
        self._rest = list(range(count))

    def produce(self, want: int) -> Run:
        run, self._rest = self._rest[:want], self._rest[want:]
        return run

    def shared_with_other_readers(self) -> bool:
        return True


def test_over_a_source_whose_passes_differ_an_endless_repeat_goes_on() -> None:
    ds = Dataset(Sparse(passes=[1, 0, 2, 0, 0])).map(lambda x: x).repeat()
    found = [plain(x) for x in run(ds)]
    assert found == [0, 0, 1, "StopAsyncIteration"]


def test_a_counted_repeat_counts_empty_passes() -> None:
    assert run(Dataset(Sparse(passes=[1, 0, 2, 9])).repeat(3)) == [0, 0, 1]


def test_a_pass_that_cannot_be_built_is_an_error_and_then_the_end() -> None:
    assert [plain(x) for x in run(Dataset(Sparse(passes=[1])).repeat())] == [0, "StopAsyncIteration"]


def test_tasks_that_share_splits_repeat_together() -> None:
    """Each element comes as often as there are passes, though a task finds some passes empty."""
    ds = Dataset.range(5).repeat(4)
    feed = Feed([provider.count for provider in split_providers(ds.operation)], piece=3)
    tasks = [ds.operation.build(context(splits=feed.task())) for _ in range(3)]
    found = [x for task in tasks for x in drain(task, [1])]
    assert sorted(found) == sorted(list(range(5)) * 4)


def test_a_task_that_is_continued_where_a_pass_ended_asks_for_the_rest_of_that_pass() -> None:
    """It was refused more splits of it, because its worker drained."""
    feed = Feed([2]).task()
    stage = Dataset.range(2).repeat(5).operation.build(context(splits=feed))
    assert [int(x) for _ in range(3) for x in stage.pull(1)] == [0, 1, 0]
    feed.refused = True
    assert [int(x) for x in drain(stage)] == [1], "it does not go on to passes of which it would get nothing"
    assert [stage.resume_point(count).counter for count in range(5)] == [0, 0, 1, 1, 1]


def test_an_endless_repeat_goes_on_where_other_tasks_had_the_splits_of_a_pass() -> None:
    ds = Dataset.range(4).repeat()
    feed = Feed([4], piece=4)
    greedy, late = (ds.operation.build(context(splits=feed.task())) for _ in range(2))
    assert len(greedy.pull(4)) == 4
    assert list(late.pull(4)) == [0, 1, 2, 3]  # of the second pass: the first was gone


def test_it_ends_where_splits_come_but_no_element() -> None:
    feed = Feed([4])
    ds = Dataset.range(4).filter(lambda x: False).repeat()
    assert drain(ds.operation.build(context(splits=feed.task()))) == []


def test_the_length_is_unknown_where_the_input_s_is() -> None:
    assert Dataset.range(3).filter(bool).repeat(2).cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.range(3).filter(bool).repeat(0).cardinality() == 0
    assert Dataset.range(3).filter(bool).repeat().cardinality() == INFINITE_CARDINALITY
