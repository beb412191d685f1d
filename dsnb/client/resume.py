"""The bookmark of a distributed dataset: what a reading position has to know of a pass over a service.

Theory of operation. Each task's sequence can be had again (see `dispatcher/positions`); the order in which the tasks'
elements came to this reader cannot, it was the moment's. So the reader remembers it, as a list of turns: so many
elements of this task, then so many of that. Elements that are behind for good need not come again: the tasks begin
after them. Those that this process still holds, half a batch or the buffer of a shuffle, come again in the same turns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from dsnb.client.options import ReadOptions
from dsnb.dataclass import dataclass
from dsnb.errors import DsnbError, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.engine.bookmarks import no_position
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.wire.messages import PassPosition, ProviderPosition, SplitRun, TaskPosition

MOST_TURNS: Final = 1 << 16
"""Turns that are remembered; those before them are added up."""

T = TypeVar("T")


@dataclass(slots=True)
class Turn:
    """Elements of one task that came one after the other."""

    task_id: str
    incarnation: int
    count: int
    failed: bool = False


@dataclass(slots=True)
class Had:
    """How much of a task's sequence a reader had."""

    incarnation: int
    count: int = 0
    failed: bool = False

    def add(self, incarnation: int, count: int, *, failed: bool) -> None:
        if incarnation != self.incarnation:
            self.incarnation, self.count, self.failed = incarnation, 0, False
        self.count += count
        self.failed |= failed


class History:
    """What a reader had of each task, and in which turns. Used by the reader's thread and whoever asks for a position.

    Args:
        behind: Elements of the pass that were behind before this reader began.
    """

    def __init__(self, behind: int = 0) -> None:
        self.total = behind
        self._behind = behind
        self._base: dict[str, Had] = {}
        self._now: dict[str, Had] = {}
        self._turns: deque[Turn] = deque()
        self._others = False
        self._lock = threading.Lock()

    def add(self, task_id: str, incarnation: int, index: int, count: int, *, failed: bool = False) -> None:
        """Note elements that were handed on; `index` is the place of the first in the task's sequence."""
        with self._lock:
            now = self._now.get(task_id)
            if now is None:
                now = self._now[task_id] = Had(incarnation)
            self._others |= index != (now.count if now.incarnation == incarnation else 0)
            now.add(incarnation, count, failed=failed)
            self.total += count
            last = self._turns[-1] if self._turns else None
            if last is not None and (last.task_id, last.incarnation, last.failed) == (task_id, incarnation, failed):
                last.count += count
                return
            self._turns.append(Turn(task_id, incarnation, count, failed))
            if len(self._turns) > MOST_TURNS:
                first = self._turns.popleft()
                self._behind += first.count
                had = self._base.setdefault(first.task_id, Had(first.incarnation))
                had.add(first.incarnation, first.count, failed=first.failed)

    def cut(self, behind: int) -> tuple[dict[str, Had], list[Turn]]:
        """What was had of each task in the first `behind` elements, and the turns that came after those.

        Raises:
            FailedPreconditionError: other readers had elements of the pass, or too much is asked to be remembered.
        """
        with self._lock:
            if self._others:
                raise no_position(
                    "other readers of the job had elements of this pass",
                    "read it with one client, or let each have a pass of its own: leave job_name out, or make it "
                    "another one for each",
                )
            if behind < self._behind:
                raise no_position(
                    f"an operation behind `distribute` may hold elements from {MOST_TURNS:,} turns between workers ago",
                    "put the operation that mixes elements before `distribute`",
                )
            had = {task: Had(h.incarnation, h.count, h.failed) for task, h in self._base.items()}
            left, later = behind - self._behind, []
            for turn in self._turns:
                count = min(left, turn.count)
                left -= count
                if count:
                    of_task = had.setdefault(turn.task_id, Had(turn.incarnation))
                    of_task.add(turn.incarnation, count, failed=turn.failed)
                if turn.count > count:
                    later.append(Turn(turn.task_id, turn.incarnation, turn.count - count, turn.failed))
            return had, later


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A bookmark that was loaded.

    Attributes:
        behind: Elements of the pass that need not come again.
        turns: Place of a task in `position`, and how many elements of it come next.
    """

    repetition: int
    behind: int
    position: PassPosition
    turns: tuple[tuple[int, int], ...]


def mark_of(
    repetition: int, behind: int, had: dict[str, Had], later: list[Turn], over: AbstractSet[str], told: PassPosition
) -> dict[str, Any]:
    """The bookmark behind the first elements of a pass, with what the dispatcher told of its tasks.

    Raises:
        FailedPreconditionError: the pass cannot be had again.
    """
    if told.inexact:
        raise no_position(told.inexact)
    numbers = {task.task_id: number for number, task in enumerate(told.tasks)}
    known = {task.task_id: task.incarnation for task in told.tasks}
    if any(known.get(turn.task_id) != turn.incarnation for turn in later):
        raise no_position(
            "an operation behind `distribute` holds elements of a worker that was lost",
            "take the position again a few elements later",
        )
    return {
        "repetition": repetition,
        "behind": behind,
        "tasks": [_task(task, had.get(task.task_id), over=task.task_id in over) for task in told.tasks],
        "providers": [[provider.repetition, provider.next] for provider in told.providers],
        "shards": told.shards,
        "turns": [[numbers[turn.task_id], turn.count] for turn in later],
    }


def mark_of_beginning(repetition: int) -> dict[str, Any]:
    """The bookmark before the first element of a pass that was not joined."""
    return mark_of(repetition, 0, {}, [], set(), PassPosition())


def mark_of_end(repetition: int, elements: int) -> dict[str, Any]:
    """The bookmark behind a whole pass."""
    return {"repetition": repetition, "elements": elements}


def _task(task: TaskPosition, had: Had | None, *, over: bool) -> dict[str, Any]:
    mine = had if had is not None and had.incarnation == task.incarnation else Had(task.incarnation)
    return {
        "entropy": task.entropy,
        "skip": task.skip + mine.count,
        "failed": task.failed or mine.failed,
        "ended": task.ended or (over and not task.runs),  # with splits it may get more
        "shard": task.shard,
        "runs": [[run.provider, run.repetition, run.first, run.end] for run in task.runs],
    }


class Marks:
    """Makes the bookmarks of one pass.

    Args:
        repetition: Which pass of the dataset it is.
        behind: Elements that were behind before it began.
        on_end: Learns of the bookmark behind the whole pass, where another pass may follow in the same pipeline.
    """

    def __init__(self, repetition: int, behind: int, on_end: Callable[[Any], None] | None) -> None:
        self.history = History(behind)
        self._repetition = repetition
        self._on_end = on_end
        self._told: PassPosition | None = None

    def behind(
        self, count: int, ask: Callable[[], PassPosition], received: Mapping[str, int], *, ended: bool
    ) -> dict[str, Any]:
        """The bookmark behind the first elements.

        Args:
            count: How many elements are behind.
            ask: Asks the dispatcher.
            received: How many elements came of each task that has ended.
            ended: Whether the whole pass has.

        Raises:
            FailedPreconditionError: the pass cannot be had again.
        """
        if ended and count >= self.history.total:
            return mark_of_end(self._repetition, self.history.total)
        # In this order: what is told later covers what was known before, and not the other way round.
        had, later = self.history.cut(count)
        told = self._told or ask()
        over = {task for task, elements in received.items() if task in had and had[task].count == elements}
        return mark_of(self._repetition, count, had, later, over, told)

    def end(self, ask: Callable[[], PassPosition]) -> None:
        """Learn that the pass is over, while operations behind `repeat` may hold elements of it."""
        if self._on_end is not None:
            self._on_end(mark_of_end(self._repetition, self.history.total))
            with suppress(DsnbError):
                self._told = ask()


def loaded(mark: Any) -> Resumed:
    """A bookmark that `mark_of` made.

    Raises:
        InvalidArgumentError: it is damaged.
    """
    return _read(mark, _loaded)


def loaded_end(mark: Any) -> tuple[int, int] | None:
    """The pass and its elements of a bookmark that `mark_of_end` made; None if it is of a pass that goes on."""
    return _read(mark, lambda found: (found["repetition"] + 0, found["elements"] + 0) if "elements" in found else None)


def _loaded(mark: Any) -> Resumed:
    tasks = tuple(
        TaskPosition(
            entropy=task["entropy"],
            skip=task["skip"],
            failed=task["failed"],
            ended=task["ended"],
            shard=task["shard"],
            runs=tuple(SplitRun(provider=p, repetition=r, first=first, end=end) for p, r, first, end in task["runs"]),
        )
        for task in mark["tasks"]
    )
    providers = tuple(ProviderPosition(repetition=repetition, next=n) for repetition, n in mark["providers"])
    return Resumed(
        repetition=mark["repetition"],
        behind=mark["behind"],
        position=PassPosition(tasks=tasks, providers=providers, shards=mark["shards"]),
        turns=tuple((number + 0, count + 0) for number, count in mark["turns"]),
    )


def _read(mark: Any, read: Callable[[Any], T]) -> T:
    try:
        return read(mark)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            f"the reading position is damaged: what it says of the service cannot be read ({error!r})",
            did="nothing was begun",
            hint="pass what `state_dict()` returned, unchanged",
        ) from error


class PassedStage(Stage):
    """A pass of which everything is behind: there is nothing but its length.

    Args:
        name: The operation's.
        elements: How many there were.
    """

    one_to_one = True

    def __init__(self, name: str, elements: int) -> None:
        super().__init__(name)
        self._left = elements

    def skip(self, count: int) -> int:
        """Counted."""
        skipped = min(count, self._left)
        self._left -= skipped
        return skipped

    def produce(self, want: int) -> Run:
        """Nothing."""
        assert not self._left, "elements that are behind for good are wanted again"
        return []


def tasks_in_turn(resumed: Resumed, task_ids: list[str]) -> Iterator[tuple[str, int]]:
    """The turns of a resumed pass, by the ids that its tasks have now.

    Raises:
        FailedPreconditionError: the service did not make the tasks.
    """
    if len(task_ids) < len(resumed.position.tasks):
        raise FailedPreconditionError(
            f"the pass was to go on with {len(resumed.position.tasks)} tasks, and the service made {len(task_ids)}",
            did="nothing was read",
            hint="load the position again",
        )
    for number, count in resumed.turns:
        yield task_ids[number], count


def limits_of(options: ReadOptions, resumed: Resumed | None) -> ReadOptions:
    """The options, but no task may be kept from its turn by what another one has on its way."""
    if resumed is None or not resumed.turns or options.max_outstanding_requests is None:
        return options
    tasks = len(resumed.position.tasks)
    return replace(options, max_outstanding_requests=max(options.max_outstanding_requests, 2 * tasks))
