from __future__ import annotations

import random

import numpy as np
import pytest

from dsnb.client.unit_order import UnitLocation, UnitOrder
from dsnb.elements.frame import Frame, frames_of
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.unit_mark import UnitMark
from tests.support.marks import slow

START = UnitLocation()


class Tasks:
    """Tasks "a", "b" and so on, and what comes of them in the order of their units."""

    def __init__(self, names: str, start: UnitLocation = START) -> None:
        self.over: set[str] = set()
        self.order: UnitOrder[str] = UnitOrder(self.over.__contains__, start)
        self.places: list[tuple[int, int, int | None]] = []
        """Unit, elements before it in the unit and in all, of each element that was taken."""
        for name in names:
            self.order.add_task(name)

    def begin(self, task: str, unit: int, index: int, skipped: int = 0, size: int = 1) -> None:
        self.order.mark(task, UnitMark(unit=unit, unit_end=unit + size, index=index, skipped=skipped))

    def end(self, task: str, unit: int, index: int, size: int = 1) -> None:
        self.order.mark(task, UnitMark(unit=unit, unit_end=unit + size, index=index, ended=True))

    def send(self, task: str, index: int, *values: int) -> None:
        (frame,) = frames_of(np.array(values), None)
        assert isinstance(frame, Frame)
        self.order.add(task, FrameSlice(frame, index, 0, len(values), 1))

    def taken(self) -> list[int]:
        """All that can be taken now."""
        found: list[int] = []
        while self.order.ready():
            _, piece, at = self.order.take()
            found += [int(value) for value in piece.elements()]
            self.places += [
                (at.unit, at.before_in_unit + number, None if at.before is None else at.before + number)
                for number in range(piece.count)
            ]
        return found


def test_elements_of_a_later_unit_wait_for_those_that_are_due() -> None:
    tasks = Tasks("ab")
    tasks.begin("b", 1, 0)
    tasks.send("b", 0, 10, 11)
    assert tasks.taken() == [], "unit 0 may still come"
    tasks.begin("a", 0, 0)
    tasks.send("a", 0, 0)
    assert tasks.taken() == [0]
    tasks.send("a", 1, 1)
    tasks.end("a", 0, 2)
    assert tasks.taken() == [1, 10, 11]


def test_a_frame_may_hold_several_units() -> None:
    tasks = Tasks("ab")
    for unit, index in ((0, 0), (2, 2), (4, 3)):
        tasks.begin("a", unit, index)
        tasks.end("a", unit, index + (2 if unit == 0 else 1))
    tasks.begin("b", 1, 0)
    tasks.end("b", 1, 1)
    tasks.begin("b", 3, 1)
    tasks.send("a", 0, 0, 1, 20, 40)
    tasks.send("b", 0, 10, 30)
    assert tasks.taken() == [0, 1, 10, 20, 30], "unit 3 may have more"
    tasks.end("b", 3, 2)
    assert tasks.taken() == [40]


def test_a_unit_without_elements_is_passed_over() -> None:
    tasks = Tasks("ab")
    tasks.begin("b", 1, 0)
    tasks.send("b", 0, 10)
    tasks.begin("a", 0, 0)
    assert tasks.taken() == []
    tasks.end("a", 0, 0)
    assert tasks.taken() == [10]


def test_a_unit_that_nobody_can_have_any_more_is_passed_over() -> None:
    tasks = Tasks("abc")
    tasks.begin("b", 1, 0)
    tasks.send("b", 0, 10)
    tasks.begin("c", 2, 0)
    tasks.send("c", 0, 20)
    assert tasks.taken() == [], "a may have unit 0"
    tasks.over.add("a")
    assert tasks.taken() == [10]
    tasks.over.add("b")
    assert tasks.taken() == [20]
    assert tasks.places == [(1, 0, None), (2, 0, None)], "how many elements unit 0 had is unknown"


def test_marks_of_a_worker_that_took_a_task_over_change_nothing() -> None:
    tasks = Tasks("ab")
    tasks.begin("a", 0, 0)
    tasks.send("a", 0, 0, 1)
    assert tasks.taken() == [0, 1]
    tasks.begin("b", 1, 0)
    tasks.send("b", 0, 10)
    tasks.begin("a", 0, 2, skipped=2)  # the new worker begins after what was consumed
    tasks.send("a", 2, 2)
    tasks.end("a", 0, 3)
    assert tasks.taken() == [2, 10]
    assert tasks.places == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3)]


def test_a_worker_that_took_a_task_over_may_make_one_unit_of_several() -> None:
    tasks = Tasks("ab")
    tasks.begin("a", 0, 0, size=4)
    tasks.end("a", 0, 2, size=4)
    tasks.begin("a", 4, 2, size=4)
    tasks.send("a", 0, 0, 1, 40)
    tasks.begin("b", 8, 0)
    tasks.send("b", 0, 80)
    assert tasks.taken() == [0, 1, 40]
    tasks.begin("a", 0, 3, skipped=3, size=8)  # the new worker makes splits 0 to 7 in one go
    tasks.send("a", 3, 41)
    assert tasks.taken() == [41]
    tasks.end("a", 0, 4, size=8)
    assert tasks.taken() == [80]
    assert tasks.places == [(0, 0, 0), (0, 1, 1), (4, 0, 2), (4, 1, 3), (8, 0, 4)]


def test_a_unit_made_of_several_that_nobody_had_heard_of_begins_where_the_last_one_ended() -> None:
    tasks = Tasks("a")
    tasks.begin("a", 0, 0)
    tasks.end("a", 0, 2)
    tasks.send("a", 0, 0, 1)
    assert tasks.taken() == [0, 1]
    tasks.begin("a", 0, 2, skipped=2, size=3)
    tasks.send("a", 2, 2, 3)
    assert tasks.taken() == [2, 3]
    assert tasks.places[2:] == [(1, 0, 2), (1, 1, 3)]


def test_places_count_from_the_position_at_which_the_iteration_began() -> None:
    tasks = Tasks("ab", UnitLocation(unit=3, unit_end=4, before_in_unit=5))
    tasks.begin("b", 4, 0)
    tasks.send("b", 0, 40)
    tasks.begin("a", 3, 0, skipped=5)
    tasks.send("a", 0, 35, 36)
    tasks.end("a", 3, 2)
    assert tasks.taken() == [35, 36, 40]
    assert tasks.places == [(3, 5, 0), (3, 6, 1), (4, 0, 2)]


def test_a_reader_that_comes_back_knows_how_many_elements_are_before_the_first_it_gets() -> None:
    tasks = Tasks("ab")
    for task, unit, index, end in (("a", 0, 0, 3), ("b", 1, 0, 4), ("a", 2, 3, 6)):
        tasks.begin(task, unit, index)
        tasks.end(task, unit, end)
    tasks.send("b", 2, 12, 13)  # what is before was consumed
    tasks.send("a", 3, 20, 21, 22)
    assert tasks.taken() == [12, 13, 20, 21, 22]
    assert tasks.places == [(1, 2, 5), (1, 3, 6), (2, 0, 7), (2, 1, 8), (2, 2, 9)]


def test_a_unit_whose_end_was_lost_with_its_worker_ends_where_the_next_one_begins() -> None:
    tasks = Tasks("ab")
    tasks.begin("a", 0, 0)
    tasks.send("a", 0, 0, 1)
    assert tasks.taken() == [0, 1]
    tasks.begin("b", 1, 0)
    tasks.send("b", 0, 10)
    tasks.begin("a", 2, 2)
    tasks.send("a", 2, 20)
    assert tasks.taken() == [10], "unit 1 may have more"
    tasks.end("b", 1, 1)
    assert tasks.taken() == [20]


def test_after_clearing_the_same_unit_is_due() -> None:
    tasks = Tasks("a")
    tasks.begin("a", 0, 0)
    tasks.send("a", 0, 0)
    tasks.end("a", 0, 1)
    tasks.begin("a", 1, 1)
    tasks.send("a", 1, 10, 11)
    assert tasks.taken() == [0, 10, 11]
    tasks.order.clear()
    for unit in (0, 1):
        tasks.begin("new", unit, unit)
        tasks.end("new", unit, 1 + 3 * unit)
    tasks.send("new", 3, 12)
    assert tasks.taken() == [12]


@pytest.mark.parametrize("seed", [seed if seed < 60 else slow(seed) for seed in range(200)])
def test_any_interleaving_of_the_tasks_gives_the_same_order(seed: int) -> None:
    draws = random.Random(seed)
    names = "abcd"[: draws.randint(1, 4)]
    tasks, expected = Tasks(names), list[int]()
    steps: dict[str, list[tuple[str, int, int]]] = {name: [] for name in names}
    heads = dict.fromkeys(names, 0)
    for unit in range(draws.randint(0, 12)):
        task = draws.choice(names)
        steps[task].append(("begin", unit, heads[task]))
        for _ in range(draws.choice([0, 0, 1, 3])):
            steps[task].append(("send", len(expected), heads[task]))
            expected.append(len(expected))
            heads[task] += 1
        steps[task].append(("end", unit, heads[task]))
    got: list[int] = []
    while any(steps.values()):
        task = draws.choice([name for name in names if steps[name]])
        kind, value, index = steps[task].pop(0)
        if kind == "send":
            tasks.send(task, index, value)
        else:
            getattr(tasks, kind)(task, value, index)
        if not steps[task]:
            tasks.over.add(task)
        got += tasks.taken()
    tasks.over.update(names)
    assert got + tasks.taken() == expected
    assert [before for *_, before in tasks.places] == expected
