"""Puts the elements of several tasks into the order of their units of splits; see `pipeline/split_order`.

A pure core: no threads, I/O or clock.

Theory of operation. Each task sends its elements in the order of its units, which ascend, and a mark at the beginning
and at the end of each. One unit is *due*: the smallest that is not finished. The task that has it is served until the
unit ends; then the next unit is due. If no task has announced the unit that is due, a task that has announced no later
one may still get it. If there is no such task, the unit was lost, and the next one is due.

So each element has a place: its unit, and how many elements of the unit are before it. A reader that joins late gets
the marks of earlier units too, so it also knows how many elements are before it in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.unit_mark import UnitMark

TaskT = TypeVar("TaskT")


class UnitPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an element is in the order of an epoch.

    Attributes:
        unit: Its unit.
        before_in_unit: How many elements of the unit are before it.
        before: How many elements are before it in all, since the position at which the iteration began; None if that is
            not known, because a unit was lost.
    """

    unit: int = 0
    before_in_unit: int = 0
    before: int | None = 0


class _TaskUnits(msgspec.Struct):
    """What is known of a task: its elements that wait, and its units that are not finished."""

    slices: deque[FrameSlice] = msgspec.field(default_factory=deque)
    next_index: int = 0
    begins: dict[int, int] = msgspec.field(default_factory=dict)
    """For each unit: the index of its first element."""
    ends: dict[int, int | None] = msgspec.field(default_factory=dict)
    """For each unit: the index after its last element; None while that is unknown."""
    last_unit: int = -1

    def has(self, unit: int) -> bool:
        """Whether the next element that waits belongs to a unit that was announced."""
        end = self.ends[unit]
        return bool(self.slices) and (end is None or self.slices[0].index < end)

    def passed(self, unit: int) -> bool:
        """Whether a unit of which no element waits has ended, and all its elements were taken."""
        end = self.ends[unit]
        return end is not None and (bool(self.slices) or self.next_index >= end)

    def remove(self, unit: int) -> int:
        """Forget a unit; returns how many elements it had, or 0 if its end is unknown."""
        begin, end = self.begins.pop(unit), self.ends.pop(unit)
        return 0 if end is None else end - begin


class UnitOrder(Generic[TaskT]):
    """The elements that wait, and which of them is next.

    Args:
        is_over: Whether a task delivers nothing more.
        start: The place at which the iteration began.
    """

    def __init__(self, is_over: Callable[[TaskT], bool], start: UnitPlace = UnitPlace()) -> None:  # noqa: B008 - frozen
        self._is_over = is_over
        self.due = start.unit
        """The unit that is due."""
        self._before_due: int | None = -start.before_in_unit
        """How many elements are before the unit that is due; None if a unit was lost."""
        self._tasks: dict[TaskT, _TaskUnits] = {}
        self._task_of: dict[int, TaskT] = {}
        """Which task has a unit."""

    def add_task(self, task: TaskT) -> None:
        """Add a task, which may get the unit that is due; a known one stays as it is."""
        self._tasks.setdefault(task, _TaskUnits())

    def add(self, task: TaskT, piece: FrameSlice) -> None:
        """Add elements that arrived."""
        self._tasks.setdefault(task, _TaskUnits()).slices.append(piece)

    def mark(self, task: TaskT, mark: UnitMark) -> None:
        """Note where a unit begins or ends. Marks may be repeated: another worker may have taken the task over."""
        if mark.unit < self.due:
            return
        units = self._tasks.setdefault(task, _TaskUnits())
        for unit, end in units.ends.items():
            if unit < mark.unit and end is None:
                units.ends[unit] = mark.index
        units.begins.setdefault(mark.unit, mark.index - mark.skipped)
        if mark.ended:
            units.ends[mark.unit] = mark.index
        else:
            units.ends.setdefault(mark.unit, None)
        units.last_unit = max(units.last_unit, mark.unit)
        self._task_of[mark.unit] = task

    def ready(self) -> bool:
        """Whether an element is next."""
        return self._task_with_next() is not None

    def take(self) -> tuple[TaskT, FrameSlice, UnitPlace]:
        """Take the next elements, all from one unit, with the place of the first one. Requires `ready`."""
        task = self._task_with_next()
        assert task is not None
        units = self._tasks[task]
        piece, end = units.slices.popleft(), units.ends[self.due]
        if end is not None and end < piece.index + piece.count:
            count = end - piece.index
            units.slices.appendleft(_part(piece, count, piece.count))
            piece = _part(piece, 0, count)
        units.next_index = piece.index + piece.count
        in_unit = piece.index - units.begins[self.due]
        before = None if self._before_due is None else self._before_due + in_unit
        return task, piece, UnitPlace(unit=self.due, before_in_unit=in_unit, before=before)

    def clear(self) -> None:
        """Drop everything that waits; the same unit stays due."""
        self._tasks.clear()
        self._task_of.clear()

    def _task_with_next(self) -> TaskT | None:
        while True:
            task = self._task_of.get(self.due)
            if task is None:
                if not self._skip_lost_units():
                    return None
                continue
            units = self._tasks[task]
            if units.has(self.due):
                return task
            if not (units.passed(self.due) or self._is_over(task)):
                return None
            self._pass_unit(units, lost=not units.passed(self.due))

    def _pass_unit(self, units: _TaskUnits, *, lost: bool) -> None:
        count = units.remove(self.due)
        self._before_due = None if lost or self._before_due is None else self._before_due + count
        del self._task_of[self.due]
        self.due += 1

    def _skip_lost_units(self) -> bool:
        """Let the next unit that a task has be due; False if the one that is due may still come, or there is no other.

        The dispatcher gives units out in ascending order.
        """
        if not self._task_of or any(
            units.last_unit < self.due and not self._is_over(task) for task, units in self._tasks.items()
        ):
            return False
        self.due, self._before_due = min(self._task_of), None
        return True


def _part(piece: FrameSlice, first: int, end: int) -> FrameSlice:
    return replace(piece, index=piece.index + first, start=piece.start + first, count=end - first)
