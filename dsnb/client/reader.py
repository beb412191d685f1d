"""The stage that reads one pass of a job: joins it when it is made, pulls runs out of what its tasks deliver."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from dsnb.client import notices
from dsnb.client.ack_thread import ACK_INTERVAL_S, ack_thread
from dsnb.client.consumption import ConsumptionTracker
from dsnb.client.inbox import TaskRead
from dsnb.client.options import ReadOptions, ServiceAddress, ShardingPolicy, no_local_worker
from dsnb.client.position import PositionTracker, StartPosition, options_for_resuming
from dsnb.client.service_stage import JobReader
from dsnb.client.session import ClientControlStream, JobClock, join, open_control_stream
from dsnb.client.stopwatch import Stopwatch
from dsnb.client.tasks import TaskTable
from dsnb.client.turns import inbox_for
from dsnb.errors import (
    CancelledError,
    DsnbError,
    NotFoundError,
    UnavailableError,
    mark_out_of_band,
)
from dsnb.pipeline.engine.bookmarks import no_position_error
from dsnb.pipeline.engine.stage import ConsumptionListener, Run
from dsnb.wire import discovery
from dsnb.wire.channel import ChannelCache, open_channel
from dsnb.wire.messages import (
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
from dsnb.wire.transfer.protocol import FrameSlice

_CONFIRM_S = 0.2
_POSITION_S = 5.0
_ACK_DELAY_S = 0.02
"""How long a reader that has nothing left waits before it tells of the last that it consumed. The word wakes a thread
of the worker, and should not do so when a slow pipeline is about to have its next element."""

_CHECK_DROPPED_TIMEOUT_S = 2.0
"""How long a dispatcher that does not answer is asked whether this reader was given up."""

_UNREACHABLE_TIMEOUT_S = 30.0
"""How long a reader waits with no worker, or with none that can be reached, before it says so."""


class ReadStage(JobReader):
    """One pass of one client over a dataset of a service.

    Threads: the user's pulls. The control stream's thread takes in what the dispatcher says, and answers at once when a
    task is being reassigned. A thread of the process tells workers what was consumed while the user's is busy
    (`acknowledging`), and opens tasks again; whatever opens and closes tasks does so under `_tasks_lock`.

    Args:
        service: Where the dispatcher is.
        dataset_id: What to read.
        options: How.
        iteration: Which pass of this dataset object it is; passes of one number are one iteration of the job.
        source_key: Which source of which pass of a local pipeline it is.
        start_position: Where to begin; None for at the beginning.
        unfinished: Whether to read the next pass that is not over, if that one is.
        on_end: Called with the bookmark behind the whole pass, if another one may follow in the same pipeline.
        connections: Keeps the connections of a pass that came to its end, for the next one.
    """

    closes_slowly = True

    def __init__(
        self,
        service: ServiceAddress,
        dataset_id: str,
        options: ReadOptions,
        iteration: int,
        source_key: str = "",
        start_position: StartPosition | None = None,
        on_end: Callable[[Any], None] | None = None,
        *,
        unfinished: bool = False,
        connections: ChannelCache | None = None,
    ) -> None:
        super().__init__("from the service")
        self._service, self._dataset_id = service, dataset_id
        self._connections = connections
        self.source_key = source_key
        self._options = options
        self._skippable = start_position.skippable if start_position is not None else 0
        self._channel = open_channel(service.address, service.token)
        joined = self._join(iteration, start_position, unfinished=unfinished)
        self._joined, self._client_id, self.iteration = joined, joined.client_id, joined.iteration
        self._position_tracker, self._only_reader = PositionTracker(joined.iteration, self._skippable, on_end), False
        self._losses_received, self._instance, self._job = joined.loss_count, joined.instance, joined.job_name
        self._ended = joined.finished
        self._position_lock = threading.Lock()
        self._last_position: IterationPosition | None = None  # of a reader that the dispatcher let go
        limits = options_for_resuming(options, start_position)
        self._tasks = TaskTable(self._inbox, joined.client_id, limits, self._channel.token, joined.instance)
        self._pending_errors: list[Exception] = []
        self._task_read: TaskRead | None = None
        self._slice_start = (0, 0)
        self._slice_elements: Sequence[Any] = ()
        self._slice_offset = self._element_bytes = 0
        self._consumption = ConsumptionTracker(self._tasks)
        self._tasks_lock = threading.RLock()
        self._closing = self._rejoined = False
        self._acknowledge_at = 0.0
        self._halted_tasks: tuple[TaskInfo, ...] = ()
        self._last_holdings: tuple[TaskHolding, ...] = ()
        self._client_timeout_s = joined.client_timeout_ms / 1000
        self._clock = JobClock(paused=bool(joined.paused_by))
        self._began = self._clock()
        self._active_ns = self._decode_ns = 0
        self._waits = Stopwatch(self._clock)
        self._reachable_at = time.monotonic()
        self._confirm_at = 0.0
        self._unconfirmed_since: float | None = None
        self._control = self._open_control_stream(joined)
        self._start_reading(joined)
        self._service_connection = discovery.connection_at(service.address)

    def _join(self, iteration: int, start_position: StartPosition | None, *, unfinished: bool) -> JoinReply:
        position = start_position.position if start_position else None
        try:
            joined = join(self._channel, self._dataset_id, self._options, iteration, position, unfinished=unfinished)
            self._inbox = inbox_for(self._options, joined.tasks, start_position)
        except BaseException:
            self._channel.close()
            raise
        return joined

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
                self._control.start()  # behind: until here nobody waits for it
        except BaseException:  # nobody will have this stage to close it
            self.close()
            raise

    def warn_at_start(self) -> None:
        """Warn of what keeps elements of the pass from coming."""
        if self._joined.finished:
            notices.warn_empty(self._joined)
        else:
            notices.warn_absent_or_paused(self._joined)
            notices.warn_of_split_cache(self._joined, self._options)

    def _open_tasks(self, joined: JoinReply) -> None:
        if joined.finished:
            return
        self._tasks.set_tasks(joined.tasks)
        if self._options.local and not len(self._tasks):
            raise no_local_worker(self._options)
        self._tasks.maintain(time.monotonic())  # so that workers begin while the caller comes to its first `next`

    # ---- the stage

    def produce(self, want: int) -> Run:
        """The next elements that any task delivered; waits for them."""
        assert not self._skippable, "elements that are behind for good are wanted again"
        if not self._consumption.tracked:
            self._mark_all_consumed()
        self._check_registered()
        while self._slice_offset >= len(self._slice_elements):
            if self._ended or not self._next_slice():
                return []
        run = list(self._slice_elements[self._slice_offset : self._slice_offset + want])
        self._record_history(self._slice_offset, len(run))
        self._slice_offset += len(run)
        if self._slice_offset == len(self._slice_elements):
            self._slice_elements, self._slice_offset = (
                (),
                0,
            )  # whose last element is dropped by its user is then free at once
        assert self._task_read is not None
        self._consumption.add_delivered(self._task_read, len(run), self._element_bytes)
        return run

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener:
        """Learn of each element when the user has it. What was given before, to be left out, counts as consumed."""
        self._mark_all_consumed()
        self._consumption.tracked, self._consumption.held_downstream = True, buffered
        return _Tracking(self)

    @property
    def registered(self) -> bool:
        """Whether the dispatcher counts this reader in, as far as can be known without asking it."""
        return self._inbox.refusal is None and not self._control.lapsed

    @property
    def owns_unconsumed(self) -> bool:
        """Whether what the user has not consumed of it is this reader's still, as far as can be known without asking.

        What operations of this process hold is: it counts as consumed when the reader comes back. So is the rest of a
        pass that is over, of which nothing is given to others; the dispatcher has forgotten its readers by then.
        """
        return self._consumption.held_downstream or self._ended or self.registered

    def skip(self, count: int) -> int:
        """What is behind for good is left out by the tasks; the rest is read."""
        free = min(count, self._skippable)
        self._skippable -= free
        return free + super().skip(count - free)

    def source_position(self, count: int) -> dict[str, Any]:
        """What it takes to go on behind the first elements; see `client/resume`.

        Raises:
            FailedPreconditionError: there is no exact position in this pass.
        """
        if self._rejoined:
            raise no_position_error("this reader was taken for gone in this pass, and came back to it")
        return self._position_tracker.position_after(
            count, self._fetch_position, self._tasks.received_of_ended(), ended=self._ended
        )

    def _fetch_position(self) -> IterationPosition:
        request = PositionRequest(client_id=self._client_id)
        with self._position_lock:  # another thread may be pulling, and be let go at this moment
            return self._last_position or self._channel.call(POSITION, request, timeout=_POSITION_S)

    def _record_history(self, at: int, count: int, *, failed: bool = False) -> None:
        (incarnation, index), hold = self._slice_start, self._task_read
        assert hold is not None
        sequence = min(incarnation, hold.info.sequence_incarnation)  # a task that was taken over goes on counting
        self._position_tracker.history.add(hold.info.task_id, sequence, index + at, count, failed=failed)

    def shared_with_other_readers(self) -> bool:
        """Unless the service knows that this client alone read the pass, and that nothing of it was lost."""
        return not self._only_reader

    def cancel(self) -> None:
        """Wake the thread that waits in `pull`."""
        super().cancel()
        self._inbox.cancel()

    def release(self, unread: int) -> None:
        """Leave the job and all its tasks; what was not consumed goes back to them."""
        if self._ended or not self._consumption.tracked:
            self._mark_all_consumed(0 if self._ended else unread)
        self._active_ns = self._clock() - self._began
        kept, self._connections = self._connections, None  # a stage that is over may be kept for long
        if self._ended and kept is not None:
            kept.retain((self._channel.key, *self._tasks.channel_keys()))
        try:
            with self._tasks_lock:
                self._closing = True
                self._last_holdings = (*self._tasks.consumed_holdings(), *self._tasks.orphaned_holdings())
                self._tasks.close()
            self._control.close(released=self._last_position is not None)
        finally:
            ack_thread.forget(self)
            self._channel.close()
            self._slice_elements, self._task_read = (), None
            self._consumption.reset(self._tasks)
            self._inbox.clear()

    def _check_registered(self) -> None:
        """See that the dispatcher still counts this reader in, before it hands anything out.

        Raises:
            CancelledError: the job was cancelled.
        """
        self._check_cancelled()
        if not self.registered:
            self._rejoin()

    def _rejoin(self) -> None:
        """Join the pass again if this reader was given up: it was stopped, or something held its interpreter.

        Raises:
            NotFoundError: the pass is gone.
        """
        with self._tasks_lock:
            if self._inbox.refusal is None and not self._dropped_by_dispatcher():
                return
            if self._ended or isinstance(self._inbox.refusal, CancelledError):
                return
            if self._inbox.refusal is not None and not isinstance(self._inbox.refusal, NotFoundError):
                raise copy(self._inbox.refusal)
            known_to_workers = self._tasks.consumed_counts()
            if self._consumption.held_downstream:  # operations of this process have it, and will hand it on
                self._mark_all_consumed()
            returned, lost = self._tasks.buffered_count(), self._tasks.orphaned_count()
            holdings = (*self._tasks.consumed_holdings(known_to_workers), *self._tasks.orphaned_holdings())
            self._tasks.close()
            self._control.close(released=True)
            joined = join(self._channel, self._dataset_id, self._options, previous=self._joined, holdings=holdings)
            self._restart_as_new_client(joined, holdings)
            self._tasks.lost += lost
        notices.warn_rejoined(self._client_timeout_s, returned, lost)

    def _dropped_by_dispatcher(self) -> bool:
        """Whether the dispatcher does not know this reader any more; it is not, where it cannot be asked."""
        try:
            self._channel.call(POSITION, PositionRequest(client_id=self._client_id), timeout=_CHECK_DROPPED_TIMEOUT_S)
        except NotFoundError:
            return True
        except DsnbError:
            pass
        self._control.renew()
        return False

    def _restart_as_new_client(self, joined: JoinReply, holdings: tuple[TaskHolding, ...]) -> None:
        """Begin anew as another client of the same pass."""
        self._rejoined = True
        lost, before = self._tasks.lost, self._client_id
        self._joined, self._client_id, self._instance = joined, joined.client_id, joined.instance
        self._losses_received, self._halted_tasks = (
            min(self._losses_received, joined.loss_count),
            (),
        )  # the others are yet to come
        self._inbox.reset()
        self._slice_elements, self._slice_offset, self._task_read = (), 0, None
        limits = options_for_resuming(self._options, None)
        self._tasks = TaskTable(
            self._inbox, joined.client_id, limits, self._channel.token, joined.instance, holdings, before
        )
        self._tasks.lost = lost
        self._consumption.reset(self._tasks)
        self._control = self._open_control_stream(joined)
        self._ended = joined.finished
        self._start_reading(joined)

    def _check_cancelled(self) -> None:
        """End at once where the job was cancelled, whatever has come already.

        Raises:
            CancelledError: it was.
        """
        if isinstance(self._inbox.refusal, CancelledError):
            raise copy(self._inbox.refusal)

    # ---- pieces

    def user_consumed(self, elements: int, errors: int) -> None:
        """The user has consumed so many more elements, and had errors in the places of others."""
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
        if not self._closing:
            ack_thread.call_soon(self)

    def acknowledge(self) -> bool:
        """Tell workers what was consumed, and see to the tasks; called by another thread while the user's is busy."""
        if not self._tasks_lock.acquire(blocking=False):
            return False  # the user's thread sees to it
        try:
            if not self._closing:
                self._acknowledge_at = time.monotonic() + ACK_INTERVAL_S
                self._tasks.send_acks(skip_recorded=True)
                self._apply_task_updates()
        except Exception as error:  # noqa: BLE001 - the user's thread raises it
            self._pending_errors.append(error)
        finally:
            self._tasks_lock.release()
        return False

    def _apply_task_updates(self) -> None:
        """Open and close tasks as the dispatcher says; losses are left for the user's thread, which warns of them."""
        with self._inbox.lock:
            updates = list(self._inbox.updates)
            self._inbox.updates = deque(
                replace(u, has_state=False, tasks=()) for u in updates if u.losses or u.skipping
            )
            cancelled = self._inbox.cancelled or self._inbox.refusal is not None
        if cancelled:
            return
        for update in updates:
            if update.has_state:
                self._tasks.set_tasks(update.tasks, finished=update.finished)
        self._tasks.maintain(time.monotonic())

    def _next_slice(self) -> bool:
        """Take the next piece; False at the end of the pass."""
        try:
            with self._tasks_lock:
                found = self._inbox.next() or self._wait()
        except Exception as error:
            mark_out_of_band(error)
            raise
        if found is None:
            return False
        hold, piece = found
        self._task_read, self._element_bytes = hold, piece.nbytes // piece.count
        self._slice_start = (piece.incarnation, piece.index)  # not the piece: its frame may lie in shared memory
        hold.attempts = 0
        self._slice_elements, self._slice_offset = (), 0
        began = time.perf_counter_ns()
        try:
            self._slice_elements = piece.elements()
        except Exception:
            self._record_history(0, piece.count, failed=True)
            self._consumption.add_delivered(hold, piece.count, self._element_bytes)
            raise
        finally:
            self._decode_ns += time.perf_counter_ns() - began
        return True

    def _wait(self) -> tuple[TaskRead, FrameSlice] | None:
        """Wait for the next piece; None when the pass is over. Does the housekeeping meanwhile."""
        starved = False
        found = None
        try:
            while found is None:
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
                if (
                    starves and self._tasks.can_delay_acks
                ):  # each message wakes the worker, whose thread has better to do
                    self._inbox.wait(_ACK_DELAY_S)
                else:
                    if quiet:
                        self._tasks.flush_acks(time.monotonic())  # the last moment to ask for more
                    if not self._handle_events():
                        return None
                found = self._inbox.next()
            return found
        finally:
            self.wait_ns += self._waits.stop()

    def _handle_events(self) -> bool:
        """Act on what has come, or wait a little for something to come; False when the pass is over."""
        now = time.monotonic()
        self._process_updates()
        if self._ended:  # this reader came back to a pass that others had read to its end
            return False
        due = self._tasks.maintain(now)
        with self._inbox.lock:
            if self._inbox.ready or self._inbox.cancelled:
                return True
        if self._pending_errors:  # behind what came before it
            self._tasks.try_refused()
            raise self._pending_errors.pop(0)
        if self._tasks.all_ended:
            if self._confirm_end(now):
                self._ended = True
                self._position_tracker.record_end(self._fetch_position)
                return False
            if (
                self._consumption.held_downstream
            ):  # a worker that leaves waits for this, and nobody fills half a batch now
                self._mark_all_consumed()
            self._tasks.flush_acks(now)  # else leaving tells what was consumed
            due = min(due, self._confirm_at)
        self._check_alive(now)
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
            raise copy(refusal)  # a traceback on what is kept here would keep the iterator, which is in its frames
        self._pending_errors += [
            lasting for sink, error in failed if (lasting := self._tasks.handle_broken(sink, error))
        ]
        self._tasks.apply_updates(updates)

    def _confirm_end(self, now: float) -> bool:
        """Whether the dispatcher agrees that the pass is over; also if it cannot be asked."""
        if now < self._confirm_at:
            return False
        final_report = self._report(0, leaving=True)
        request = EndRequest(client_id=self._client_id, ended=self._tasks.ended_tasks(), final_report=final_report)
        try:
            with self._position_lock:
                reply = self._channel.call(CONFIRM_END, request, timeout=2.0)
                self._last_position, self._only_reader = reply.position, reply.sole_client
        except UnavailableError:
            return self._assume_end(now)
        except NotFoundError:
            return self._rejoin_at_end()
        except DsnbError:
            self._ended = True  # told once: whether there would have been more is not known
            raise
        self._unconfirmed_since = None
        if reply.cancelled_by:
            self._inbox.set_refusal(notices.job_cancelled(self._job, reply.cancelled_by))
            return False
        if reply.finished or self._tasks.any_given_up:  # what will not come to this reader is not waited for
            with self._inbox.lock:
                return not self._inbox.ready
        self._tasks.set_tasks(reply.tasks)
        self._confirm_at = now + _CONFIRM_S
        return self._options.local and self._tasks.all_ended  # the pass may go on elsewhere

    def _rejoin_at_end(self) -> bool:
        """Whether the pass is over for a reader that was given up: others may have what it had not consumed."""
        try:
            self._rejoin()
        except NotFoundError:
            return True  # the pass is gone, so it was over
        return self._ended

    def _assume_end(self, now: float) -> bool:
        """Whether the pass is over as far as can be known without the dispatcher, which may be on its way back."""
        if self._options.mode is ShardingPolicy.OFF:
            return True  # a worker that we have not heard of would have a pass of its own to give
        self._unconfirmed_since = self._unconfirmed_since or now
        if time.monotonic() - self._unconfirmed_since < _UNREACHABLE_TIMEOUT_S:
            self._confirm_at = now + _CONFIRM_S
            return False
        notices.warn_end_unconfirmed(self._channel.address, _UNREACHABLE_TIMEOUT_S)
        return True

    def _check_alive(self, now: float) -> None:
        """Give up when there has been nobody to read from for long.

        Raises:
            DeadlineExceededError: the service has no worker.
            UnavailableError: neither dispatcher nor workers can be reached, or the service is known to have ended.
        """
        broken_since = self._control.broken_since
        if self._tasks.any_worker and (broken_since is None or self._tasks.any_open):
            self._reachable_at = now
            return
        ended = (
            discovery.stop_reason(self._service_connection)
            if self._service_connection and broken_since is not None
            else ""
        )
        if ended:
            assert self._service_connection is not None
            raise notices.service_ended(self._service_connection.name, ended)
        if now - self._reachable_at < _UNREACHABLE_TIMEOUT_S:
            return
        if broken_since is None:
            kind = "worker in this process" if self._options.local else "worker"
            raise notices.no_worker(self._channel.address, _UNREACHABLE_TIMEOUT_S, kind, self._tasks.last_loss)
        raise notices.no_answer(self._channel.address, _UNREACHABLE_TIMEOUT_S)

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
        if update.has_state or update.losses or update.skipping:
            self._inbox.update(update)

    def _report(self, seq: int, leaving: bool) -> ClientReport:
        return ClientReport(
            client_id=self._client_id,
            elements=self._consumption.consumed,
            wait_ns=self._waits.ns,
            decode_ns=self._decode_ns,
            active_ns=self._active_ns or self._clock() - self._began,
            lost=self._tasks.lost,
            seq=seq,
            leaving=leaving,
            losses_received=self._losses_received,
            instance=self._instance,
            holdings=self._holdings() if leaving else self._tasks.fence(self._halted_tasks),
        )

    def _holdings(self) -> tuple[TaskHolding, ...]:
        """What this reader consumed, for the dispatcher: workers that die now have not told it."""
        return self._last_holdings if self._closing else self._tasks.consumed_holdings()


class _Tracking(ConsumptionListener):
    """What a reader learns from the end of its pipeline."""

    __slots__ = ("_reader",)

    def __init__(self, reader: ReadStage) -> None:
        self._reader = reader

    def consumed(self, elements: int, errors: int) -> None:
        self._reader.user_consumed(elements, errors)

    def may_consume(self) -> bool:
        return self._reader.owns_unconsumed
