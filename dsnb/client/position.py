"""Reading positions of a distributed dataset: what it takes to resume an iteration of a job.

Theory of operation. Each task's sequence can be produced again (see `dispatcher/handlers/positions`). The order in
which the tasks' elements arrived at this reader cannot, for it depended on timing. So the reader records it, as a list
of entries: so many elements of this task, then so many of that task. Elements that are consumed for good need not come
again: the tasks start after them. Elements that this process still holds (half a batch, a shuffle buffer) are produced
again and delivered in the recorded order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from dsnb.client.options import ReadOptions
from dsnb.client.unit_order import UnitLocation
from dsnb.errors import DsnbError, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.engine.source_positions import no_position_error
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.wire.messages import IterationPosition, ProviderPosition, SplitRange, TaskPosition, UnitPosition

MAX_READ_ORDER: Final = 1 << 16
"""Entries of the read order that are kept; older ones are merged into counts per task."""

T = TypeVar("T")


class ReadOrderEntry(msgspec.Struct):
    """Consecutive elements of one task, in the order of reading."""

    task_id: str
    incarnation: int
    count: int
    failed: bool = False


class TaskProgress(msgspec.Struct):
    """How many elements of a task's sequence a reader has read."""

    incarnation: int
    count: int = 0
    failed: bool = False

    def add(self, incarnation: int, count: int, *, failed: bool) -> None:
        if incarnation != self.incarnation:
            self.incarnation, self.count, self.failed = incarnation, 0, False
        self.count += count
        self.failed |= failed


class History:
    """What a reader has read of each task, and in which order. Thread-safe.

    Args:
        start: Elements of the iteration that lay before this reader's start position.
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
        """Add elements that were delivered; `index` is the first one's index in the task's sequence."""
        with self._lock:
            now = self._now.get(task_id)
            if now is None:
                now = self._now[task_id] = TaskProgress(incarnation)
            # A gap in the indices: other readers of the job got the elements in between.
            self._read_by_others |= index != (now.count if now.incarnation == incarnation else 0)
            now.add(incarnation, count, failed=failed)
            self.total += count
            last = self._read_order[-1] if self._read_order else None
            if last is not None and (last.task_id, last.incarnation, last.failed) == (task_id, incarnation, failed):
                last.count += count
                return
            self._read_order.append(ReadOrderEntry(task_id, incarnation, count, failed))
            if len(self._read_order) > MAX_READ_ORDER:
                # Merge the oldest entry: positions before it can no longer be made.
                first = self._read_order.popleft()
                self._order_start += first.count
                had = self._start_progress.setdefault(first.task_id, TaskProgress(first.incarnation))
                had.add(first.incarnation, first.count, failed=first.failed)

    def split_at(self, index: int) -> tuple[dict[str, TaskProgress], list[ReadOrderEntry]]:
        """Return the progress of each task after the first `index` elements, and the read order after them.

        Raises:
            FailedPreconditionError: other readers read part of the iteration, or `index` lies before the recorded
                order.
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
                    f"an operation behind `distribute` may hold elements from {MAX_READ_ORDER:,} turns between workers "
                    "ago",
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


class UnitEntry(msgspec.Struct, frozen=True):
    """How many elements a reader had read when it began to read a unit of splits, and the location of the next one."""

    total: int
    location: UnitLocation


class UnitHistory:
    """Where a reader is that reads in the order of the splits; see `client/unit_order`. Thread-safe.

    Args:
        total: Elements that lay before its start position.
        location: The start position.
    """

    def __init__(self, total: int, location: UnitPosition) -> None:
        self.total = total
        start = UnitLocation(unit=location.unit, unit_end=location.unit_end, before_in_unit=location.skip)
        self._entries = deque([UnitEntry(total, start)])
        self._units_with_errors: set[int] = {location.unit} if location.skipped_errors else set()
        self._lock = threading.Lock()

    def add(self, location: UnitLocation, at: int, count: int, *, failed: bool) -> None:
        """Add elements of a unit that were delivered, from the one `at` elements after `location` on."""
        before_in_unit = location.before_in_unit + at
        with self._lock:
            last = self._entries[-1]
            expected = last.location.before_in_unit + self.total - last.total
            if (location.unit, location.unit_end, before_in_unit) != (
                last.location.unit,
                last.location.unit_end,
                expected,
            ):
                self._entries.append(UnitEntry(self.total, replace(location, before_in_unit=before_in_unit)))
                if len(self._entries) > MAX_READ_ORDER:
                    self._units_with_errors.discard(self._entries.popleft().location.unit)
            if failed:
                self._units_with_errors.add(location.unit)
            self.total += count

    def location_after(self, count: int) -> UnitPosition:
        """The location of the element after the first `count` elements.

        Raises:
            FailedPreconditionError: `count` lies before what was recorded.
        """
        with self._lock:
            entry = next((entry for entry in reversed(self._entries) if entry.total <= count), None)
            if entry is None:
                raise no_position_error(
                    f"an operation behind `distribute` may hold elements of more than {MAX_READ_ORDER:,} units of "
                    "splits",
                    "let it hold fewer elements",
                )
            unit, skip = entry.location.unit, entry.location.before_in_unit + count - entry.total
            errors = skip > 0 and unit in self._units_with_errors
            return UnitPosition(unit=unit, unit_end=entry.location.unit_end, skip=skip, skipped_errors=errors)


class StartPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded position at which a read starts.

    Attributes:
        iteration: Number of the iteration.
        skippable: Elements of the iteration that need not come again.
        position: The position of the iteration's tasks and split providers, for the dispatcher.
        read_order: Pairs of a task's index in `position` and how many of its elements come next.
        end: In a coordinated read: how many elements the iteration has; None if that was not known.
    """

    iteration: int
    skippable: int
    position: IterationPosition
    read_order: tuple[tuple[int, int], ...]
    end: int | None = None


def encode_position(
    iteration: int,
    skippable: int,
    progress: dict[str, TaskProgress],
    read_order: list[ReadOrderEntry],
    ended_tasks: AbstractSet[str],
    pass_position: IterationPosition,
) -> dict[str, Any]:
    """Encode the position after the first elements of an iteration, as plain data.

    Raises:
        FailedPreconditionError: the iteration cannot be reproduced.
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
        # Saved positions contain these keys: renaming one makes older positions unreadable.
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


def encode_rounds(
    iteration: int,
    count: int,
    elements: Mapping[str, int],
    to_come: AbstractSet[str],
    pass_position: IterationPosition,
) -> dict[str, Any]:
    """Encode the position after the first rounds of a coordinated read, as plain data.

    Args:
        iteration: Number of the iteration.
        count: How many rounds.
        elements: How many elements of each task are in them, in the order in which the tasks go on.
        to_come: The tasks of which further rounds are known.
        pass_position: The dispatcher's part of the position.

    Raises:
        FailedPreconditionError: the iteration cannot be reproduced.
    """
    if not count:
        return encode_beginning(iteration)
    known = {task.task_id: task for task in pass_position.tasks}
    known |= {task.task_id: task for task in pass_position.gone_tasks if task.task_id in to_come}
    if not known and not pass_position.providers:  # a position without any task would be the beginning
        known = {task.task_id: task for task in pass_position.gone_tasks}
    if not to_come <= known.keys():
        raise no_position_error(
            "rounds of a worker that is gone are still to come", "take the position again a few steps later"
        )
    order = [task for task in elements if task in known]
    ordered = tuple(known[task] for task in (*order, *(task for task in known if task not in elements)))
    progress = {task.task_id: TaskProgress(task.incarnation, elements.get(task.task_id, 0)) for task in ordered}
    encoded = encode_position(iteration, count, progress, [], set(), replace(pass_position, tasks=ordered))
    return {**encoded, "root": pass_position.entropy}


def encode_unit(iteration: int, skippable: int, location: UnitPosition, entropy: int) -> dict[str, Any]:
    """Encode a position in the order of the splits, as plain data. It does not depend on tasks or readers."""
    return {
        "repetition": iteration,
        "behind": skippable,
        "root": entropy,
        "unit": [location.unit, location.unit_end],
        "skip": location.skip,
        "failed": location.skipped_errors,
    }


def encode_beginning(iteration: int) -> dict[str, Any]:
    """Encode the position before the first element of an iteration that was not joined."""
    return encode_position(iteration, 0, {}, [], set(), IterationPosition())


def encode_end(iteration: int, elements: int) -> dict[str, Any]:
    """Encode the position at the end of an iteration."""
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
        "ended": task.ended or (ended and not task.splits),  # a task with splits may get more of them
        "shard": task.shard,
        "runs": [[run.provider, run.repetition, run.first, run.end] for run in task.splits],
    }


class SliceOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the elements of a frame slice come from.

    Attributes:
        task_id: Their task.
        incarnation: The first incarnation of the task's sequence.
        index: The index of the first element in the sequence.
        location: Its location, if elements come in the order of the splits.
    """

    task_id: str
    incarnation: int
    index: int
    location: UnitLocation | None = None


class PositionTracker:
    """Makes the positions of one iteration.

    Args:
        iteration: Number of the iteration.
        start: Elements of the iteration that lay before the start position.
        on_end: Called with the position at the end, if another pass may follow in the same pipeline.
    """

    def __init__(self, iteration: int, start: int, on_end: Callable[[Any], None] | None) -> None:
        self._history = History(start)
        self._iteration = iteration
        self._on_end = on_end
        self._pass_position: IterationPosition | None = None

    @property
    def total(self) -> int:
        """How many elements of the iteration were delivered, here or before the start position."""
        return self._history.total

    def add(self, origin: SliceOrigin, at: int, count: int, *, failed: bool = False) -> None:
        """Add elements of a frame slice that were delivered, from its element `at` on."""
        self._history.add(origin.task_id, origin.incarnation, origin.index + at, count, failed=failed)

    def position_after(
        self, count: int, fetch: Callable[[], IterationPosition], received: Mapping[str, int], *, ended: bool
    ) -> dict[str, Any]:
        """Return the position after the first `count` elements.

        Args:
            count: The number of elements.
            fetch: Asks the dispatcher for its part of the position.
            received: How many elements arrived of each ended task.
            ended: Whether the iteration is over.

        Raises:
            FailedPreconditionError: the iteration cannot be reproduced.
        """
        if ended and count >= self.total:
            return encode_end(self._iteration, self.total)
        return self._position_within(count, fetch, received)

    def _position_within(
        self, count: int, fetch: Callable[[], IterationPosition], received: Mapping[str, int]
    ) -> dict[str, Any]:
        # Split first, fetch second: the dispatcher's later answer covers every element of the earlier split.
        progress, read_order = self._history.split_at(count)
        pass_position = self._pass_position or fetch()
        ended_tasks = {
            task for task, elements in received.items() if task in progress and progress[task].count == elements
        }
        return encode_position(self._iteration, count, progress, read_order, ended_tasks, pass_position)

    def record_end(self, fetch: Callable[[], IterationPosition]) -> None:
        """Keep the final position: operations after `repeat` may hold elements after the dispatcher forgot the job."""
        if self._on_end is not None:
            self._on_end(encode_end(self._iteration, self.total))
            with suppress(DsnbError):
                self._pass_position = fetch()


class UnitPositionTracker(PositionTracker):
    """Makes the positions of an iteration that is read in the order of the splits.

    Args:
        iteration: Number of the iteration.
        start: Elements of the iteration that lay before the start position.
        location: The start position.
        on_end: Called with the position at the end, if another pass may follow in the same pipeline.
    """

    def __init__(
        self, iteration: int, start: int, location: UnitPosition, on_end: Callable[[Any], None] | None
    ) -> None:
        super().__init__(iteration, start, on_end)
        self._units = UnitHistory(start, location)

    @property
    def total(self) -> int:
        return self._units.total

    def add(self, origin: SliceOrigin, at: int, count: int, *, failed: bool = False) -> None:
        assert origin.location is not None
        self._units.add(origin.location, at, count, failed=failed)

    def _position_within(
        self, count: int, fetch: Callable[[], IterationPosition], received: Mapping[str, int]
    ) -> dict[str, Any]:
        del received
        location = self._units.location_after(count)
        self._pass_position = self._pass_position or fetch()
        if self._pass_position.inexact_reason:
            raise no_position_error(self._pass_position.inexact_reason)
        return encode_unit(self._iteration, count, location, self._pass_position.entropy)


def tracker_for(
    options: ReadOptions, iteration: int, start_position: StartPosition | None, on_end: Callable[[Any], None] | None
) -> PositionTracker:
    """Make the tracker of a read that began at a position, or at the beginning."""
    start = start_position.skippable if start_position is not None else 0
    if not options.ordered:
        return PositionTracker(iteration, start, on_end)
    location = start_position.position.unit if start_position is not None else None
    return UnitPositionTracker(iteration, start, location or UnitPosition(), on_end)


def decode_position(state: Any) -> StartPosition:
    """Decode what `encode_position` returned.

    Raises:
        InvalidArgumentError: the state is damaged.
    """
    return _decode(state, _decode_position)


def decode_end(state: Any) -> tuple[int, int] | None:
    """Decode what `encode_end` returned: iteration and number of elements. None for a position within an iteration."""
    return _decode(
        state, lambda found: (found["repetition"] + 0, found["elements"] + 0) if "elements" in found else None
    )


def _decode_position(state: Any) -> StartPosition:
    if "unit" in state:
        unit, unit_end = state["unit"]
        location = UnitPosition(
            unit=unit + 0, unit_end=unit_end + 0, skip=state["skip"] + 0, skipped_errors=bool(state["failed"])
        )
        return StartPosition(
            iteration=state["repetition"] + 0,
            skippable=state["behind"] + 0,
            position=IterationPosition(entropy=state["root"] + 0, unit=location),
            read_order=(),
        )
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
    rounds = state["behind"] + 0 if "root" in state else 0
    return StartPosition(
        iteration=state["repetition"],
        skippable=state["behind"],
        position=IterationPosition(
            tasks=tasks,
            providers=providers,
            num_shards=state["shards"],
            entropy=state.get("root", 0) + 0,
            rounds=rounds,
        ),
        read_order=tuple((number + 0, count + 0) for number, count in state["turns"]),
        end=state.get("end"),
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
    """An iteration that was read to its end: it delivers nothing and only knows its length.

    Args:
        name: Name of the operation.
        elements: How many elements the iteration had.
    """

    one_to_one = True

    def __init__(self, name: str, elements: int) -> None:
        super().__init__(name)
        self._left = elements

    def skip(self, count: int) -> int:
        skipped = min(count, self._left)
        self._left -= skipped
        return skipped

    def produce(self, want: int) -> Run:
        assert not self._left, "elements that are behind for good are wanted again"
        return []


def read_order_of(start_position: StartPosition, task_ids: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the read order of a resumed iteration, with the ids that its tasks have now.

    Raises:
        FailedPreconditionError: the service did not create the tasks.
    """
    if len(task_ids) < len(start_position.position.tasks):
        raise FailedPreconditionError(
            f"the pass was to continue with {len(start_position.position.tasks)} tasks, but the service created "
            f"{len(task_ids)}",
            did="nothing was read",
            hint="load the position again",
        )
    for number, count in start_position.read_order:
        yield task_ids[number], count


def options_for_resuming(options: ReadOptions, start_position: StartPosition | None) -> ReadOptions:
    """Return the options with enough credit for each task of a resumed read.

    A resumed read takes elements in the recorded order. With less credit than tasks, the task that is due might get
    none because others hold it.
    """
    if start_position is None or not start_position.read_order or options.max_outstanding_requests is None:
        return options
    tasks = len(start_position.position.tasks)
    return replace(options, max_outstanding_requests=max(options.max_outstanding_requests, 2 * tasks))
