"""One worker's part of one iteration: the shell around an element log, its producer and its readers.

Theory of operation. One lock guards the log (an `ElementLog`, which is pure) and the sessions. Each event that
may let elements flow (a frame, credit, a reader that leaves) calls `_pump` under that lock, so slices reach each sink
in order. Slow work happens outside the lock: the producer runs the pipeline and lays frames out before it adds them.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError as CancelledFuture
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from msgspec.structs import replace

from dsnb.cache.opened_files import MOST_ON_WORKER, TOO_MANY, FileState, OpenedFiles
from dsnb.elements.allocation import Allocator
from dsnb.elements.frame import Array, Frame
from dsnb.errors import CancelledError, InvalidArgumentError, NotFoundError, UnavailableError
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.split_order import UnitStage
from dsnb.stopwatch import Stopwatch
from dsnb.storage.failpoints import Failpoint
from dsnb.transfer.protocol import FrameSlice, LinkStats, Sink
from dsnb.wire.field_groups import LogProgress, shared
from dsnb.wire.messages import CachePolicy, LostReader, ReadRequest, ResumePosition, TaskOrder, TaskReport
from dsnb.wire.schedule import Leftovers
from dsnb.wire.unit_mark import UnitMark
from dsnb.worker.arena import Arena
from dsnb.worker.element_log import ElementLog
from dsnb.worker.fair_shares import TASK_THREAD_PREFIX
from dsnb.worker.pipeline_loader import seek_to_position
from dsnb.worker.processor_shares import JobPace
from dsnb.worker.producer import BURST_BYTES, FRAME_BYTES, FrameLimits, Producer
from dsnb.worker.reporting import RateMeter, ResumeReporter, stage_reports, trainer_reports, update_rates
from dsnb.worker.round_log import RoundLog
from dsnb.worker.sessions import ClosedReaderTotals, ReaderSession
from dsnb.worker.shared_log import SharedLog, start_barrier_timeout
from dsnb.worker.spill import Spill
from dsnb.worker.splits import DispatcherFeed

_UNBOUNDED_MS = 1 << 40
"""`repeated_ms` in the report of a task that no other worker can continue."""
_MOST_LOST_READERS = 100
_FILES_PER_MESSAGE = 1000
_MOST_UNIT_MARKS = 10_000
_UNITS_READY = 4
"""How many units a worker may have ready. A slow worker holds two, the one that it makes and the next. If it is 1.5
times slower, another makes three before these are done, and goes on with a fourth."""
_SEND = Failpoint("elements send", error=None)
_SHARED_TRAINER_ID = ""
"""The only trainer of a task that is not cached: all readers share its cursor."""


class Task:
    """Produces one task's elements from the first read on, and serves them.

    Args:
        order: The dispatcher's order.
        build: Makes the pipeline's stage, which may lay its elements out in memory from the allocator.
        feed: Where the pipeline's splits come from, in DYNAMIC mode.
        read_ahead_bytes: Most bytes to produce ahead of demand.
        capacity: Most bytes that the window may ever hold, if the job is cached; `resize` sets the present limit.
        on_change: Called, under the task's lock, when the dispatcher needs a report at once: the last rounds are to be
            planned, or the first elements must be evicted, before which the dispatcher closes the iteration.
        on_end: Called, under the task's lock, when everything is produced and consumed.
        error_context: Where this task runs, for the errors of user code.
        spill: Disk storage for trainers with `on_lag="spill"`.
        packed: Whether the readers are in other processes.
        opened_files: Where the pipeline records the files that it opens; None if it does not.
        pace: Holds the producer back, so that other jobs get their shares of the processors; None never does.
        make_producer: Makes what runs the pipeline, with the arguments of `Producer`.
    """

    def __init__(
        self,
        order: TaskOrder,
        build: Callable[[Allocator], Stage],
        feed: DispatcherFeed | None,
        *,
        read_ahead_bytes: int,
        capacity: int,
        on_change: Callable[[], None],
        on_end: Callable[[], None],
        error_context: str,
        spill: Spill | None = None,
        packed: bool = False,
        opened_files: OpenedFiles | None = None,
        pace: JobPace | None = None,
        make_producer: Callable[..., Producer] = Producer,
    ) -> None:
        self.order = order
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._spill = spill
        self._log = _element_log(order, capacity, read_ahead_bytes, spill)
        self._most_bytes = capacity
        self._rates = RateMeter()
        self._closed_readers = ClosedReaderTotals()
        self._final_report: TaskReport | None = None
        """The report at the time when the task was dropped."""
        self._sessions: dict[str, ReaderSession] = {}
        self._lost_clients: dict[str, int] = {}
        """For each client that the dispatcher declared dead: how many elements it is known to have consumed."""
        self._lost_readers: deque[LostReader] = deque(maxlen=_MOST_LOST_READERS)
        """Those of the lost clients that read this task, for its reports."""
        self._rejoined: set[str] = set()
        """The clients whose consumption under an earlier id was taken into account."""
        self._packed = packed and not order.num_consumers
        self._opened_files = opened_files or OpenedFiles()
        self._files: dict[FileState, None] = {}
        """The states of the files that were opened, in order."""
        self._unit_marks: list[UnitMark] = []
        """Where units of splits begin and end, if elements come in their order."""
        self._made_before_first = 0
        """How many elements the pipeline made, since it began, before the first one of this task's sequence."""
        self._packs_kept_frames = keeps_frames(order) and not packed
        self._arena = Arena(2 * capacity) if self._packs_kept_frames else None
        self.limits = self._limits()
        name, make, begin = f"{TASK_THREAD_PREFIX}{order.task_id}", partial(build, self.allocate), self._seek
        self._producer = make_producer(name, make, self, error_context, packed=packed, seek=begin)
        self._feed = feed
        self.pace = pace or JobPace()
        self._held_back = Stopwatch()
        """How long the producer waited for its pace."""
        self._made = self._log.head
        """How many elements the pipeline has made, with those that are not in the log yet."""
        self._on_change, self._on_end = on_change, on_end
        self._started = self._stopped = self._end_noted = self._closing_noted = False
        self._paused = order.paused
        self._passing: Future[tuple[int, Frame]] | None = None
        """Gets the next frame and the index of its first element; None unless somebody waits for it."""
        self._resume_reporter = ResumeReporter()
        self._errors = self._sent_elements = self._sent_bytes = self._repeated = 0

    # ---- readers

    def open(self, request: ReadRequest, sink: Sink, link_stats: LinkStats | None = None) -> ReaderSession:
        """Begin to serve a client; the first one starts the pipeline.

        Args:
            request: The client's request.
            sink: Receives the frame slices, the end and errors.
            link_stats: Statistics of the read, which its transfer updates; None for new ones.

        Raises:
            UnavailableError: the task was stopped.
            NotFoundError: the dispatcher declared this client dead.
            CancelledError: the client has opened the task again since, and this request was handled late.
            InvalidArgumentError: the job is cached and the request has no trainer id.
        """
        with self._lock:
            if self._stopped:
                raise UnavailableError(f"the task {request.task_id} was stopped")
            if request.client_id in self._lost_clients:
                raise NotFoundError(f"the reader {request.client_id} was removed", did="it was not admitted again")
            if self.order.cached and not request.trainer_id:
                raise InvalidArgumentError(
                    "the cross-trainer cache requires a non-empty trainer ID", did="the reader was refused"
                )
            present = self._sessions.get(request.client_id)
            if present is not None and request.opening < present.opening:
                raise CancelledError("the same client has opened this task again")
            trainer = request.trainer_id if self.order.cached or self.order.num_consumers else _SHARED_TRAINER_ID
            client = request.client_id
            old = self._remove_session(client)
            if old is not None:  # its connection broke, and this side has not noticed yet
                old.sink.fail(CancelledError("the same client opened this task again"))
            cache_policy = request.cache_policy or CachePolicy()
            self._log.attach(client, trainer, request.received, request.consumed, cache_policy)
            if request.consumed_before and client not in self._rejoined:
                # The client was declared dead and returned with a new id: do not send again what it consumed. It
                # reports this with each request until an element arrives. Reconciling twice would count the same
                # elements as repeated.
                self._rejoined.add(client)
                pairs = list(zip(request.consumed_before[::2], request.consumed_before[1::2], strict=False))
                known = self._lost_clients.get(request.previous_client_id)
                unacked = request.consumed_before_count - known if known is not None else None
                self._repeated += self._log.reconcile(trainer, pairs, unacked)
            session = self._sessions[client] = ReaderSession(self, request, sink, trainer, link_stats or LinkStats())
            if not self._started:
                self._started = True
                self._producer.start()
            self._send_progress(session)
            self._log.credit(client, request.granted, request.consumed, request.max_bytes)
            self._pump_all() if cache_policy.start_together else self._pump(session)
            self._changed.notify_all()
            return session

    def credit(
        self, session: ReaderSession, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0
    ) -> None:
        with self._lock:
            if self._sessions.get(session.client) is session:
                self._log.credit(session.client, granted, consumed, max_bytes, received=received, taken=taken)
                session.update_consumed(consumed)
                self._pump(session)
                if self.order.num_consumers:
                    self._send_progress(*self._sessions.values())
                self._note_end()
                self._changed.notify_all()

    def recall(self, session: ReaderSession) -> None:
        with self._lock:
            if self._sessions.get(session.client) is session:
                session.sink.recalled(self._log.recall(session.client))

    def leave(
        self, client: str, consumed: int | None = None, session: ReaderSession | None = None, *, died: bool = False
    ) -> None:
        """End a client's reading; its unconsumed elements go to its trainer's other readers.

        Args:
            client: The client.
            consumed: How many elements it consumed; None for the last value known here.
            session: The session that ends; None for the present one. An older one is ignored: the client reconnected.
            died: Whether the dispatcher declared the client dead. It cannot open this task again under the same id.
        """
        with self._lock:
            if session is not None and self._sessions.get(client) is not session:
                return
            known = self._remove_session(client)
            shared = known.sink.consumed if known is not None else None
            if shared is not None:
                consumed = max(shared, consumed or 0)
            acknowledged = self._log.consumed_by(client)
            if died and acknowledged is not None:
                # The client may still be alive and unaware. Its elements go to others now, so `open` must refuse it.
                self._lost_clients[client] = max(consumed or 0, acknowledged)
                if client in self._log.clients:
                    self._lost_readers.append(LostReader(client_id=client, consumed=self._lost_clients[client]))
            self._log.leave(client, consumed)
            if died:
                self._log.remove_unread_trainers()  # the producer must not wait for a trainer that will not return
            self._pump_all()
            self._note_end()
            self._changed.notify_all()

    def _remove_session(self, client: str) -> ReaderSession | None:
        session = self._sessions.pop(client, None)
        if session is not None:
            self._closed_readers.add(session)
        return session

    def remove_trainer(self, trainer_id: str) -> None:
        """Stop keeping elements for a trainer."""
        with self._lock:
            self._log.remove_trainer(trainer_id)
            self._changed.notify_all()

    def pause(self, *, paused: bool) -> None:
        """Stop producing and sending elements, or resume."""
        with self._lock:
            self._paused = paused
            self._pump_all()
            self._changed.notify_all()

    def divide_leftovers(self, leftovers: Leftovers) -> None:
        """In a coordinated read that has ended: give the elements after the last whole round to consumers."""
        with self._lock:
            self._log.divide_leftovers(leftovers)
            self._pump_all()
            self._send_progress(*self._sessions.values())
            for session in self._sessions.values():
                self._send_end(session)

    def tick(self, now: float) -> None:
        """Apply timeouts and update rates.

        Args:
            now: Seconds of a monotonic clock.
        """
        with self._lock:
            if self._paused:
                self._log.touch_all(now)
            self._log.expire(now)
            if self._log.start_timed_out(now):
                self._fail_start_barrier()
            update_rates(self._rates, self._log, now)
            self._changed.notify_all()

    def _fail_start_barrier(self) -> None:
        present = sorted({session.trainer_id for session in self._sessions.values()})
        error = start_barrier_timeout(self.order.job_name, present)
        for session in list(self._sessions.values()):
            self.leave(session.client)
            session.sink.fail(error)

    def _note_end(self) -> None:
        # Not as soon as everything is produced: a reader that joins the pass after that still gets a share.
        if self._log.finished and not self._end_noted and self.done:
            self._end_noted = True
            self._on_end()

    def _pump_all(self) -> None:
        for session in list(self._sessions.values()):
            if self._pump(session):
                # Last in line next time: where elements come one by one, the first in line would get them all.
                self._sessions[session.client] = self._sessions.pop(session.client)

    def _pump(self, session: ReaderSession) -> bool:
        """Deliver what the reader's credit allows; returns whether that was something.

        Runs under the lock, so that slices stay in order.
        """
        if self._paused:
            return False
        # Asked here rather than in the two methods: this runs for each element if they come one by one.
        if session.files_sent < len(self._files):
            self._send_files(session)
        if session.unit_marks_sent < len(self._unit_marks):
            self._send_unit_marks(session)
        slices = self._log.take_all(session.client)
        for frame_slice in slices:
            self._sent_elements += frame_slice.count
            self._sent_bytes += frame_slice.nbytes
            session.count_sent(frame_slice.count)
        if slices:
            session.end_sent = False  # elements requeued by another reader may follow an end that was already sent
            with _SEND:
                session.sink.deliver_all(slices)
        if self._log.finished:
            self._send_end(session)
        return bool(slices)

    def _send_files(self, session: ReaderSession) -> None:
        """Tell a reader that asked for it of all files that were opened so far: its next elements follow from them."""
        new = list(self._files)[session.files_sent :]
        session.files_sent = len(self._files)
        if session.wants_files:
            for first in range(0, len(new), _FILES_PER_MESSAGE):
                session.sink.note_files(json.dumps(new[first : first + _FILES_PER_MESSAGE]))

    def _seek(self, stage: Stage) -> None:
        if not isinstance(stage, UnitStage):
            seek_to_position(self.order, stage)
            return
        passed: list[tuple[tuple[int, int], int, bool]] = []
        stage.on_unit = lambda *mark: passed.append(mark)  # where they are is known once the position is reached
        seek_to_position(self.order, stage)
        self._made_before_first = stage.made
        stage.on_unit = self._note_unit
        over = {unit for unit, made, ended in passed if ended and made < stage.made}
        for unit, made, ended in passed:
            if unit not in over:
                self._note_unit(unit, made, ended)

    def _note_unit(self, unit: tuple[int, int], made: int, ended: bool) -> None:
        """Tell the readers where a unit ends at once, and where one begins before they get its first element."""
        with self._lock:
            at = made - self._made_before_first
            mark = UnitMark(
                unit=unit[0],
                unit_end=unit[1],
                index=self._log.first + max(0, at),
                skipped=max(0, -at),
                ended=ended,
            )
            self._unit_marks.append(mark)
            self._drop_old_marks()
            if ended:
                self._pump_all()
            elif self._feed is not None:
                self._log.keep_ready(_UNITS_READY * self._feed.bytes_of(unit[1] - unit[0]))

    def _drop_old_marks(self) -> None:
        """Drop marks before all elements that are left, if there are many. Only a late reader misses them."""
        if len(self._unit_marks) > _MOST_UNIT_MARKS:
            old = next((n for n, mark in enumerate(self._unit_marks) if mark.index >= self._log.tail), 0)
            old -= old % 2  # the beginning and the end of a unit
            del self._unit_marks[:old]
            for session in self._sessions.values():
                session.unit_marks_sent = max(0, session.unit_marks_sent - old)

    def _send_unit_marks(self, session: ReaderSession) -> None:
        """Tell a reader of all units that began or ended, before the elements after that place."""
        for mark in self._unit_marks[session.unit_marks_sent :]:
            session.sink.note_unit(mark)
        session.unit_marks_sent = len(self._unit_marks)

    def _send_end(self, session: ReaderSession) -> None:
        if session.end_sent or not self._log.at_end(session.client):
            return
        session.end_sent = True
        error = self._log.end_error(self.order.job_name)
        if error is None:
            session.sink.end()
        else:
            session.sink.fail(error)

    def _send_progress(self, *sessions: ReaderSession) -> None:
        """In a coordinated read: send how many rounds are complete, after the elements that were sent before."""
        for session in sessions:
            progress = self._log.unreported_progress(session.client)
            if progress is not None:
                session.sink.progress(*progress)
                self._send_end(session)

    # ---- the producer's `FrameReceiver`

    def wait_for_room(self) -> bool:
        with self._lock:
            while not (self._stopped or self._may_produce()):
                self._changed.wait(self.pace.pause(time.monotonic()) if self._held_back.running else None)
            self._held_back.stop()
            return not self._stopped

    def _may_produce(self) -> bool:
        """Whether a frame is wanted and the pace allows it; measures for how long only the pace is in the way."""
        if not self.wants_frame():
            self._held_back.stop()
            return False
        if self.pace.pause(time.monotonic()):
            self._held_back.start()
            return False
        return True

    def wants_frame(self) -> bool:
        """Whether another frame should be produced now."""
        with self._lock:
            wants = not (self._stopped or self._paused) and self._log.wants_more()
            if self._log.closing:
                self._note_closing()
            return wants

    def _limits(self) -> FrameLimits:
        if not self.order.cached:
            return FrameLimits(burst_bytes=BURST_BYTES if self._packed else 0)
        frame_bytes = max(1, min(FRAME_BYTES, self._log.capacity // 8))
        return FrameLimits(frame_bytes=frame_bytes, element_bytes=self._most_bytes)

    def allocate(self, nbytes: int) -> Array | None:
        """Memory that a reader can see, for an element large enough to become a frame of its own; None for anywhere."""
        alone = self._packed and 2 * nbytes > self.limits.frame_bytes
        return allocate_in_one(self._sinks(), nbytes) if alone else None

    def _sinks(self) -> list[Sink]:
        return [session.sink for session in list(self._sessions.values())]

    def on_pulled(self, pending: int) -> None:
        with self._lock:
            made = self._log.head + pending
            self.pace.note(made - self._made, time.monotonic())
            self._made = made
            if self._feed is not None:
                self._feed.mark_produced(made)

    @cached_property
    def _elements_are_shared(self) -> bool:
        """Whether the memory of its frames is shared: with other readers, or with a source."""
        stage = self._producer.stage
        return keeps_frames(self.order) or (stage is not None and stage.may_share_memory)

    def add(self, *frames: Frame) -> None:
        # Sharing and preparing frames is slow, so both happen before the lock is taken. `head` cannot move meanwhile:
        # the producer makes one call of `add` at a time.
        if self._elements_are_shared:
            space = self._arena if len(self._sessions) > 1 else None  # for one reader a copy costs less
            for frame in frames:
                frame.make_shared(pack=self._packs_kept_frames, buffer_store=space)
        if self._packed:
            prepare_frames(self._sinks(), frames, self._log.head, self.order.incarnation)
        files = self._opened_files.take_states("strict")
        with self._lock:
            if self._stopped:
                return
            self._add_files(files)
            for frame in frames:
                self._append(frame)
                if self._feed is not None:
                    self._feed.note_bytes(frame.nbytes)
            self._pump_all()

    def _add_files(self, files: Iterable[FileState]) -> None:
        for file in files:
            if file not in self._files:
                self._files[file if len(self._files) < MOST_ON_WORKER else TOO_MANY] = None

    def _append(self, frame: Frame) -> None:
        self._errors += frame.failure is not None
        if self._passing is not None:
            self._passing.set_result((self._log.head, frame))
            self._passing = None
        if self.order.cached:
            frame.reserve_encoded_bytes = encoded_bytes_callback(self, self._log.head)
        self._log.append(frame, frame.count, frame.nbytes, frame.failure is not None)
        if self._log.closing:
            self._note_closing()

    def _note_closing(self) -> None:
        # Before the first elements are evicted, the dispatcher must stop sending trainers here that want all of them.
        if not self._closing_noted:
            self._closing_noted = True
            self._on_change()

    def close_to_new_trainers(self, joined: Iterable[tuple[str, str]]) -> None:
        """Allow to evict the first elements: no trainer that wants all of them can join any more.

        Args:
            joined: The clients that joined and want every element, each with its trainer.
        """
        with self._lock:
            self._log.close_to_new_trainers(joined)
            self._changed.notify_all()

    def reserve_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Charge a cached encoding of the frame that begins at `index`; False if it must not be kept."""
        with self._lock:
            return self._log.reserve_encoded_bytes(index, nbytes)

    def finish(self) -> None:
        files = self._opened_files.take_states("strict")
        with self._lock:
            if self._stopped:  # the pipeline was cancelled, so its end says nothing of the task's elements
                return
            self._add_files(files)
            self._log.finish()
            if self.order.leftovers is not None:
                self._log.divide_leftovers(self.order.leftovers)
            self._pump_all()
            self._end_wait_for_frame()
            self._note_end()
            if self.order.num_consumers:
                self._on_change()  # the dispatcher plans the last rounds of all tasks

    def fail_readers(self, error: Exception) -> None:
        """End all readings with an error that takes no element's place; a client that reads on opens the task again."""
        with self._lock:
            for client in list(self._sessions):
                session = self._remove_session(client)
                if session is not None:
                    session.sink.fail(error)

    # ---- the worker's side

    def wanted_bytes(self) -> int | None:
        """How many bytes the window can use: what it holds if it will not grow, None for as many as possible.

        It does not grow once everything is produced, or while no client reads.
        """
        with self._lock:
            idle = self._started and not self._sessions
            return self._log.nbytes if idle or self._log.finished else None

    def resize(self, capacity: int) -> None:
        """Set how many bytes the window may hold, and evict at once what exceeds them."""
        with self._lock:
            self._log.capacity = capacity
            self.limits = self._limits()
            self._log.make_room()
            if self._log.closing:
                self._note_closing()

    def stop(self, error: Exception) -> None:
        """End production and all readings, and free the frames. Does not wait for the producer; see `join`.

        Args:
            error: Raised in the readers.
        """
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
            self._end_wait_for_frame()
            sessions = list(self._sessions.values())
            self._sessions.clear()
            self._log.drop_frames()  # now: they may occupy shared memory, which is scarce
            self._arena = None  # freed with its last frame
            if self._spill is not None:
                self._spill.close()
        if self._producer.stage is not None:
            self._producer.stage.cancel()
        for session in sessions:
            session.sink.fail(error)

    def join(self, timeout: float) -> bool:
        """Wait for the producer's thread to end; False if user code still runs after `timeout` seconds."""
        if self._producer.ident is None or self._producer is threading.current_thread():
            return True
        self._producer.join(timeout)
        return not self._producer.is_alive()

    def report(self) -> TaskReport:
        """The task's report to the dispatcher."""
        with self._lock:
            if self._final_report is not None:
                return self._final_report
            log = self._log
            present = self._sessions.values()
            trainers = trainer_reports(log, self._rates, lambda name: self._closed_readers.flight_ns(name, present))
            consumed = max((report.offset for report in trainers), default=0)  # of the furthest trainer
            return TaskReport(
                task_id=self.order.task_id,
                state=self._state(),
                **shared(LogProgress, log),
                window_bytes=log.nbytes,
                capacity_bytes=log.capacity,
                errors=self._errors,
                held_back_ns=self._held_back.ns,
                sent_elements=self._sent_elements,
                sent_bytes=self._sent_bytes,
                trainers=trainers,
                stages=stage_reports(self._producer.stage),
                splits_done=self._splits_done(consumed),
                readers=len(self._sessions),
                spill_bytes=self._spill.nbytes if self._spill is not None else 0,
                closing=log.closing,
                clients=tuple(log.clients),
                links=tuple(session.link_report() for session in present),
                grants=self._feed.grants() if self._feed is not None else (),
                compression=self._closed_readers.compression(present),
                resume_position=self._resume(),
                exhausted=log.exhausted,
                missing_elements=log.short_by,
                incarnation=self.order.incarnation,
                repeated=self._repeated,
                lost_readers=tuple(self._lost_readers),
            )

    def newest_frames(self, most: int, wait_s: float) -> Sequence[tuple[int, Frame]]:
        """The newest frames in memory, see `ElementLog.newest_frames`: references, to read without the task's lock.

        If there is none, because readers take each as it is produced, wait up to `wait_s` seconds for the next one.
        """
        with self._lock:
            found = self._log.newest_frames(most)
            if found or self._stopped or self._paused or self._log.finished:
                return found
            passing = self._passing = self._passing or Future()
        with suppress(TimeoutError, CancelledFuture):
            found = [passing.result(wait_s)]
        return found

    def _end_wait_for_frame(self) -> None:
        if self._passing is not None:
            self._passing.cancel()
            self._passing = None

    def debug_state(self) -> dict[str, Any]:
        """What the task is, and how far it is, as plain data."""
        with self._lock:
            return {
                "mode": self.order.mode,
                "incarnation": self.order.incarnation,
                "paused": self._paused,
                "finished": self._log.finished,
                "readers": [*self._sessions],
                "awaited": self._passing is not None,
            }

    def _resume(self) -> ResumePosition | None:
        stage = self._producer.stage
        index = self._log.resume_index()
        if stage is None or index is None or not self._producer.positioned:
            return None
        position = self.order.position
        begun = position.skip if position is not None and not position.pipeline_position else 0
        resume = self._resume_reporter.report(index, stage, index - self._log.first + begun)
        return resume if self._producer.one_to_one else replace(resume, repeated_ms=_UNBOUNDED_MS)

    def _splits_done(self, consumed: int) -> tuple[int, ...]:
        if self._feed is None:
            return ()
        if self._log.finished:  # no element is inside the pipeline any more
            self._feed.end(self._log.head)
        return self._feed.done(consumed)

    def drop(self) -> TaskReport:
        """Free all elements, even if something still refers to the task; returns its last report."""
        with self._lock:
            if self._final_report is None:
                self._final_report = replace(self.report(), state="dropped")
                self._log = SharedLog(capacity=1, read_ahead_bytes=1, keep=False)
                self._arena = None
            return self._final_report

    def _state(self) -> str:
        if not self._started:
            return "pending"
        return "ended" if self._log.finished else "paused" if self._paused else "running"

    @property
    def has_connected_readers(self) -> bool:
        """Whether any client is connected to read this task. Others may come back to theirs, or may have died."""
        with self._lock:
            return any(session.sink.connected for session in self._sessions.values())

    @property
    def producing(self) -> bool:
        """Whether its pipeline runs: it has begun, is not over, and was not stopped."""
        with self._lock:
            return self._started and not self._stopped and not self._log.finished

    @property
    def produced(self) -> int:
        """How many elements its pipeline has made."""
        with self._lock:
            return self._made - self._log.first

    @property
    def held_back_ns(self) -> int:
        """For how long its pace has held it back."""
        return self._held_back.ns

    def consumed_by(self, client: str) -> int | None:
        """How many elements a client is known to have consumed; None if it does not read this task."""
        with self._lock:
            return self._log.consumed_by(client)

    @property
    def done(self) -> bool:
        """Whether everything is produced and consumed."""
        with self._lock:
            return self._log.done


def keeps_frames(order: TaskOrder) -> bool:
    """Whether a task keeps its frames for other readers after their elements were sent to one."""
    return order.cached or order.num_consumers > 0


def allocate_in_one(sinks: Iterable[Sink], nbytes: int) -> Array | None:
    """Memory for `nbytes` bytes that one of the readers can see; None if no sink offers any.

    Args:
        sinks: The sinks of the readers.
        nbytes: The element's size.
    """
    return next((memory for sink in sinks if (memory := sink.allocate(nbytes)) is not None), None)


def prepare_frames(sinks: Iterable[Sink], frames: Sequence[Frame], index: int, incarnation: int) -> None:
    """Let sinks do slow work for frames that may be delivered soon; call it without the task's lock.

    Args:
        sinks: The sinks of the readers.
        frames: Consecutive frames.
        index: The index of the first frame's first element.
        incarnation: The task's incarnation.
    """
    pieces = []
    for frame in frames:
        pieces.append(FrameSlice(frame, index, 0, frame.count, incarnation))
        index += frame.count
    for sink in sinks:
        for piece in pieces:
            sink.prepare(piece)


def _element_log(order: TaskOrder, capacity: int, read_ahead_bytes: int, spill: Spill | None) -> ElementLog:
    if order.num_consumers:
        return RoundLog(consumers=order.num_consumers, read_ahead_bytes=read_ahead_bytes, incarnation=order.incarnation)
    position = order.position if order.position is not None and order.position.taken_over else None
    log = SharedLog(
        capacity=capacity,
        read_ahead_bytes=read_ahead_bytes,
        keep=order.cached,
        keep_all=not order.endless,
        store=spill,
        first=position.first_index if position is not None else 0,
        incarnation=order.incarnation,
    )
    if position is not None:
        log.take_over(position.trainers)
    return log


def encoded_bytes_callback(task: Task, index: int) -> Callable[[int], bool]:
    """Return a function that charges `nbytes` for a cached encoding of a frame; False if it must not be kept.

    Args:
        task: The task that holds the frame.
        index: The index of the frame's first element.
    """
    kept = weakref.ref(task)  # the frame holds this function and the task holds the frame: avoid a reference cycle

    def reserve(nbytes: int) -> bool:
        found = kept()
        return found is not None and found.reserve_encoded_bytes(index, nbytes)

    return reserve
