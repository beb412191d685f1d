"""Puts the elements of several tasks into the order of their units of splits; see `pipeline/split_order`.

A pure core: no threads, I/O or clock.

Theory of operation. Each task sends its elements in the order of its units, which ascend, and a mark at the beginning
and at the end of each. One unit is *due*: the one that begins with the first split that is not finished. The task that
has it is served until the unit ends; then the unit is due that begins with the next split. If no task has announced the
unit that is due, a task that has announced no later one may still get it. If there is no such task, splits were lost,
and the next unit that a task has is due.

A worker that takes a task over announces its unfinished units again, and may make one of several. Then the unit that is
due ends where the new one does.

So each element has a location: its unit, and how many elements of the unit are before it. A reader that joins late gets
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


class UnitLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where an element is in the order of an epoch.

    Attributes:
        unit: The first split of its unit.
        unit_end: The split after the unit's last one.
        before_in_unit: How many elements of the unit are before it.
        before: How many elements are before it in all, since the position at which the iteration began; None if that is
            not known, because splits were lost.
    """

    unit: int = 0
    unit_end: int = 0
    before_in_unit: int = 0
    before: int | None = 0


class _Unit(msgspec.Struct):
    """A unit that was announced and is not finished."""

    unit_end: int
    first_index: int
    """The index of its first element; negative if the task's sequence begins within the unit."""
    end_index: int | None = None
    """The index after its last element; None while that is unknown."""


class _TaskUnits(msgspec.Struct):
    """What is known of a task: its elements that wait, and its units that are not finished."""

    slices: deque[FrameSlice] = msgspec.field(default_factory=deque)
    next_index: int = 0
    units: dict[int, _Unit] = msgspec.field(default_factory=dict)
    """By the first split, ascending."""
    last_unit: int = -1
    last_end: int = 0
    """The index after the last unit that was passed."""

    def has(self, unit: _Unit) -> bool:
        """Whether the next element that waits belongs to the unit, which is the first one."""
        return bool(self.slices) and (unit.end_index is None or self.slices[0].index < unit.end_index)

    def passed(self, unit: _Unit) -> bool:
        """Whether the unit, of which no element waits, has ended, and all its elements were taken."""
        return unit.end_index is not None and (bool(self.slices) or self.next_index >= unit.end_index)

    def announce(self, unit: int, mark: UnitMark) -> list[int]:
        """Note that a unit begins; returns the units of which it is made, if these were announced before."""
        parts = [known for known in self.units if unit < known < mark.unit_end]
        for known in parts:
            del self.units[known]
        for first, earlier in self.units.items():
            if first < unit and earlier.end_index is None:
                earlier.unit_end, earlier.end_index = min(earlier.unit_end, unit), mark.index
        # If splits before the unit that is due were made again as well, the unit began where the last one ended.
        first_index = mark.index - mark.skipped if unit == mark.unit else self.last_end
        before = self.units.get(unit)
        self.units[unit] = _Unit(mark.unit_end, first_index if before is None else before.first_index)
        self.last_unit = max(self.last_unit, unit)
        return parts


class UnitOrder(Generic[TaskT]):
    """The elements that wait, and which of them is next.

    Args:
        is_over: Whether a task delivers nothing more.
        start: The location at which the iteration began.
    """

    def __init__(self, is_over: Callable[[TaskT], bool], start: UnitLocation = UnitLocation()) -> None:  # noqa: B008 - frozen
        self._is_over = is_over
        self.due = start.unit
        """The first split of the unit that is due."""
        self._before_due: int | None = -start.before_in_unit
        """How many elements are before the unit that is due; None if splits were lost."""
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
        if mark.unit_end <= self.due:
            return
        unit = max(mark.unit, self.due)
        units = self._tasks.setdefault(task, _TaskUnits())
        if not mark.ended or unit not in units.units:
            for part in units.announce(unit, mark):
                del self._task_of[part]
            self._task_of[unit] = task
        if mark.ended:
            units.units[unit].end_index = mark.index

    def ready(self) -> bool:
        """Whether an element is next."""
        return self._task_with_next() is not None

    def take(self) -> tuple[TaskT, FrameSlice, UnitLocation]:
        """Take the next elements, all from one unit, with the location of the first one. Requires `ready`."""
        task = self._task_with_next()
        assert task is not None
        units = self._tasks[task]
        piece, unit = units.slices.popleft(), units.units[self.due]
        if unit.end_index is not None and unit.end_index < piece.index + piece.count:
            count = unit.end_index - piece.index
            units.slices.appendleft(_part(piece, count, piece.count))
            piece = _part(piece, 0, count)
        units.next_index = piece.index + piece.count
        in_unit = piece.index - unit.first_index
        before = None if self._before_due is None else self._before_due + in_unit
        return task, piece, UnitLocation(unit=self.due, unit_end=unit.unit_end, before_in_unit=in_unit, before=before)

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
            unit = units.units[self.due]
            if units.has(unit):
                return task
            if not (units.passed(unit) or self._is_over(task)):
                return None
            self._pass_unit(units, unit)

    def _pass_unit(self, units: _TaskUnits, unit: _Unit) -> None:
        if unit.end_index is None or self._before_due is None:
            self._before_due = None
        else:
            self._before_due += unit.end_index - unit.first_index
            units.last_end = unit.end_index
        del units.units[self.due], self._task_of[self.due]
        self.due = unit.unit_end

    def _skip_lost_units(self) -> bool:
        """Skip from the due unit to the next announced one; False if the due one may still come, or there is no other.

        A task that has announced no later unit may still get the due one: units are assigned in ascending order.
        """
        if not self._task_of or any(
            units.last_unit < self.due and not self._is_over(task) for task, units in self._tasks.items()
        ):
            return False
        self.due, self._before_due = min(self._task_of), None
        return True


def _part(piece: FrameSlice, first: int, end: int) -> FrameSlice:
    return replace(piece, index=piece.index + first, start=piece.start + first, count=end - first)
