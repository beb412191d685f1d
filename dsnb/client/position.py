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
from dsnb.pipeline.engine.bookmarks import no_position_error
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.wire.messages import IterationPosition, ProviderPosition, SplitRange, TaskPosition

MAX_READ_ORDER: Final = 1 << 16
"""Turns that are remembered; those before them are added up."""

T = TypeVar("T")


@dataclass(slots=True)
class ReadOrderEntry:
    """Elements of one task that came one after the other."""

    task_id: str
    incarnation: int
    count: int
    failed: bool = False


@dataclass(slots=True)
class TaskProgress:
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
        start: Elements of the pass that were behind before this reader began.
    """

    def __init__(self, start: int = 0) -> None:
        self.total = start
        self._order_start = start
        self._start_progress: dict[str, TaskProgress] = {}
        self._now: dict[str, TaskProgress] = {}
        self._read_order: deque[ReadOrderEntry] = deque()
        self._read_by_others = False
        self._lock = threading.Lock()

    def add(self, task_id: str, incarnation: int, index: int, count: int, *, failed: bool = False) -> None:
        """Note elements that were handed on; `index` is the place of the first in the task's sequence."""
        with self._lock:
            now = self._now.get(task_id)
            if now is None:
                now = self._now[task_id] = TaskProgress(incarnation)
            self._read_by_others |= index != (now.count if now.incarnation == incarnation else 0)
            now.add(incarnation, count, failed=failed)
            self.total += count
            last = self._read_order[-1] if self._read_order else None
            if last is not None and (last.task_id, last.incarnation, last.failed) == (task_id, incarnation, failed):
                last.count += count
                return
            self._read_order.append(ReadOrderEntry(task_id, incarnation, count, failed))
            if len(self._read_order) > MAX_READ_ORDER:
                first = self._read_order.popleft()
                self._order_start += first.count
                had = self._start_progress.setdefault(first.task_id, TaskProgress(first.incarnation))
                had.add(first.incarnation, first.count, failed=first.failed)

    def split_at(self, index: int) -> tuple[dict[str, TaskProgress], list[ReadOrderEntry]]:
        """What was had of each task in the first `index` elements, and the turns that came after those.

        Raises:
            FailedPreconditionError: other readers had elements of the pass, or too much is asked to be remembered.
        """
        with self._lock:
            if self._read_by_others:
                raise no_position_error(
                    "other readers of the job had elements of this pass",
                    "read it with one client, or let each have a pass of its own: leave job_name out, or make it "
                    "another one for each",
                )
            if index < self._order_start:
                raise no_position_error(
                    f"an operation behind `distribute` may hold elements from {MAX_READ_ORDER:,} turns between workers ago",
                    "put the operation that mixes elements before `distribute`",
                )
            progress = {
                task: TaskProgress(h.incarnation, h.count, h.failed) for task, h in self._start_progress.items()
            }
            left, later = index - self._order_start, []
            for turn in self._read_order:
                count = min(left, turn.count)
                left -= count
                if count:
                    of_task = progress.setdefault(turn.task_id, TaskProgress(turn.incarnation))
                    of_task.add(turn.incarnation, count, failed=turn.failed)
                if turn.count > count:
                    later.append(ReadOrderEntry(turn.task_id, turn.incarnation, turn.count - count, turn.failed))
            return progress, later


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """A bookmark that was loaded.

    Attributes:
        skippable: Elements of the pass that need not come again.
        read_order: Place of a task in `position`, and how many elements of it come next.
    """

    iteration: int
    skippable: int
    position: IterationPosition
    read_order: tuple[tuple[int, int], ...]


def encode_position(
    iteration: int,
    skippable: int,
    progress: dict[str, TaskProgress],
    read_order: list[ReadOrderEntry],
    ended_tasks: AbstractSet[str],
    pass_position: IterationPosition,
) -> dict[str, Any]:
    """The bookmark behind the first elements of a pass, with what the dispatcher told of its tasks.

    Raises:
        FailedPreconditionError: the pass cannot be had again.
    """
    if pass_position.inexact_reason:
        raise no_position_error(pass_position.inexact_reason)
    numbers = {task.task_id: number for number, task in enumerate(pass_position.tasks)}
    known = {task.task_id: task.incarnation for task in pass_position.tasks}
    if any(known.get(turn.task_id) != turn.incarnation for turn in read_order):
        raise no_position_error(
            "an operation behind `distribute` holds elements of a worker that was lost",
            "take the position again a few elements later",
        )
    return {
        "repetition": iteration,
        "behind": skippable,
        "tasks": [
            _encode_task(task, progress.get(task.task_id), ended=task.task_id in ended_tasks)
            for task in pass_position.tasks
        ],
        "providers": [[provider.repetition, provider.next] for provider in pass_position.providers],
        "shards": pass_position.num_shards,
        "turns": [[numbers[turn.task_id], turn.count] for turn in read_order],
    }


def encode_beginning(iteration: int) -> dict[str, Any]:
    """The bookmark before the first element of a pass that was not joined."""
    return encode_position(iteration, 0, {}, [], set(), IterationPosition())


def encode_end(iteration: int, elements: int) -> dict[str, Any]:
    """The bookmark behind a whole pass."""
    return {"repetition": iteration, "elements": elements}


def _encode_task(task: TaskPosition, progress: TaskProgress | None, *, ended: bool) -> dict[str, Any]:
    mine = (
        progress
        if progress is not None and progress.incarnation == task.incarnation
        else TaskProgress(task.incarnation)
    )
    return {
        "entropy": task.entropy,
        "skip": task.skip + mine.count,
        "failed": task.skipped_errors or mine.failed,
        "ended": task.ended or (ended and not task.splits),  # with splits it may get more
        "shard": task.shard,
        "runs": [[run.provider, run.repetition, run.first, run.end] for run in task.splits],
    }


class PositionTracker:
    """Makes the bookmarks of one pass.

    Args:
        iteration: Which pass of the dataset it is.
        start: Elements that were behind before it began.
        on_end: Learns of the bookmark behind the whole pass, where another pass may follow in the same pipeline.
    """

    def __init__(self, iteration: int, start: int, on_end: Callable[[Any], None] | None) -> None:
        self.history = History(start)
        self._iteration = iteration
        self._on_end = on_end
        self._pass_position: IterationPosition | None = None

    def position_after(
        self, count: int, fetch: Callable[[], IterationPosition], received: Mapping[str, int], *, ended: bool
    ) -> dict[str, Any]:
        """The bookmark behind the first elements.

        Args:
            count: How many elements are behind.
            fetch: Asks the dispatcher.
            received: How many elements came of each task that has ended.
            ended: Whether the whole pass has.

        Raises:
            FailedPreconditionError: the pass cannot be had again.
        """
        if ended and count >= self.history.total:
            return encode_end(self._iteration, self.history.total)
        # In this order: what is told later covers what was known before, and not the other way round.
        progress, read_order = self.history.split_at(count)
        pass_position = self._pass_position or fetch()
        ended_tasks = {
            task for task, elements in received.items() if task in progress and progress[task].count == elements
        }
        return encode_position(self._iteration, count, progress, read_order, ended_tasks, pass_position)

    def record_end(self, fetch: Callable[[], IterationPosition]) -> None:
        """Learn that the pass is over, while operations behind `repeat` may hold elements of it."""
        if self._on_end is not None:
            self._on_end(encode_end(self._iteration, self.history.total))
            with suppress(DsnbError):
                self._pass_position = fetch()


def decode_position(state: Any) -> StartPosition:
    """A bookmark that `encode_position` made.

    Raises:
        InvalidArgumentError: it is damaged.
    """
    return _decode(state, _decode_position)


def decode_end(state: Any) -> tuple[int, int] | None:
    """The pass and its elements of a bookmark that `encode_end` made; None if it is of a pass that goes on."""
    return _decode(
        state, lambda found: (found["repetition"] + 0, found["elements"] + 0) if "elements" in found else None
    )


def _decode_position(state: Any) -> StartPosition:
    tasks = tuple(
        TaskPosition(
            entropy=task["entropy"],
            skip=task["skip"],
            skipped_errors=task["failed"],
            ended=task["ended"],
            shard=task["shard"],
            splits=tuple(
                SplitRange(provider=p, repetition=r, first=first, end=end) for p, r, first, end in task["runs"]
            ),
        )
        for task in state["tasks"]
    )
    providers = tuple(ProviderPosition(repetition=repetition, next=n) for repetition, n in state["providers"])
    return StartPosition(
        iteration=state["repetition"],
        skippable=state["behind"],
        position=IterationPosition(tasks=tasks, providers=providers, num_shards=state["shards"]),
        read_order=tuple((number + 0, count + 0) for number, count in state["turns"]),
    )


def _decode(state: Any, decoder: Callable[[Any], T]) -> T:
    try:
        return decoder(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            f"the reading position is damaged: what it says of the service cannot be read ({error!r})",
            did="nothing was begun",
            hint="pass what `state_dict()` returned, unchanged",
        ) from error


class FinishedPassStage(Stage):
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


def read_order_of(start_position: StartPosition, task_ids: list[str]) -> Iterator[tuple[str, int]]:
    """The turns of a resumed pass, by the ids that its tasks have now.

    Raises:
        FailedPreconditionError: the service did not make the tasks.
    """
    if len(task_ids) < len(start_position.position.tasks):
        raise FailedPreconditionError(
            f"the pass was to go on with {len(start_position.position.tasks)} tasks, and the service made {len(task_ids)}",
            did="nothing was read",
            hint="load the position again",
        )
    for number, count in start_position.read_order:
        yield task_ids[number], count


def options_for_resuming(options: ReadOptions, start_position: StartPosition | None) -> ReadOptions:
    """The options, but no task may be kept from its turn by what another one has on its way."""
    if start_position is None or not start_position.read_order or options.max_outstanding_requests is None:
        return options
    tasks = len(start_position.position.tasks)
    return replace(options, max_outstanding_requests=max(options.max_outstanding_requests, 2 * tasks))
