"""The stage that reads one iteration of a job.

It joins the job when it is created, opens one stream to each task, and returns the elements that the tasks deliver. It
acknowledges what was consumed, rejoins after the dispatcher dropped it, and confirms the end of the iteration.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

from msgspec.structs import replace

from dsnb.cache.opened_files import OpenedFiles
from dsnb.client import notices
from dsnb.client.ack_thread import ACK_INTERVAL_S, ack_thread
from dsnb.client.consumption import ConsumptionTracker
from dsnb.client.inbox import TaskRead
from dsnb.client.options import ReadOptions, ServiceAddress, ShardingPolicy, no_local_worker
from dsnb.client.ordered_inboxes import inbox_for
from dsnb.client.position import SliceOrigin, StartPosition, options_for_resuming, tracker_for
from dsnb.client.service_stage import JobReader
from dsnb.client.session import (
    UNREACHABLE_TIMEOUT_S,
    ClientControlStream,
    JobClock,
    join,
    open_control_stream,
    service_connection,
)
from dsnb.client.tasks import TaskTable
from dsnb.errors import (
    CancelledError,
    DsnbError,
    NotFoundError,
    UnavailableError,
    mark_out_of_band,
)
from dsnb.pipeline.engine.interrupts import INTERRUPTS
from dsnb.pipeline.engine.source_positions import no_position_error
from dsnb.pipeline.engine.stage import ConsumptionListener, Run
from dsnb.stopwatch import Stopwatch
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire import discovery
from dsnb.wire.channel import ChannelCache, open_channel
from dsnb.wire.control_stream import HANG_TIMEOUT_S
from dsnb.wire.messages import (
    ClientOrigin,
    ClientReport,
    ClientUpdate,
    EndRequest,
    IterationPosition,
    JoinReply,
    PositionRequest,
    TaskHolding,
    TaskInfo,
)
from dsnb.wire.methods import CONFIRM_END, POSITION

_CONFIRM_S = 0.2
_POSITION_S = 5.0
_ACK_DELAY_S = 0.02
"""How long a reader with an empty buffer waits before it acknowledges the last elements it consumed. An acknowledgement
wakes a thread of the worker, which would slow down a pipeline that is about to produce its next element."""

_QUESTION_TIMEOUT_S = 2.0
"""Time-out of the calls that ask the dispatcher whether it has dropped this reader, or answers at all."""

_QUESTION_INTERVAL_S = 10.0
"""How often a reader that gets nothing asks whether anybody answers."""


class _LeftWith(NamedTuple):
    """What a reader had when it left, because the dispatcher had counted it as lost."""

    holdings: tuple[TaskHolding, ...]
    returned: int
    """Elements that had arrived and that it did not consume: they go to any reader."""
    lost: int
    """Those that no reader gets."""


class ReadStage(JobReader):
    """One client's read of one iteration of a distributed dataset.

    Threads: the user's thread pulls elements. The control stream's thread receives the dispatcher's updates, and
    reports at once what this reader holds when a task is being reassigned. The process's acknowledgement thread
    (`ack_thread`) acknowledges consumed elements and reopens tasks while the user's thread is busy. All code that opens
    or closes tasks holds `_tasks_lock`.

    Args:
        service: Address and token of the service.
        dataset_id: Id of the registered dataset.
        options: The checked arguments of `distribute`.
        origin: Where this client runs, for its reports.
        iteration: Number of this pass over the dataset object. Clients with the same number read the same iteration of
            the job.
        source_key: Identifies the source, and its pass, within the local pipeline.
        start_position: Where to begin; None for the beginning.
        unfinished: Whether to read the next unfinished iteration if this one is already over.
        on_end: Called with the position at the end of the iteration, if another one may follow in the same pipeline.
        connections: Keeps the connections of a completed iteration for the next one.
        opened_files: Records the files that the tasks open; None if they need not be recorded.
        keeps_digest: Whether to keep a digest of what was consumed.
    """

    closes_slowly = True

    _left_with: _LeftWith | None = None
    """Set while it is to rejoin: its tasks are closed already, and the dispatcher may not answer at once."""

    _acknowledges_soon = False
    """Whether the acknowledgement thread is about to call `acknowledge`."""

    def __init__(
        self,
        service: ServiceAddress,
        dataset_id: str,
        options: ReadOptions,
        origin: ClientOrigin,
        iteration: int,
        source_key: str = "",
        start_position: StartPosition | None = None,
        on_end: Callable[[Any], None] | None = None,
        *,
        unfinished: bool = False,
        connections: ChannelCache | None = None,
        opened_files: OpenedFiles | None = None,
        keeps_digest: bool = False,
    ) -> None:
        super().__init__("from the service")
        self._service, self._dataset_id = service, dataset_id
        self._connections = connections
        self.source_key = source_key
        self._options, self._origin = options, origin
        self._skippable = start_position.skippable if start_position is not None else 0
        self._channel = open_channel(service.address, service.token)
        joined = self._join(iteration, start_position, opened_files, unfinished=unfinished)
        self._joined, self._client_id, self.iteration = joined, joined.client_id, joined.iteration
        self._position_tracker = tracker_for(options, joined.iteration, start_position, on_end)
        self._losses_received, self._instance, self._job = joined.loss_count, joined.instance, joined.job_name
        self._ended = joined.finished
        self._position_lock = threading.Lock()
        # Set when the dispatcher released this reader at the end: it cannot be asked afterwards.
        self._last_position: IterationPosition | None = None
        limits = options_for_resuming(options, start_position)
        self._tasks = self._task_table(joined, limits)
        self._pending_errors: list[Exception] = []
        self._task_read: TaskRead | None = None
        self._undecoded: tuple[TaskRead, FrameSlice] | None = None
        """The slice being decoded, kept because decoding may be interrupted."""
        self.slice_origin: SliceOrigin | None = None
        """Where the last frame slice comes from."""
        self._slice_elements: Sequence[Any] = ()
        self._slice_hashes: Sequence[int] = ()  # of these elements, if a digest is kept
        self._slice_offset = self._element_bytes = 0
        self._consumption = ConsumptionTracker(self._tasks, keeps_digest=keeps_digest)
        self._tasks_lock = threading.RLock()
        self._closing = self._rejoined = self._only_reader = False
        self._halted_tasks: tuple[TaskInfo, ...] = ()
        self._last_holdings: tuple[TaskHolding, ...] = ()
        self._client_timeout_s = joined.client_timeout_ms / 1000
        self._clock = JobClock(paused=bool(joined.paused_by))
        self._began = self._clock()
        self._active_ns, self._acknowledge_at, self._confirm_at = 0, 0.0, 0.0
        self._waits = Stopwatch(self._clock)
        self._reachable_at = self._asked_at = time.monotonic()
        self._unanswered_s = 0.0
        """For how long nobody has answered in the present wait."""
        self._unconfirmed_since: float | None = None
        self._control = self._open_control_stream(joined)
        self._start_reading(joined)
        self._service_connection = service_connection(service.address, joined.instance)

    def _join(
        self,
        iteration: int,
        start_position: StartPosition | None,
        opened_files: OpenedFiles | None,
        *,
        unfinished: bool,
    ) -> JoinReply:
        position = start_position.position if start_position else None
        try:
            if self._options.cached and self._options.job_name:
                self._follow_previous_read(self._service.address, self._options.job_name, self._options.trainer_id)
            joined = join(self._channel, self._dataset_id, self._options, iteration, position, unfinished=unfinished)
            self._inbox = inbox_for(self._options, joined.tasks, start_position)
            self._inbox.opened_files = opened_files
        except BaseException:
            self._channel.close()
            raise
        return joined

    def _task_table(
        self, joined: JoinReply, options: ReadOptions, holdings: tuple[TaskHolding, ...] = (), before: str = ""
    ) -> TaskTable:
        return TaskTable(
            self._inbox,
            joined.client_id,
            options,
            self._channel.token,
            joined.instance,
            holdings,
            before,
            deployment_mode=joined.deployment_mode,
        )

    def _open_control_stream(self, joined: JoinReply) -> ClientControlStream:
        return open_control_stream(
            self._service,
            joined,
            immediately=self._options.cached,
            report=self._report,
            receive=self._receive_update,
            failed=self._inbox.set_refusal,
        )

    def _start_reading(self, joined: JoinReply) -> None:
        try:
            try:
                self._open_tasks(joined)
            finally:
                self._control.start()  # last: opening the tasks does not depend on the control stream
        except BaseException:  # the constructor fails, so the caller gets no stage that it could close
            self.close()
            raise

    @property
    def returned(self) -> bool:
        """Whether this trainer of a cross-trainer cache has read in this epoch before, and left it."""
        return self._joined.returned

    def warn_at_start(self) -> None:
        """Warn if the iteration is already over, lacks workers, is paused, or cannot use its cache well."""
        if self._joined.finished:
            notices.warn_empty(self._joined)
        else:
            notices.warn_absent_or_paused(self._joined)
            notices.warn_of_split_cache(self._joined, self._options)

    def _open_tasks(self, joined: JoinReply) -> None:
        if joined.finished:
            return
        self._tasks.set_tasks(joined.tasks)
        if self._tasks.choice.local_only and not len(self._tasks):
            raise no_local_worker(self._options)
        # Open the tasks now, so that the workers start while the caller is on its way to its first `next`.
        self._tasks.maintain(time.monotonic())

    # ---- the stage

    def produce(self, want: int) -> Run:
        """Return the next elements that any task delivered; waits for them."""
        assert not self._skippable, "elements that are behind for good are wanted again"
        if not self._consumption.tracked:
            self._mark_all_consumed()
        self._check_registered()
        while self._slice_offset >= len(self._slice_elements):
            if self._ended or not self._next_slice():
                return []
        run = list(self._slice_elements[self._slice_offset : self._slice_offset + want])
        hashes = self._slice_hashes[self._slice_offset : self._slice_offset + want]
        self._record_history(self._slice_offset, len(run))
        self._slice_offset += len(run)
        if self._slice_offset == len(self._slice_elements):
            # Drop the slice now: its memory is then freed as soon as the user drops its last element.
            self._slice_elements, self._slice_hashes, self._slice_offset = (), (), 0
        assert self._task_read is not None
        self._consumption.add_delivered(self._task_read, len(run), self._element_bytes, hashes)
        return run

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener:
        """Count elements as consumed once the user receives them.

        Those delivered before, which are skipped, count at once.
        """
        self._mark_all_consumed()
        self._consumption.tracked, self._consumption.held_downstream = True, buffered
        return self

    @property
    def registered(self) -> bool:
        """Whether the dispatcher still lists this client, as far as is known without a call."""
        return self._left_with is None and self._inbox.refusal is None and not self._control.lapsed

    def may_consume(self) -> bool:
        """Whether delivered but unconsumed elements still belong to this reader.

        Elements held by operations of this process do: they count as consumed when the reader rejoins. So do the last
        elements of a finished iteration: the dispatcher has released its readers by then and reassigns nothing. If
        this process was only silent for too long, the dispatcher is asked: elements that were withheld from the user
        and not assigned to another reader would be lost.
        """
        if self._consumption.held_downstream or self._ended or self.registered:
            return True
        if self._left_with is not None or self._inbox.refusal is not None:
            return False
        with self._tasks_lock:
            return not self._dropped_by_dispatcher()

    def skip(self, count: int) -> int:
        """Leave elements out.

        Those before the start position are skipped by the tasks; the others are read and dropped.
        """
        free = min(count, self._skippable)
        self._skippable -= free
        return free + super().skip(count - free)

    def source_position(self, count: int) -> dict[str, Any]:
        """Return the position after the first `count` elements; see `client/position`.

        Raises:
            FailedPreconditionError: this iteration has no exact position.
        """
        if self._rejoined:
            raise no_position_error("this reader was counted as lost in this pass, and returned to it")
        return self._position_tracker.position_after(
            count, self._fetch_position, self._tasks.received_of_ended(), ended=self._ended
        )

    def _fetch_position(self) -> IterationPosition:
        request = PositionRequest(client_id=self._client_id)
        # The thread that pulls may confirm the end at this moment: the dispatcher then releases this client and returns
        # the final position, which `_last_position` keeps. The lock rules out a call in between, which would fail.
        with self._position_lock:
            return self._last_position or self._channel.call(POSITION, request, timeout=_POSITION_S)

    def _record_history(self, at: int, count: int, *, failed: bool = False) -> None:
        assert self.slice_origin is not None
        self._position_tracker.add(self.slice_origin, at, count, failed=failed)

    def shared_with_other_readers(self) -> bool:
        """Whether other readers may have received elements, or some were lost.

        False only if the service ruled both out.
        """
        return not self._only_reader

    def cancel(self) -> None:
        super().cancel()
        self._inbox.cancel()

    def release(self, unread: int) -> None:
        """Leave the job and close all tasks; unconsumed elements return to them."""
        if self._ended or not self._consumption.tracked:
            # Without tracking, all delivered elements count as consumed except those that the pipeline returns as
            # unread.
            self._mark_all_consumed(0 if self._ended else unread)
        self._active_ns = self._clock() - self._began
        # Drop the reference: a closed stage may stay alive for long.
        kept, self._connections = self._connections, None
        if self._ended and kept is not None:
            kept.retain((self._channel.key, *self._tasks.channel_keys()))
        try:
            with self._tasks_lock:
                self._closing = True
                # Before the tasks close: the final report of the control stream contains it.
                self._last_holdings = (
                    *self._tasks.consumed_holdings(leaving=True),
                    *self._tasks.orphaned_holdings(),
                )
                self._tasks.close()
            # A client whose end was confirmed is released already and sends no final report.
            self._control.close(released=self._last_position is not None)
        finally:
            self._left.set()
            ack_thread.forget(self)
            self._channel.close()
            self._slice_elements, self._task_read, self._undecoded = (), None, None
            self._consumption.reset(self._tasks)
            self._inbox.clear()

    def _check_registered(self) -> None:
        """Rejoin if the dispatcher may have dropped this reader. Called before elements are delivered.

        Raises:
            CancelledError: the job was cancelled.
        """
        self._check_cancelled()
        if not self.registered:
            self._rejoin()

    def _rejoin(self) -> None:
        """Join the iteration again if the dispatcher dropped this reader: the process was stopped, or the GIL held.

        If the dispatcher does not answer, the next call tries again.

        Raises:
            NotFoundError: the iteration no longer exists.
        """
        with self._tasks_lock:
            if self._left_with is None:
                # Only a report was late: the dispatcher still lists this client, and nothing was reassigned.
                if self._inbox.refusal is None and not self._dropped_by_dispatcher():
                    return
                if self._ended or isinstance(self._inbox.refusal, CancelledError):
                    return
                if self._inbox.refusal is not None and not isinstance(self._inbox.refusal, NotFoundError):
                    raise copy(self._inbox.refusal)
                self._leave_to_rejoin()
            assert self._left_with is not None
            holdings, returned, lost = self._left_with
            # The dispatcher has a new client when it replies, so the reply must not be lost.
            with INTERRUPTS.delayed_in_waits():
                joined = join(self._channel, self._dataset_id, self._options, previous=self._joined, holdings=holdings)
            self._restart_as_new_client(joined, holdings)
            self._tasks.lost += lost
            self._left_with = None
        notices.warn_rejoined(self._client_timeout_s, returned, lost)

    def _leave_to_rejoin(self) -> None:
        """Close all tasks, and keep what the dispatcher has to know of them when this reader rejoins."""
        # The counts that workers can have read from the shared page. What is marked as consumed below came too late.
        known_to_workers = self._tasks.consumed_counts()
        # Operations downstream hold these elements and still deliver them, so other readers must not get them.
        if self._consumption.held_downstream:
            self._mark_all_consumed()
        returned, lost = self._tasks.buffered_count(), self._tasks.orphaned_count()
        holdings = (*self._tasks.consumed_holdings(known_to_workers), *self._tasks.orphaned_holdings())
        self._left_with = _LeftWith(holdings, returned, lost)
        self._tasks.close()
        self._control.close(released=True)

    def _dropped_by_dispatcher(self) -> bool:
        """Ask whether the dispatcher has dropped this reader. False if the dispatcher cannot be reached."""
        dropped = isinstance(self._ask_dispatcher(self._client_id), NotFoundError)
        if not dropped:
            self._control.renew()
        return dropped

    def _ask_dispatcher(self, client_id: str) -> DsnbError | None:
        """Ask the dispatcher for the position of a client; returns the error, if that is what it gets."""
        try:
            self._channel.call(POSITION, PositionRequest(client_id=client_id), timeout=_QUESTION_TIMEOUT_S)
        except DsnbError as error:
            return error
        return None

    def _restart_as_new_client(self, joined: JoinReply, holdings: tuple[TaskHolding, ...]) -> None:
        """Replace the client id, tasks and control stream; continue the same iteration as a new client."""
        self._rejoined = True
        lost, lost_parts, before = self._tasks.lost, self._tasks.lost_parts, self._client_id
        self._joined, self._client_id, self._instance = joined, joined.client_id, joined.instance
        # The dispatcher sends the new client all losses from this count on.
        self._losses_received, self._halted_tasks = min(self._losses_received, joined.loss_count), ()
        self._inbox.reset()
        self._slice_elements, self._slice_offset, self._task_read, self._undecoded = (), 0, None, None
        limits = options_for_resuming(self._options, None)
        self._tasks = self._task_table(joined, limits, holdings, before)
        self._tasks.lost, self._tasks.lost_parts = lost, lost_parts
        self._consumption.reset(self._tasks)
        self._control = self._open_control_stream(joined)
        self._ended = joined.finished
        self._start_reading(joined)

    def _check_cancelled(self) -> None:
        """Raise at once if the job was cancelled, even if elements are buffered.

        Raises:
            CancelledError: the job was cancelled.
        """
        if isinstance(self._inbox.refusal, CancelledError):
            raise copy(self._inbox.refusal)

    # ---- frame slices

    def consumed(self, elements: int, errors: int) -> None:
        """Count elements that the user received, and errors that were raised in place of elements."""
        self._consumption.mark_consumed(elements + errors)
        now = time.monotonic()
        if self._options.max_outstanding_requests:
            self._tasks.flush_acks(now)
        elif now >= self._acknowledge_at:
            self._acknowledge_at = now + ACK_INTERVAL_S
            self._tasks.send_acks(skip_recorded=True)
        else:
            self._acknowledge_soon()

    def _mark_all_consumed(self, unread: int = 0) -> None:
        if self._consumption.mark_all_consumed(unread) and self._options.max_outstanding_requests:
            self._tasks.flush_acks(time.monotonic())

    def _acknowledge_soon(self) -> None:
        if not self._closing and not self._acknowledges_soon:
            self._acknowledges_soon = True
            if not ack_thread.call_soon(self):
                self._acknowledges_soon = False

    def acknowledge(self) -> None:
        """Send acknowledgements and maintain the tasks.

        Called by the acknowledgement thread while the user's thread is busy.
        """
        self._acknowledges_soon = False  # first: what is consumed from here on asks again
        if not self._tasks_lock.acquire(blocking=False):
            return  # the user's thread holds the lock and does it
        try:
            if not self._closing:
                self._acknowledge_at = time.monotonic() + ACK_INTERVAL_S
                self._tasks.send_acks(skip_recorded=True)
                self._apply_task_updates()
        except Exception as error:  # noqa: BLE001 - the user's thread raises it
            self._pending_errors.append(error)
        finally:
            self._tasks_lock.release()

    def _apply_task_updates(self) -> None:
        """Open and close tasks as the dispatcher asks. Losses stay queued: the user's thread warns of them."""
        with self._inbox.lock:
            updates = list(self._inbox.updates)
            self._inbox.updates = deque(
                replace(u, has_state=False, tasks=()) for u in updates if u.losses or u.skipping or u.running_workers
            )
            cancelled = self._inbox.cancelled or self._inbox.refusal is not None
        if cancelled:
            return
        for update in updates:
            if update.has_state:
                self._tasks.set_tasks(update.tasks, finished=update.finished)
        self._tasks.maintain(time.monotonic())

    def _next_slice(self) -> bool:
        """Take the next frame slice; False at the end of the iteration."""
        try:
            with self._tasks_lock:
                found = self._undecoded or self._take_arrived() or self._wait()
        except Exception as error:
            mark_out_of_band(error)
            raise
        if found is None:
            return False
        hold, piece = found
        self._task_read, self._element_bytes = hold, piece.nbytes // piece.count
        # Keep the numbers only: a reference to the slice would pin its frame in shared memory.
        self.slice_origin = SliceOrigin(
            task_id=hold.info.task_id,
            # A reassigned task has a higher incarnation but continues the numbering of its sequence.
            incarnation=min(piece.incarnation, hold.info.sequence_incarnation),
            index=piece.index,
            location=self._inbox.location,
        )
        hold.reset_attempts()
        self._slice_elements, self._slice_offset = (), 0
        self._undecoded = found
        began = time.perf_counter_ns()
        try:
            self._slice_hashes = piece.hashes() if self._consumption.keeps_digest else ()
            self._slice_elements = piece.elements()
            self._undecoded = None
        except Exception:
            self._undecoded = None
            self._record_history(0, piece.count, failed=True)
            self._consumption.add_delivered(hold, piece.count, self._element_bytes, self._slice_hashes)
            raise
        finally:
            self.decode_ns += time.perf_counter_ns() - began
        return True

    def _take_arrived(self) -> tuple[TaskRead, FrameSlice] | None:
        """Take the next frame slice if it has arrived. Reading it from the socket counts as building elements."""
        began = time.perf_counter_ns()
        try:
            return self._inbox.next()
        finally:
            self.decode_ns += time.perf_counter_ns() - began

    def _wait(self) -> tuple[TaskRead, FrameSlice] | None:
        """Wait for the next frame slice, and maintain tasks and acknowledgements meanwhile.

        None at the end of the iteration.

        The first time that the buffer is empty, the byte limits are raised, and a pending acknowledgement is delayed by
        `_ACK_DELAY_S` if the workers can send more without it.
        """
        starved = False
        found = None
        self._asked_at, self._unanswered_s = time.monotonic(), 0.0
        try:
            while found is None:
                INTERRUPTS.raise_pending()
                with self._inbox.lock:
                    if self._inbox.cancelled:
                        raise CancelledError("reading was stopped")
                    has_events = self._inbox.has_events
                    if not self._inbox.ready:
                        self._waits.start()
                quiet = not has_events and not self._tasks.all_ended
                starves, starved = quiet and not starved, starved or quiet
                if starves:
                    self._tasks.raise_byte_limits()
                if starves and self._tasks.can_delay_acks:
                    # Each acknowledgement wakes a thread of the worker and slows its pipeline: wait a moment first.
                    self._inbox.wait(_ACK_DELAY_S)
                elif not self._handle_events():
                    return None
                found = self._inbox.next()
            return found
        finally:
            self.wait_ns += self._waits.stop()

    def _handle_events(self) -> bool:
        """Handle what has arrived, or wait a little; False at the end of the iteration."""
        now = time.monotonic()
        self._process_updates()
        # It rejoined an iteration that other readers had finished meanwhile.
        if self._ended:
            return False
        due = self._tasks.maintain(now)
        with self._inbox.lock:
            if self._inbox.ready or self._inbox.cancelled:
                return True
        # Raised only here, after all elements that arrived before the error.
        if self._pending_errors:
            self._tasks.try_refused()
            raise self._pending_errors.pop(0)
        if self._tasks.all_ended:
            if self._consumption.held_downstream:
                # A leaving worker waits until all its elements are consumed, but a half-full batch downstream is not
                # delivered before the end is confirmed: without this both would wait for each other. Before it is
                # asked for, because the question carries the last count of what this reader consumed.
                self._mark_all_consumed()
            if self._confirm_end(now):
                self._ended = True
                self._position_tracker.record_end(self._fetch_position)
                return False
            due = min(due, self._confirm_at)
        self._check_alive(now)
        # Nothing can be taken: grant credit, or a worker may wait for it while this reader waits for the worker. Also
        # after an update: what arrives for later does not end the wait.
        self._tasks.flush_acks(now)
        self._inbox.wait(max(0.001, due - now))
        return True

    def _process_updates(self) -> None:
        with self._inbox.lock:
            updates, failed = list(self._inbox.updates), list(self._inbox.failed)
            self._inbox.updates.clear()
            self._inbox.failed.clear()
            refusal = self._inbox.refusal
        self._check_cancelled()
        if isinstance(refusal, NotFoundError) and not self._tasks.all_ended:
            self._rejoin()
        elif refusal is not None and not self._tasks.all_ended:
            # Raise a copy: a traceback on the stored error would keep its frames, and through them the iterator, alive.
            raise copy(refusal)
        self._pending_errors += [
            lasting for sink, error in failed if (lasting := self._tasks.handle_broken(sink, error))
        ]
        self._pending_errors += self._tasks.apply_updates(updates)
        self._pending_errors += self._tasks.give_up_unreachable(updates).values()

    def _confirm_end(self, now: float) -> bool:
        """Ask the dispatcher whether the iteration is over; see `_assume_end` if it does not answer."""
        if now < self._confirm_at:
            return False
        final_report = self._report(0, leaving=True)
        request = EndRequest(client_id=self._client_id, ended=self._tasks.ended_tasks(), final_report=final_report)
        try:
            # The dispatcher releases this client when it replies, so the reply must not be lost.
            with self._position_lock, INTERRUPTS.delayed_in_waits():
                reply = self._channel.call(CONFIRM_END, request, timeout=2.0)
                self._last_position, self._only_reader = reply.position, reply.sole_client
        except UnavailableError:
            return self._assume_end(now)
        except NotFoundError:
            return self._rejoin_at_end()
        except DsnbError:
            # Raise this only once, then end: whether more elements would have come is unknown.
            self._ended = True
            raise
        self._unconfirmed_since = None
        if reply.cancelled_by:
            self._inbox.set_refusal(notices.job_cancelled(self._job, reply.cancelled_by))
            return False
        # A task that this reader has abandoned delivers nothing more to it, so there is nothing to wait for.
        if reply.finished or self._tasks.any_given_up:
            with self._inbox.lock:
                return not self._inbox.ready
        self._tasks.set_tasks(reply.tasks)
        self._tasks.reopen_ended()
        self._confirm_at = now + _CONFIRM_S
        if self._tasks.all_ended and self._tasks.take_in_rest(reply.tasks):
            return False  # their own readers may be gone
        # Other readers may continue on workers that this one leaves out.
        return len(self._tasks) < len(reply.tasks) and self._tasks.all_ended

    def _rejoin_at_end(self) -> bool:
        """Rejoin if this reader was dropped before its end was confirmed. Returns whether the iteration is over.

        Other readers may have received the elements that this one had not consumed.
        """
        try:
            self._rejoin()
        except NotFoundError:
            return True  # the iteration no longer exists, so it was over
        return self._ended

    def _assume_end(self, now: float) -> bool:
        """Whether to treat the iteration as over without the dispatcher's answer.

        In mode OFF at once, else after a time-out.
        """
        if self._options.mode is ShardingPolicy.OFF:
            return True  # each worker has a pass of its own: an unknown one could only add another pass
        self._unconfirmed_since = self._unconfirmed_since or now
        if time.monotonic() - self._unconfirmed_since < UNREACHABLE_TIMEOUT_S:
            self._confirm_at = now + _CONFIRM_S
            return False
        notices.warn_end_unconfirmed(self._channel.address, UNREACHABLE_TIMEOUT_S)
        return True

    def _check_alive(self, now: float) -> None:
        """Raise if nothing could be read from for `UNREACHABLE_TIMEOUT_S`.

        Raises:
            DeadlineExceededError: the service has no worker.
            UnavailableError: neither dispatcher nor workers can be reached, or answer; or the service is known to have
                ended.
        """
        broken_since = self._control.broken_since
        if self._tasks.any_worker and (broken_since is None or self._tasks.any_open):
            self._reachable_at = now
            self._check_answers(now)
            return
        ended = (
            discovery.stop_reason(self._service_connection)
            if self._service_connection and broken_since is not None
            else ""
        )
        if ended:
            assert self._service_connection is not None
            raise notices.service_ended(self._service_connection.name, ended)
        if now - self._reachable_at < UNREACHABLE_TIMEOUT_S:
            return
        if broken_since is None:
            missing, last_loss = self._tasks.missing_workers, self._tasks.last_loss
            raise notices.no_worker(self._channel.address, UNREACHABLE_TIMEOUT_S, missing, last_loss)
        raise notices.no_answer(self._channel.address, UNREACHABLE_TIMEOUT_S)

    def _check_answers(self, now: float) -> None:
        """Ask now and then whether anybody answers: a process that hangs or is suspended may keep its connections.

        As long as the dispatcher answers, it notices workers that do not.

        Raises:
            UnavailableError: neither the dispatcher nor a worker has answered for `HANG_TIMEOUT_S`.
        """
        if self._tasks.all_ended or now - self._asked_at < _QUESTION_INTERVAL_S:  # at the end, `_confirm_end` asks
            return
        since_s = min(now - self._asked_at, 2 * _QUESTION_INTERVAL_S)  # the rest is a standstill of this process
        answered = self._dispatcher_answers() or self._tasks.worker_answers()
        self._asked_at, self._unanswered_s = now, 0.0 if answered else self._unanswered_s + since_s
        if self._unanswered_s >= HANG_TIMEOUT_S:
            raise notices.service_hangs(self._channel.address, self._unanswered_s)

    def _dispatcher_answers(self) -> bool:
        """Whether the dispatcher is connected and answers a question: about no client, which costs it little."""
        return self._control.broken_since is None and not isinstance(self._ask_dispatcher(""), UnavailableError)

    def debug_state(self) -> dict[str, Any]:
        """What the read does at present, as plain data."""
        return {
            "waiting": self._waits.running,
            "connected": self._control.connected.is_set(),
            "tasks": {task_id: read.account.received for task_id, read in self._tasks.reads.items()},
        }

    # ---- the control stream

    def _receive_update(self, update: ClientUpdate) -> None:
        if update.has_state:
            self._halted_tasks = tuple(task for task in update.tasks if task.unassigned)
            if self._halted_tasks:
                self._control.report_now()
            self._acknowledge_soon()
        if update.report_seq:
            self._tasks.send_acks()
            self._control.report_now(update.report_seq)
        if update.cancelled_by:
            self._inbox.set_refusal(notices.job_cancelled(self._job, update.cancelled_by))
        self._losses_received += len(update.losses)
        if update.has_state:
            self._clock.pause(paused=update.paused)
        if update.has_state or update.losses or update.skipping or update.running_workers:
            self._inbox.update(update)

    def _report(self, seq: int, leaving: bool) -> ClientReport:
        return ClientReport(
            client_id=self._client_id,
            elements=self._consumption.consumed,
            digest=self._consumption.digest,
            wait_ns=self._waits.ns,
            decode_ns=self.decode_ns,
            convert_ns=self.convert_ns,
            active_ns=self._active_ns or self._clock() - self._began,
            lost=self._tasks.lost,
            lost_parts=self._tasks.lost_parts,
            seq=seq,
            leaving=leaving,
            losses_received=self._losses_received,
            instance=self._instance,
            holdings=self._holdings() if leaving else self._tasks.fence(self._halted_tasks),
            origin=self._origin,
            unreachable_workers=self._tasks.unreachable_workers,
        )

    def _holdings(self) -> tuple[TaskHolding, ...]:
        """What this reader consumed of each task.

        Sent to the dispatcher when it leaves, in case a worker dies before it receives the last acknowledgement.
        """
        return self._last_holdings if self._closing else self._tasks.consumed_holdings()
