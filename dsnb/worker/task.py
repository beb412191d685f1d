"""One worker's part of one iteration: the shell around a window, with its producer and its readers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

from dsnb.elements.frame import Array, Frame
from dsnb.elements.room import Room
from dsnb.errors import CancelledError, InvalidArgumentError, NotFoundError, UnavailableError
from dsnb.pipeline.engine.stage import Stage
from dsnb.wire.manner import Manner
from dsnb.wire.messages import TaskOrder, TaskReport, TaskResume
from dsnb.wire.transfer.handover import Opening, Piece, Sink
from dsnb.worker.arena import Arena
from dsnb.worker.charging import charger
from dsnb.worker.departed import Departed
from dsnb.worker.gathering import incomplete
from dsnb.worker.laying_out import keeps, prepare, room_among
from dsnb.worker.pace import Pace
from dsnb.worker.pipelines import begin_at
from dsnb.worker.producer import BURST_BYTES, FRAME_BYTES, Limits, Producer
from dsnb.worker.reporting import ResumeReports, see, stage_reports, trainer_reports
from dsnb.worker.round_robin import RoundRobin, ended
from dsnb.worker.spill import Spill
from dsnb.worker.splits import DispatcherFeed
from dsnb.worker.task_reading import TaskReading
from dsnb.worker.window import Window

_UNBOUNDED_MS = 1 << 40
"""Of a task that cannot be taken over."""
_ALL = ""
"""The one trainer of a task that is not cached: all readers share its place."""


class Task:
    """Produces one task's elements on the first read, and serves them.

    Args:
        order: What the dispatcher asked for.
        build: Makes the pipeline's stage, which may lay its elements out in a room.
        feed: Where the pipeline's splits come from, in DYNAMIC mode.
        ahead: Bytes to produce ahead of demand.
        capacity: Most bytes that the window may ever hold, if the job is cached; `resize` says how many at present.
        on_change: Called when the dispatcher should hear of the task at once (everything is produced and consumed;
            the first elements are gone for newcomers), under the task's lock.
        note: Where this task runs, for the errors of user code.
        spill: The disk for trainers that asked to be served from there when they fall behind.
        packed: Whether its readers are in other processes.
    """

    def __init__(
        self,
        order: TaskOrder,
        build: Callable[[Room], Stage],
        feed: DispatcherFeed | None,
        *,
        ahead: int,
        capacity: int,
        on_change: Callable[[], None],
        note: str,
        spill: Spill | None = None,
        packed: bool = False,
    ) -> None:
        self.order = order
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._spill = spill
        self._window: Window | RoundRobin
        if order.consumers:
            self._window = RoundRobin(consumers=order.consumers, ahead=ahead)
        else:
            position = order.position if order.position is not None and order.position.taken_over else None
            first = position.first if position is not None else 0
            self._window = Window(
                capacity=capacity, ahead=ahead, keep=order.cached, whole=not order.endless, store=spill, first=first
            )
            if position is not None:
                self._window.take_over(position.trainers)
        self._most_bytes = capacity
        self._pace = Pace()
        self._departed = Departed()
        self._last: TaskReport | None = None
        """What was told when it was dropped."""
        self._readings: dict[str, TaskReading] = {}
        self._gone: dict[str, int] = {}
        """How many elements clients had consumed, as far as is known, whom the dispatcher gave up."""
        self._packed = packed and not order.consumers
        self._packs = keeps(order) and not packed
        self._arena = Arena(2 * capacity) if self._packs else None
        self.limits = self._limits()
        name, make, begin = f"dsnb-task-{order.task_id}", partial(build, self.room), partial(begin_at, order)
        self._producer = Producer(name, make, self, note, packed=packed, begin=begin)
        self._feed = feed
        self._on_change = on_change
        self._started = self._stopped = self._end_noted = self._torn_noted = False
        self._paused = order.paused
        self._resumes = ResumeReports()
        self._errors = self._sent_elements = self._sent_bytes = self._repeated = 0

    # ---- readers

    def open(self, opening: Opening, sink: Sink) -> TaskReading:
        """Let a client read; the first one starts the pipeline.

        Raises:
            UnavailableError: the task has been stopped.
        """
        with self._lock:
            if self._stopped:
                raise UnavailableError(f"the task {opening.task_id} was stopped")
            if opening.client_id in self._gone:
                raise NotFoundError(f"the reader {opening.client_id} was given up", did="it was not let in again")
            if self.order.cached and not opening.trainer_id:
                raise InvalidArgumentError(
                    "the cross-trainer cache requires a non-empty trainer ID", did="the reader was refused"
                )
            trainer = opening.trainer_id if self.order.cached or self.order.consumers else _ALL
            client = opening.client_id
            old = self._put_down(client)
            if old is not None:  # its connection broke, and we have not noticed
                old.sink.fail(CancelledError("the same client opened this task again"))
            manner = opening.manner or Manner()
            self._window.attach(client, trainer, opening.received, opening.consumed, manner)
            if opening.had and isinstance(self._window, Window):
                pairs = list(zip(opening.had[::2], opening.had[1::2], strict=False))
                known = self._gone.get(opening.client_before)
                untold = opening.had_count - known if known is not None else None
                self._repeated += self._window.confirm(trainer, pairs, untold)
            reading = self._readings[client] = TaskReading(self, opening, sink, trainer)
            if not self._started:
                self._started = True
                self._producer.start()
            self._tell_progress(reading)
            self._window.credit(client, opening.granted, opening.consumed, opening.max_bytes)
            self._pump_all() if manner.together else self._pump(reading)
            self._changed.notify_all()
            return reading

    def credit(
        self, reading: TaskReading, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0
    ) -> None:
        with self._lock:
            if self._readings.get(reading.client) is reading:
                if isinstance(self._window, RoundRobin):
                    self._window.acknowledge(reading.client, received)
                    self._window.credit(reading.client, granted, consumed, max_bytes)
                else:
                    self._window.credit(reading.client, granted, consumed, max_bytes, taken)
                reading.consumed(consumed)
                self._pump(reading)
                if self.order.consumers:
                    self._tell_progress(*self._readings.values())
                self._note_end()
                self._changed.notify_all()

    def recall(self, reading: TaskReading) -> None:
        with self._lock:
            if self._readings.get(reading.client) is reading:
                reading.sink.recalled(self._window.recall(reading.client))

    def leave(
        self, client: str, consumed: int | None = None, reading: TaskReading | None = None, *, died: bool = False
    ) -> None:
        """Let a client go: by its own word, or by the dispatcher's that it is gone."""
        with self._lock:
            if reading is not None and self._readings.get(client) is not reading:
                return
            known = self._put_down(client)
            if consumed is None and known is not None:
                consumed = known.sink.consumed
            if died and isinstance(self._window, Window):
                # It may not know yet, and what it has not consumed is for others now.
                self._gone[client] = max(consumed or 0, self._window.consumed_by(client))
            self._window.leave(client, consumed)
            if died and isinstance(self._window, Window):
                self._window.dismiss_unread()  # nobody waits for a trainer that will not come back
            self._pump_all()
            self._note_end()
            self._changed.notify_all()

    def _put_down(self, client: str) -> TaskReading | None:
        reading = self._readings.pop(client, None)
        if reading is not None:
            self._departed.add(reading)
        return reading

    def dismiss(self, trainer_id: str) -> None:
        """Keep nothing for a trainer any longer."""
        with self._lock:
            if isinstance(self._window, Window):
                self._window.dismiss(trainer_id)
            self._changed.notify_all()

    def pause(self, *, paused: bool) -> None:
        """Produce and hand out nothing more, or go on."""
        with self._lock:
            self._paused = paused
            self._pump_all()
            self._changed.notify_all()

    def tidy(self, now: float) -> None:
        """Look at the time: who holds others up and gives no sign of life, and how fast everybody is."""
        with self._lock:
            if isinstance(self._window, Window):
                if self._paused:
                    self._window.excuse(now)
                self._window.tidy(now)
                if self._window.gathering.overdue(self._window.trainers.values(), now):
                    self._give_up_gathering(self._window)
            see(self._pace, self._window, now)
            self._changed.notify_all()

    def _give_up_gathering(self, window: Window) -> None:
        error = incomplete(self.order.job_name, sorted({window.readers[client].trainer for client in self._readings}))
        for reading in list(self._readings.values()):
            self.leave(reading.client)
            reading.sink.fail(error)

    def _note_end(self) -> None:
        # Not when the last element was produced: a reader that joins the pass then still has its share to come.
        if self._window.finished and not self._end_noted and self.done:
            self._end_noted = True
            self._on_change()

    def _pump_all(self) -> None:
        for reading in list(self._readings.values()):
            self._pump(reading)

    def _pump(self, reading: TaskReading) -> None:
        """Deliver what the reader's credit allows. Under the lock, so pieces keep their order."""
        if self._paused:
            return
        pieces = []
        for taken in self._window.take_all(reading.client):
            pieces.append(piece := Piece(taken.frame, taken.index, taken.start, taken.count, self.order.incarnation))
            self._sent_elements += piece.count
            self._sent_bytes += piece.nbytes
            reading.sent(piece.count)
        if pieces:
            reading.ended = False  # what another reader left may come after the end
            reading.sink.deliver_all(pieces)
        self._see_end(reading)

    def _see_end(self, reading: TaskReading) -> None:
        if reading.ended or not self._window.at_end(reading.client):
            return
        reading.ended = True
        if isinstance(self._window, RoundRobin):
            reading.sink.fail(ended(self.order.job_name, self._window.failure()))
        else:
            reading.sink.end()

    def _tell_progress(self, *readings: TaskReading) -> None:
        """In a coordinated read: which turns are whole. What a consumer was sent before is in its hands first."""
        window = self._window
        if not isinstance(window, RoundRobin):
            return
        for reading in readings:
            news = window.news(reading.client)
            if news is not None:
                reading.sink.progress(*news)
                self._see_end(reading)

    # ---- the producer's outlet

    def wait_for_room(self) -> bool:
        with self._lock:
            while not self._stopped and (self._paused or not self._window.wants_more()):
                self._changed.wait()
            return not self._stopped

    def _limits(self) -> Limits:
        if not self.order.cached:
            return Limits(burst_bytes=BURST_BYTES if self._packed else 0)
        frame_bytes = max(1, min(FRAME_BYTES, self._window.capacity // 8))
        return Limits(frame_bytes=frame_bytes, element_bytes=self._most_bytes)

    def room(self, nbytes: int) -> Array | None:
        """Where a reader would see an element that is going to be a frame of its own."""
        alone = self._packed and 2 * nbytes > self.limits.frame_bytes
        return room_among(self._sinks(), nbytes) if alone else None

    def _sinks(self) -> list[Sink]:
        return [reading.sink for reading in list(self._readings.values())]

    def gathered(self, count: int) -> None:
        if self._feed is not None:
            with self._lock:
                self._feed.settle(self._window.head + count)

    @cached_property
    def _shares(self) -> bool:
        """Whether others have what is in its frames, too: other readers, or a source that lends it."""
        stage = self._producer.stage
        return keeps(self.order) or (stage is not None and stage.lends)

    def add(self, *frames: Frame) -> None:
        if self._shares:  # not under the lock: it takes long, as the next
            space = self._arena if len(self._readings) > 1 else None  # for one reader a copy costs less
            for frame in frames:
                frame.keep(pack=self._packs, space=space)
        if self._packed:
            prepare(self._sinks(), frames, self._window.head, self.order.incarnation)
        with self._lock:
            if self._stopped:
                return
            for frame in frames:
                self._append(frame)
            self._pump_all()

    def _append(self, frame: Frame) -> None:
        self._errors += frame.failure is not None
        if self.order.cached:
            frame.on_encoded = charger(self, self._window.head)
        self._window.append(frame, frame.count, frame.nbytes, frame.failure is not None)
        self._note_torn()

    def _note_torn(self) -> None:
        # The first elements are gone: newcomers who want everything must not come here any more.
        if self.order.cached and not self._torn_noted and self._window.base > 0:
            self._torn_noted = True
            self._on_change()

    def charge(self, index: int, nbytes: int) -> bool:
        """Count what is kept beside the frame that begins there, if it may be."""
        with self._lock:
            return isinstance(self._window, Window) and self._window.charge(index, nbytes)

    def finish(self) -> None:
        with self._lock:
            self._window.finish()
            self._pump_all()
            self._note_end()

    def interrupt(self, error: Exception) -> None:
        """Tell all readers of an error that stands in no element's place. One that reads on opens the task again."""
        with self._lock:
            for client in list(self._readings):
                reading = self._put_down(client)
                if reading is not None:
                    reading.sink.fail(error)

    # ---- the worker's side

    def wants(self) -> int | None:
        """Bytes that its window has use for: what it holds, or None for more, while somebody reads and more comes."""
        with self._lock:
            idle = self._started and not self._readings
            return self._window.nbytes if idle or self._window.finished else None

    def resize(self, capacity: int) -> None:
        """Change the bytes that the window may hold; what is over is let go, also if no other frame will come."""
        with self._lock:
            self._window.capacity = capacity
            self.limits = self._limits()
            if isinstance(self._window, Window):
                self._window.make_room()
            self._note_torn()

    def stop(self, error: Exception) -> None:
        """End production and tell the readers why; waits shortly for the pipeline, unless user code holds it."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
            readings = list(self._readings.values())
            self._readings.clear()
            if isinstance(self._window, Window):
                self._window.frames.let_go()  # now: they may lie in shared memory
            self._arena = None  # it goes with its last frame
            if self._spill is not None:
                self._spill.close()
        if self._producer.stage is not None:
            self._producer.stage.cancel()
        for reading in readings:
            reading.sink.fail(error)

    def join(self, timeout: float) -> bool:
        """Wait for the producer's end; False where user code still runs after `timeout` seconds."""
        if self._producer.ident is None or self._producer is threading.current_thread():
            return True
        self._producer.join(timeout)
        return not self._producer.is_alive()

    def report(self) -> TaskReport:
        """What this task did so far."""
        with self._lock:
            if self._last is not None:
                return self._last
            window = self._window
            present = self._readings.values()
            trainers = trainer_reports(window, self._pace, lambda name: self._departed.flight_ns(name, present))
            consumed = max((report.offset for report in trainers), default=0)  # by whoever is furthest
            return TaskReport(
                task_id=self.order.task_id,
                state=self._state(),
                head=window.head,
                tail=window.tail,
                window_bytes=window.nbytes,
                capacity_bytes=window.capacity,
                evicted=window.evicted if isinstance(window, Window) else 0,
                errors=self._errors,
                sent_elements=self._sent_elements,
                sent_bytes=self._sent_bytes,
                trainers=trainers,
                stages=stage_reports(self._producer.stage),
                splits_done=self._splits_done(consumed),
                readers=len(self._readings),
                spill_bytes=self._spill.nbytes if self._spill is not None else 0,
                partial=self.order.cached and window.base > 0,
                clients=tuple(window.readers),
                links=tuple(reading.link_report() for reading in present),
                grants=self._feed.grants() if self._feed is not None else (),
                compression=self._departed.compression(present),
                resume=self._resume(),
                exhausted=isinstance(window, Window) and window.exhausted,
                short_by=window.short_by if isinstance(window, Window) else 0,
                incarnation=self.order.incarnation,
                repeated=self._repeated,
            )

    def _resume(self) -> TaskResume | None:
        stage = self._producer.stage
        if stage is None or not isinstance(self._window, Window) or not self._producer.begun:
            return None
        position = self.order.position
        begun = position.skip if position is not None and not position.resume else 0
        resume = self._resumes.report(self._window, stage, begun)
        return resume if self._producer.countable else replace(resume, repeated_ms=_UNBOUNDED_MS)

    def _splits_done(self, consumed: int) -> tuple[int, ...]:
        if self._feed is None:
            return ()
        if self._window.finished:  # nothing is on its way any more
            self._feed.end(self._window.head)
        return self._feed.done(consumed)

    def drop(self) -> TaskReport:
        """Let go of all that was kept, behind the end and whoever still holds the task; its last report."""
        with self._lock:
            if self._last is None:
                self._last = replace(self.report(), state="dropped")
                self._window = Window(capacity=1, ahead=1, keep=False)
                self._arena = None
            return self._last

    def _state(self) -> str:
        if not self._started:
            return "pending"
        return "ended" if self._window.finished else "paused" if self._paused else "running"

    @property
    def read(self) -> bool:
        """Whether somebody reads it."""
        with self._lock:
            return bool(self._readings)

    @property
    def done(self) -> bool:
        """Whether everything is produced and consumed."""
        with self._lock:
            return isinstance(self._window, Window) and self._window.done
