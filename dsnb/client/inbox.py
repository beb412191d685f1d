"""The inbox of one reader: its tasks deliver frame slices into it, and the reader waits for them here.

`Inbox.lock` guards the inbox and the counters that sinks change. Sinks are called from any thread; one thread takes and
waits.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dsnb.cache.opened_files import FileState, OpenedFiles
from dsnb.client.flow_control import CreditAccount
from dsnb.client.unit_order import UnitLocation
from dsnb.transfer.frame_codec import damaged_message_error
from dsnb.transfer.protocol import FrameSlice, ReadHandle, Sink, Transfer
from dsnb.wire.messages import ClientUpdate, IndexRange, TaskHolding, TaskInfo
from dsnb.wire.poller import Poller
from dsnb.wire.ranges import split_ranges
from dsnb.wire.unit_mark import UnitMark

INITIAL_MAX_BYTES = 128 << 10
"""Initial `max_bytes` of a task: bytes that may be in flight or unconsumed. Doubled when the reader starves."""

_MIN_SLICES_ON_THE_WAY = 8
"""Frame slices that `max_bytes` grows to hold while a reader over the network starves. Only what the worker may send
can wait on this side for a late reader, and be sent together."""

_POLL_EVERY = 16
"""A reader with buffered slices polls the sockets at least once per this many slices, so that no task is left out."""


_MOST_RANGES: Final = 1 << 16
"""Index ranges remembered for each task. Most tasks need one; a task shared by several readers needs one per slice."""


class TaskRead:
    """One reader's read of one task: its credit account, its connection, and what arrived."""

    def __init__(self, inbox: Inbox, info: TaskInfo, share_bytes: int) -> None:
        self.info = info
        self.share_bytes = share_bytes
        self.max_bytes = min(share_bytes, INITIAL_MAX_BYTES)
        self.account = CreditAccount(disconnected=True)
        self.connection: ReadHandle | None = None
        self.accepted = False
        """Whether the worker has answered on the present connection."""
        self.transfer: Transfer | None = None
        """The transfer of the last connection; None before the first one."""
        self.refusals: dict[str, str] = {}
        """Why transfers to the present worker cannot be used, by name; a transfer that may work is not in it."""
        self.retry_at = 0.0
        self.attempts = 0
        """How many attempts to open the task failed, since the last element or the last change of its worker."""
        self.unreachable_error: Exception | None = None
        """The error to raise if the worker runs nevertheless; None if it was reached, or not tried often enough."""
        self.given_up = False
        """Whether this reader ended the task because of an error, not because the task signalled its end."""
        self.last_sent_counters: tuple[int, ...] = ()
        """In a coordinated read: the counters that the worker received last."""
        self.acked = 0
        """How many consumed elements were acknowledged to the worker."""
        self.acked_dequeued = 0
        self.unacked_bytes = 0
        self.buffered_bytes = 0
        self.last_slice_bytes = 0
        """Bytes of the frame slice that arrived last."""
        self.was_full = False
        """Whether `max_bytes` was used up at some time since it was last raised."""
        self.damaged_in_a_row = 0
        """Damaged messages since the last intact one."""
        self.received_ranges = ReceivedRanges()
        """The elements of the task's present sequence that arrived."""
        self.consumed_cell: memoryview | None = None
        """The task's cell in the shared page, which the worker reads if this process dies; None if only messages carry
        the count."""
        self._inbox = inbox

    @property
    def is_open(self) -> bool:
        """Whether the worker has answered on a connection that stands."""
        return self.connection is not None and self.accepted

    @property
    def over_network(self) -> bool:
        """Whether elements and acknowledgements of the last connection crossed the network."""
        return self.transfer is not None and self.transfer.over_network

    @property
    def unconsumed(self) -> int:
        """Elements that arrived and are not consumed."""
        return self.account.received - self.account.consumed

    def holding(self) -> TaskHolding:
        """What this reader consumed of the task, and what it holds unconsumed. Requires the inbox's lock."""
        consumed, held = self.received_ranges.split(self.unconsumed)
        return TaskHolding(
            task_id=self.info.task_id,
            incarnation=self.info.incarnation,
            received=self.account.received,
            consumed=_index_ranges((first, end) for first, end in consumed if end > self.info.needed_from),
            held=_index_ranges(held),
            # Only over the network: otherwise no acknowledgement can be lost on its way.
            unacked=self.account.consumed - self.acked if self.over_network else 0,
        )

    def reset_attempts(self) -> None:
        """Forget the attempts that failed."""
        self.attempts, self.unreachable_error = 0, None

    def count_bytes(self, nbytes: int) -> None:
        """Count bytes that arrived, and note whether the limit was reached."""
        self.buffered_bytes += nbytes
        self.last_slice_bytes = nbytes
        # Half counts as full: one more slice would not fit, or was in flight when the reader consumed. If only a few
        # slices fit, this side cannot tell what is in flight from what the worker holds back for lack of room.
        few = self.over_network and _MIN_SLICES_ON_THE_WAY * nbytes >= self.max_bytes
        self.was_full |= 2 * self.buffered_bytes >= self.max_bytes or few

    def sink(self) -> TaskSink:
        """Make the sink of a new connection."""
        return TaskSink(self, self._inbox)


class ReceivedRanges:
    """The elements of a task that arrived, as index ranges in order of arrival."""

    def __init__(self) -> None:
        self._ranges: deque[list[int]] = deque(maxlen=_MOST_RANGES)

    def add(self, first: int, count: int) -> None:
        """Add elements that arrived, extending the last range if they follow it."""
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[1] == first:
            last[1] += count
        else:
            self._ranges.append([first, first + count])

    def split(self, held: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Split into all but the last `held` elements, and those; each in order of arrival."""
        listed = [(first, end) for first, end in self._ranges]
        return split_ranges(listed, sum(end - first for first, end in listed) - held)

    def clear(self) -> None:
        """Forget all ranges: the task's elements are numbered from 0 again."""
        self._ranges.clear()


def _index_ranges(pairs: Iterable[tuple[int, int]]) -> tuple[IndexRange, ...]:
    return tuple(IndexRange(first=first, end=end) for first, end in pairs)


def _file_states(states: str) -> list[FileState]:
    """Decode a worker's message.

    Raises:
        DataLossError: it is damaged.
    """
    try:
        return msgspec.convert(json.loads(states), list[FileState])
    except (ValueError, msgspec.MsgspecError):
        raise damaged_message_error("its files") from None


class TaskSink(Sink):
    """Receives what one connection to a task delivers.

    After a connection breaks, is fenced or is replaced, `current` is False and the sink ignores everything: elements
    that arrive late may belong to another reader by then.
    """

    def __init__(self, task_read: TaskRead, inbox: Inbox) -> None:
        self.task_read = task_read
        self._inbox = inbox
        self.current = True

    @property
    def poller(self) -> Poller | None:
        """The reader's poller, if the reader's own thread reads the sockets."""
        return self._inbox.poller

    def accepted(self) -> None:
        with self._inbox.lock:
            if self.current:
                self.task_read.accepted = True

    def deliver(self, frame_slice: FrameSlice) -> None:
        self.deliver_all((frame_slice,))

    def deliver_all(self, slices: Sequence[FrameSlice]) -> None:
        """Take several frame slices under one lock.

        An empty delivery does not count as activity: an idle task's credit may be moved to another task.
        """
        with self._inbox.lock:
            if self.current and slices:
                account = self.task_read.account
                account.active_at = self._inbox.clock()
                account.ended = False  # elements that another reader returned may arrive after the end
                self.task_read.damaged_in_a_row = 0
                for piece in slices:
                    account.received += piece.count
                    self.task_read.received_ranges.add(piece.index, piece.count)
                    self.task_read.count_bytes(piece.nbytes // piece.count * piece.count)
                    self._inbox.put(self.task_read, piece)
                self._inbox.notify_if_ready()

    def note_files(self, states: str) -> None:
        if self._inbox.opened_files is not None:
            self._inbox.opened_files.add_from_worker(_file_states(states))

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

    def note_unit(self, mark: UnitMark) -> None:
        with self._inbox.lock:
            if self.current:
                self._inbox.note_unit(self.task_read, mark)
                self._inbox.notify_if_ready()

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
    """Frame slices, broken connections and dispatcher updates of one reader, under one lock.

    Args:
        clock: Returns the seconds of a monotonic clock, by which credit and reconnections are timed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.poller: Poller | None = Poller()
        self._polling = self._notified = False
        self._polls = 0
        self.slices: deque[tuple[TaskRead, FrameSlice]] = deque()
        self.failed: deque[tuple[TaskSink, Exception]] = deque()
        self.updates: deque[ClientUpdate] = deque()
        self.refusal: Exception | None = None
        self.cancelled = False
        self.location: UnitLocation | None = None
        """The location of what was taken last, if elements come in the order of the splits."""
        self.opened_files: OpenedFiles | None = None
        """Records the files that the tasks opened; None if they need not be recorded."""

    def put(self, task_read: TaskRead, frame_slice: FrameSlice) -> None:
        """Add a frame slice without waking the reader. Requires the lock."""
        self.slices.append((task_read, frame_slice))

    def notify(self) -> None:
        """Wake the waiting thread. Requires the lock."""
        self._notified = True
        self.changed.notify_all()
        if self._polling and self.poller is not None:
            self.poller.wake()

    def notify_if_ready(self) -> None:
        """Wake the waiting thread if it can take what arrived, which is not so for what comes later in an order.

        Requires the lock.
        """
        if self.ready:
            self.notify()

    def next(self) -> tuple[TaskRead, FrameSlice] | None:
        """Return the next frame slice; None if there is none or there is something else to handle first.

        Also reads the sockets that have no thread of their own; only every `_POLL_EVERY`-th time while slices are
        buffered.
        """
        self._polls += 1
        poller = self.poller
        if not self._polls % _POLL_EVERY and poller:
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
        """Wait until `has_events`, a `notify` or the time-out. Only for the thread that takes, and without the lock."""
        with self.lock:
            if self.has_events:
                return
            if not self.poller:
                self.changed.wait(timeout)
                return
            self._notified = False
        deadline = time.monotonic() + timeout
        while not self._notified and timeout >= 0 and self.poller:
            self._poll_sockets(timeout)
            timeout = deadline - time.monotonic()

    def _poll_sockets(self, timeout: float) -> None:
        """Read the sockets as soon as one is readable; returns early on `notify`."""
        assert self.poller is not None
        # `notify` looks at the two flags in the other order: it either ends this wait, or is seen here.
        self._polling = True
        try:
            readable = [] if self._notified else self.poller.wait(timeout)
        finally:
            self._polling = False
        self.poller.dispatch(readable)

    def progress(self, task_read: TaskRead, complete_rounds: int, oldest_round: int) -> None:
        """Handle a worker's report on the rounds of a coordinated read. Requires the lock."""

    def note_unit(self, task_read: TaskRead, mark: UnitMark) -> None:
        """Handle a mark of a unit of splits. Requires the lock."""

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
        """Set the tasks that are read at present."""

    @property
    def ready(self) -> bool:
        """Whether there is a frame slice to take. Requires the lock."""
        return bool(self.slices)

    def take(self) -> tuple[TaskRead, FrameSlice]:
        """Take the next frame slice. Requires the lock and `ready`."""
        return self.slices.popleft()

    def clear(self) -> None:
        """Drop frame slices that were not taken: a closed reader may stay alive for long."""
        with self.lock:
            self._clear_slices()
            if self.poller is not None:
                self.poller.close()

    def reset(self) -> None:
        """Drop everything that arrived: it belongs to other readers now."""
        with self.lock:
            self._clear_slices()
            self.failed.clear()
            self.updates.clear()
            self.refusal = None

    def _clear_slices(self) -> None:
        self.slices.clear()

    def update(self, update: ClientUpdate) -> None:
        """Add an update from the dispatcher."""
        with self.lock:
            self.updates.append(update)
            self.notify()

    def set_refusal(self, error: Exception) -> None:
        """Record that the dispatcher no longer knows this reader, and why."""
        with self.lock:
            self.refusal = error
            self.notify()

    def cancel(self) -> None:
        """Cancel the read for good, and wake the waiting thread."""
        with self.lock:
            self.cancelled = True
            self.notify()

    @property
    def has_events(self) -> bool:
        """Whether there is anything to take or handle. Requires the lock."""
        return bool(self.ready or self.failed or self.updates or self.refusal or self.cancelled)
