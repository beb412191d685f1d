"""Where all tasks of one reader put what they deliver, and where the reader waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dsnb.client.flow_control import CreditAccount
from dsnb.wire.messages import ClientUpdate, IndexRange, TaskHolding, TaskInfo
from dsnb.wire.poller import Poller
from dsnb.wire.ranges import split_ranges
from dsnb.wire.transfer.protocol import FrameSlice, ReadHandle, Sink

INITIAL_MAX_BYTES = 128 << 10
"""Bytes that a task may have on its way at first; doubled when the reader starves."""

_MIN_SLICES_ON_THE_WAY = 8
"""Pieces that a window over gRPC grows to hold while its reader starves: only what the worker may send can wait there
for a late reader, and go together."""

_POLL_EVERY = 16
"""Pieces after which a reader looks for more at the latest: they may be another task's."""


_MOST_RANGES: Final = 1 << 16
"""Ranges of a task that are remembered. Most tasks have one; readers that share a task have one for each piece."""


class TaskRead:
    """A reader's side of one task: its account, its reading, and what came of it. A `Sink` for its pieces."""

    def __init__(self, inbox: Inbox, info: TaskInfo, share_bytes: int) -> None:
        self.info = info
        self.share_bytes = share_bytes
        self.max_bytes = min(share_bytes, INITIAL_MAX_BYTES)
        self.account = CreditAccount()
        self.connection: ReadHandle | None = None
        self.transfer = ""
        """How it was read last."""
        self.shared_memory_refusal = ""
        """Why shared memory is out of the question, if it is."""
        self.retry_at = 0.0
        self.attempts = 0
        self.given_up = False
        """Whether it ended for this reader by an error, and not by its own word."""
        self.last_sent_counters: tuple[int, ...] = ()
        """What the worker knows of a consumer of a coordinated read."""
        self.acked = 0
        """Up to where the worker was told what is consumed."""
        self.acked_dequeued = 0
        self.unacked_bytes = 0
        self.buffered_bytes = 0
        self.last_slice_bytes = 0
        """Of the piece that came last."""
        self.was_full = False
        """Whether as much as may be was on its way, since `max_bytes` was last raised."""
        self.damaged_in_a_row = 0
        """How many messages arrived damaged since the last that did not."""
        self.received_ranges = ReceivedRanges()
        """What arrived of the task's present sequence."""
        self.consumed_cell: memoryview | None = None
        """Where the worker looks up what was consumed if this process dies; None where messages have to tell."""
        self._inbox = inbox

    @property
    def unconsumed(self) -> int:
        """Elements of the task that this reader has and did not consume."""
        return self.account.received - self.account.consumed

    def holding(self) -> TaskHolding:
        """What this reader consumed of the task, and what it has of it to consume; under the inbox's lock."""
        consumed, held = self.received_ranges.split(self.unconsumed)
        return TaskHolding(
            task_id=self.info.task_id,
            incarnation=self.info.incarnation,
            received=self.account.received,
            consumed=_index_ranges((first, end) for first, end in consumed if end > self.info.needed_from),
            held=_index_ranges(held),
            unacked=self.account.consumed - self.acked if self.transfer == "grpc" else 0,  # others look it up
        )

    def count_bytes(self, nbytes: int) -> None:
        """Count bytes that arrived."""
        self.buffered_bytes += nbytes
        self.last_slice_bytes = nbytes
        # Half is taken for full: a piece more would not fit, or was on its way when the reader consumed. Where only few
        # pieces have room, what is on its way cannot be told here from what the worker waits to send.
        few = self.transfer == "grpc" and _MIN_SLICES_ON_THE_WAY * nbytes >= self.max_bytes
        self.was_full |= 2 * self.buffered_bytes >= self.max_bytes or few

    def sink(self) -> TaskSink:
        """A sink for one reading; what an earlier one still says is not heard."""
        return TaskSink(self, self._inbox)


class ReceivedRanges:
    """The elements of a task that arrived, as ranges in the order of arrival."""

    def __init__(self) -> None:
        self._ranges: deque[list[int]] = deque(maxlen=_MOST_RANGES)

    def add(self, first: int, count: int) -> None:
        """Note elements that arrived."""
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[1] == first:
            last[1] += count
        else:
            self._ranges.append([first, first + count])

    def split(self, held: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """All but the last `held` elements, and those, each in the order of arrival."""
        listed = [(first, end) for first, end in self._ranges]
        return split_ranges(listed, sum(end - first for first, end in listed) - held)

    def clear(self) -> None:
        """Begin anew: the task's elements are numbered from 0 again."""
        self._ranges.clear()


def _index_ranges(pairs: Iterable[tuple[int, int]]) -> tuple[IndexRange, ...]:
    return tuple(IndexRange(first=first, end=end) for first, end in pairs)


class TaskSink(Sink):
    """Takes what one reading delivers."""

    def __init__(self, task_read: TaskRead, inbox: Inbox) -> None:
        self.task_read = task_read
        self._inbox = inbox
        self.current = True

    @property
    def poller(self) -> Poller | None:
        """Who listens for it, where that is the thread that takes the pieces."""
        return self._inbox.poller

    def deliver(self, frame_slice: FrameSlice) -> None:
        self.deliver_all((frame_slice,))

    def deliver_all(self, slices: Sequence[FrameSlice]) -> None:
        """Take what comes together. Nothing is no sign of life: a task that is idle may lose its credit to another."""
        with self._inbox.lock:
            if self.current and slices:
                account = self.task_read.account
                account.active_at = time.monotonic()
                account.ended = False  # what another reader left may come after the end
                self.task_read.damaged_in_a_row = 0
                for piece in slices:
                    account.received += piece.count
                    self.task_read.received_ranges.add(piece.index, piece.count)
                    self.task_read.count_bytes(piece.nbytes // piece.count * piece.count)
                    self._inbox.put(self.task_read, piece)
                self._inbox.notify()

    def end(self) -> None:
        self._update_account(lambda account: setattr(account, "ended", True))

    def recalled(self, granted: int) -> None:
        def update(account: CreditAccount) -> None:
            account.granted = max(granted, account.received)
            account.recalling = False

        self._update_account(update)

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        with self._inbox.lock:
            if self.current:
                self._inbox.progress(self.task_read, complete_rounds, oldest_round)

    def fail(self, error: Exception) -> None:
        with self._inbox.lock:
            if self.current:
                self.current = False
                self._inbox.failed.append((self, error))
                self._inbox.notify()

    def _update_account(self, change: Callable[[CreditAccount], None]) -> None:
        with self._inbox.lock:
            if self.current:
                change(self.task_read.account)
                self._inbox.notify()


class Inbox:
    """Pieces, failures and news of one reader, under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.poller: Poller | None = Poller()
        self._polling = False
        self._polls = 0
        self.slices: deque[tuple[TaskRead, FrameSlice]] = deque()
        self.failed: deque[tuple[TaskSink, Exception]] = deque()
        self.updates: deque[ClientUpdate] = deque()
        self.refusal: Exception | None = None
        self.cancelled = False

    def put(self, task_read: TaskRead, frame_slice: FrameSlice) -> None:
        """Add a piece, before whoever waits is woken; under the lock."""
        self.slices.append((task_read, frame_slice))

    def notify(self) -> None:
        """Wake whoever waits; under the lock."""
        self.changed.notify_all()
        if self._polling and self.poller is not None:
            self.poller.wake()

    def next(self) -> tuple[TaskRead, FrameSlice] | None:
        """The next piece that has come; None where there is none, or something else to look at first.

        What has come to sockets that nobody else listens to is looked for too; rarely while there is something to take.
        """
        self._polls += 1
        poller = self.poller
        if poller and not self._polls % _POLL_EVERY:
            poller.dispatch()
        found = self._take_first()
        if found is None and poller:
            poller.dispatch()
            found = self._take_first()
        return found

    def _take_first(self) -> tuple[TaskRead, FrameSlice] | None:
        with self.lock:
            other = self.updates or self.failed or self.cancelled
            return None if other or not self.ready else self.take()

    def wait(self, timeout: float) -> None:
        """Wait for something to look at. By one thread, the one that takes; not under the lock."""
        with self.lock:
            if self.has_events:
                return
            if not self.poller:
                self.changed.wait(timeout)
                return
            self._polling = True
        try:
            readable = self.poller.wait(timeout)
        finally:
            self._polling = False  # who sees it too late wakes the next wait in vain
        self.poller.dispatch(readable)

    def progress(self, task_read: TaskRead, complete_rounds: int, oldest_round: int) -> None:
        """Learn of a coordinated read what its worker says; under the lock."""

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
        """Learn which tasks there are now."""

    @property
    def ready(self) -> bool:
        """Whether there is a piece to take; under the lock."""
        return bool(self.slices)

    def take(self) -> tuple[TaskRead, FrameSlice]:
        """The next piece, of one that is ready; under the lock."""
        return self.slices.popleft()

    def clear(self) -> None:
        """Let go of what was delivered and not taken: the reader may be kept long after it was closed."""
        with self.lock:
            self._clear_slices()
            if self.poller is not None:
                self.poller.close()

    def reset(self) -> None:
        """Forget all that came: it belongs to other readers now."""
        with self.lock:
            self._clear_slices()
            self.failed.clear()
            self.updates.clear()
            self.refusal = None

    def _clear_slices(self) -> None:
        self.slices.clear()

    def update(self, update: ClientUpdate) -> None:
        """Add news from the dispatcher."""
        with self.lock:
            self.updates.append(update)
            self.notify()

    def set_refusal(self, error: Exception) -> None:
        """Learn that the dispatcher does not know this reader any more."""
        with self.lock:
            self.refusal = error
            self.notify()

    def cancel(self) -> None:
        """Wake whoever waits, for good."""
        with self.lock:
            self.cancelled = True
            self.notify()

    @property
    def has_events(self) -> bool:
        """Whether there is anything to look at; under the lock."""
        return bool(self.ready or self.failed or self.updates or self.refusal or self.cancelled)
