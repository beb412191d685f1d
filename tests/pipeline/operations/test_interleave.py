"""`interleave`: blocks by turns in tf.data's order, read ahead on threads or not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import AUTOTUNE, Dataset
from dsnb.pipeline.engine.stage import reports
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from tests.pipeline.driving import context, failing_at, outcomes, plain, run, values
from tests.pipeline.engine.test_look_ahead import threads
from tests.support.waiting import wait_for

LENGTHS = st.lists(st.integers(0, 7), max_size=8)


def expected(lengths: Sequence[int], cycle: int, block: int) -> list[tuple[int, int]]:
    """The documented order, element by element."""
    waiting = [[(number, x) for x in range(length)] for number, length in enumerate(lengths)]
    places: list[Any] = [None] * cycle
    out: list[tuple[int, int]] = []
    turn = 0
    while waiting or any(place is not None for place in places):
        if places[turn] is None and waiting:
            places[turn] = waiting.pop(0)
        if places[turn] is not None:
            taken, places[turn] = places[turn][:block], places[turn][block:]
            out += taken
            if len(taken) < block:
                places[turn] = None
        turn = (turn + 1) % cycle
    return out


def interleaved(lengths: Sequence[int], cycle: int, block: int, calls: int | None = None, **settings: Any) -> Dataset:
    def numbered(number: int) -> Dataset:
        return Dataset.range(lengths[number]).map(lambda x: (number, x))

    return Dataset.range(len(lengths)).interleave(numbered, cycle, block, calls, **settings)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_the_order_is_the_documented_one_whatever_the_lengths_of_runs(
    lengths: list[int], cycle: int, block: int, wants: list[int]
) -> None:
    found = [plain(x) for x in run(interleaved(lengths, cycle, block), wants)]
    assert found == expected(lengths, cycle, block)


@pytest.mark.parametrize("calls", [1, 2, AUTOTUNE])
@pytest.mark.parametrize("lengths", [[3, 1, 0, 4, 2], [5] * 6, [0, 0, 3], []], ids=str)
def test_reading_ahead_keeps_the_order(lengths: list[int], calls: int) -> None:
    assert values(interleaved(lengths, 3, 2, calls)) == expected(lengths, 3, 2)


def test_without_determinism_every_element_comes_once() -> None:
    lengths = [30, 0, 7, 100, 3]
    found = values(interleaved(lengths, 3, 4, AUTOTUNE, deterministic=False))
    assert sorted(found) == [(number, x) for number, length in enumerate(lengths) for x in range(length)]


def test_without_determinism_a_slow_dataset_holds_nobody_back() -> None:
    gate = threading.Event()

    def maybe_slow(number: int) -> Dataset:
        return Dataset.range(3).map(lambda x: (gate.wait(30), x)[1] if number == 0 else x + 10)

    elements = iter(Dataset.range(2).interleave(maybe_slow, 2, 1, AUTOTUNE, deterministic=False))
    assert [int(next(elements)) for _ in range(3)] == [10, 11, 12]
    gate.set()
    assert [int(x) for x in elements] == [0, 1, 2]


def test_all_datasets_of_the_cycle_are_begun_at_once_when_read_ahead() -> None:
    barrier = threading.Barrier(3, timeout=30)
    ds = Dataset.range(3).interleave(lambda _: Dataset.range(1).map(lambda x: (barrier.wait(), x)[1]), 3, 1, 3)
    assert values(ds) == [0, 0, 0]


def test_the_default_cycle_is_the_same_on_every_machine() -> None:
    lengths = [2] * 20
    found = values(interleaved(lengths, None, None))  # type: ignore[arg-type]
    assert found == expected(lengths, 8, 1)


def test_no_dataset_is_opened_before_its_turn() -> None:
    opened: list[int] = []

    def noting(number: int) -> Dataset:
        opened.append(int(number))
        return Dataset.range(5)

    elements = iter(Dataset.range(10).interleave(noting, 4, 2))
    for _ in range(3):
        next(elements)
    assert opened == [0, 1]
    elements.close()


def test_no_more_is_asked_of_the_datasets_than_is_wanted() -> None:
    calls: list[int] = []
    ds = Dataset.range(3).interleave(lambda _: Dataset.range(50).map(lambda x: calls.append(x) or x), 3, 2).take(20)
    assert len(run(ds)) == 20
    assert len(calls) == 20


def test_errors_of_function_and_datasets_stand_in_their_places() -> None:
    picky = failing_at(1)
    ds = Dataset.range(3).interleave(lambda n: Dataset.range(picky(n) + 2).map(failing_at(1)), 2, 1)
    found = [plain(x) for x in outcomes(ds)]
    assert found == [0, "RuntimeError", 0, "RuntimeError", "RuntimeError", 2, 3]


@pytest.mark.slow
@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_errors_stand_in_their_places_in_whole_rounds_too(cycle: int, block: int, wants: list[int]) -> None:
    """Several elements of each dataset are asked for at once; an error among them waits for its turn."""

    def inner(number: int) -> Dataset:
        return Dataset.range(20 * number, 20 * number + 20).map(failing_at(3, 27, 28, 45))

    ds = Dataset.range(4).interleave(inner, cycle, block)
    one_by_one = [plain(x) for x in run(ds, [1])]
    assert one_by_one.count("RuntimeError") == 4
    assert [plain(x) for x in run(ds, wants)] == one_by_one


def test_without_determinism_buffers_grow_while_the_reader_waits() -> None:
    """Else each of many quick elements costs a hand-over between threads."""
    endless = Dataset.range(20_000).repeat()
    stage = (
        Dataset.range(4).interleave(lambda _: endless, 4, 1, AUTOTUNE, deterministic=False).operation.build(context())
    )

    def has_grown() -> bool:
        stage.pull(1024)
        return next(reports(stage)).capacity > 4 * 2

    wait_for(has_grown, what="room for more than two each", every=0.0)  # a pause would fill the buffers
    stage.close()


def test_closing_ends_the_threads_of_all_places() -> None:
    elements = iter(Dataset.range(5).interleave(lambda n: Dataset.range(10**6), 3, 1, 3))
    next(elements)
    elements.close()
    wait_for(lambda: not threads(), what="the threads to end")


def test_the_length_is_unknown() -> None:
    assert interleaved([1], 1, 1).cardinality() == UNKNOWN_CARDINALITY
