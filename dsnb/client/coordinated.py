"""The stage that reads a job in rounds, as one consumer of a coordinated read.

`client/rounds` decides what to take next; this module runs the threads. The user's thread waits for the next round and
takes it. The maintenance thread opens tasks, acknowledges elements and answers halts whatever the user does: other
consumers wait for this one, so it must keep receiving while its user is busy.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any

from msgspec.structs import replace

from dsnb import errors
from dsnb.cache.opened_files import OpenedFiles
from dsnb.client import notices
from dsnb.client.consumption import TakenDigest
from dsnb.client.inbox import Inbox, TaskRead
from dsnb.client.options import PAD, ReadOptions, ServiceAddress
from dsnb.client.position import StartPosition, encode_end, encode_rounds
from dsnb.client.rounds import ConsumerRounds
from dsnb.client.service_stage import JobReader
from dsnb.client.session import UNREACHABLE_TIMEOUT_S, JobClock, join, open_control_stream, service_connection
from dsnb.client.tasks import TaskTable
from dsnb.errors import (
    CancelledError,
    DataLossWarning,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.monitor.snapshot import Snapshot
from dsnb.pipeline.engine.interrupts import INTERRUPTS
from dsnb.pipeline.engine.source_positions import no_position_error
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.stopwatch import Stopwatch
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire import discovery
from dsnb.wire.channel import open_channel
from dsnb.wire.codec import decode
from dsnb.wire.messages import (
    ClientOrigin,
    ClientReport,
    ClientUpdate,
    Empty,
    EndRequest,
    IterationPosition,
    JoinReply,
    Loss,
    PositionRequest,
)
from dsnb.wire.methods import CONFIRM_END, POSITION, STATUS

_CHECK_INTERVAL_S = 0.5
"""How often a waiting thread checks. A check that lasts longer means that this process was stopped; the excess does not
count as waiting."""
_CONFIRM_INTERVAL_S = 0.1
_END_WAIT_S = 5.0
"""How long a consumer that has taken all rounds waits for the ends of the tasks: an error may have ended their data."""
_POSITION_S = 5.0
_ROUNDS_AHEAD = 64
"""Rounds of a task that may be buffered before they are due: enough to hide a round trip. A byte limit applies too."""


class CoordinatedInbox(Inbox):
    """Buffers what arrives for one consumer, by task, until its round is due."""

    def __init__(self, num_consumers: int, consumer: int) -> None:
        super().__init__()
        # No poller: it serves one thread that both waits and takes, but here two threads do.
        self.poller = None
        self.rounds = ConsumerRounds(consumer, num_consumers)
        self.has_work = False
        """Whether the maintenance thread has something to do."""
        self.starving = False
        """Whether the user's thread waits for a round that is not here, so that byte limits should be raised."""
        self.loss_warnings: deque[str] = deque()
        """Texts of data-loss warnings, for the user's thread to emit."""
        self.errors: deque[tuple[str, Exception]] = deque()
        """Errors for the user's thread to raise, with the task id; empty for errors of the whole read."""
        self.retry = False
        """Whether to retry tasks whose worker refused this reader."""
        self._num_consumers = num_consumers

    def put(self, task_read: TaskRead, frame_slice: FrameSlice) -> None:
        self.rounds.deliver(
            task_read.info.task_id, frame_slice.index // self._num_consumers, frame_slice, frame_slice.nbytes
        )
        self._update_received(task_read)

    def progress(self, task_read: TaskRead, complete_rounds: int, oldest_round: int) -> None:
        self.rounds.progress(task_read.info.task_id, complete_rounds, oldest_round)
        self._update_received(task_read)

    def _update_received(self, task_read: TaskRead) -> None:
        # A round number, not a count: it begins at the oldest round that the worker still has.
        task_read.account.received = self.rounds.task_rounds(task_read.info.task_id).received
        self.has_work = True
        self.changed.notify_all()

    @property
    def ready(self) -> bool:
        return self.rounds.ready

    def _clear_slices(self) -> None:
        self.rounds.clear()

    def wait_for_work(self, timeout: float) -> bool:
        """Wait for work of the maintenance thread; False after cancellation. Requires the lock."""
        self.changed.wait_for(lambda: self.has_work or self.updates or self.failed or self.cancelled, timeout)
        self.has_work = False
        return not self.cancelled


class CoordinatedTaskTable(TaskTable):
    """The tasks of one consumer.

    Credit does not move between tasks, for a round cannot be taken before all consumers have received it: each task has
    its own. All counters are in rounds of the task.
    """

    _inbox: CoordinatedInbox

    def _top_up(self, now: float, opening: TaskRead | None = None) -> None:
        del now, opening
        limit = self._options.max_outstanding_requests
        share = max(1, limit // max(1, len(self._task_reads))) if limit else _ROUNDS_AHEAD
        for hold in self._task_reads.values():
            hold.account.granted = max(hold.account.granted, hold.account.consumed + share)

    def _move_credit(self, now: float) -> float:
        return now + 1.0

    def have_ended(self) -> bool:
        """Whether each task has told its end, or failed. From any thread."""
        return all(hold.account.ended for hold in list(self._task_reads.values()))

    def acknowledge(self) -> None:
        """Send each worker the counters of received and consumed rounds, if they changed."""
        if self._inbox.starving:
            self._inbox.starving = False
            self.raise_byte_limits()
        for hold in self._task_reads.values():
            # The user's thread takes rounds at the same time.
            with self._inbox.changed:
                task_rounds = self._inbox.rounds.task_rounds(hold.info.task_id)
                hold.account.consumed = hold.account.dequeued = max(hold.account.consumed, task_rounds.consumed)
                # Recounted each time, for rounds leave the buffer without `mark_dequeued`.
                hold.buffered_bytes = 0
                hold.count_bytes(task_rounds.nbytes)
        self._top_up(time.monotonic())
        for hold in self._task_reads.values():
            counters = (hold.account.received, hold.account.granted, hold.max_bytes)
            if hold.connection is not None and hold.last_sent_counters != counters:
                hold.last_sent_counters = counters
                self._send_credit(hold)

    def _loss_text(self, loss: Loss) -> str:
        worker = f"worker {loss.worker} {loss.reason} (job {self._options.job_name!r})"
        return f"{worker}: elements that not all consumers received will not arrive"

    def warn(self, text: str) -> None:
        self._inbox.loss_warnings.append(text)


class CoordinatedStage(JobReader):
    """One consumer's read of a job, round by round.

    Args:
        service: Address and token of the service.
        dataset_id: Id of the registered dataset.
        options: The options of the read, with index and number of consumers.
        origin: Where this client runs, for its reports.
        iteration: Number of this pass over the dataset object.
        source_key: Identifies the source, and its pass, within the local pipeline.
        start_position: Where to begin; None for the beginning, or where the other consumers are.
        on_end: Called with the position at the end of the iteration, if another one may follow in the same pipeline.
        opened_files: Records the files that the tasks open; None if they need not be recorded.
        keeps_digest: Whether to keep a digest of what was consumed.
    """

    closes_slowly = True

    def __init__(
        self,
        service: ServiceAddress,
        dataset_id: str,
        options: ReadOptions,
        origin: ClientOrigin,
        iteration: int = 0,
        source_key: str = "",
        start_position: StartPosition | None = None,
        on_end: Callable[[Any], None] | None = None,
        *,
        opened_files: OpenedFiles | None = None,
        keeps_digest: bool = False,
    ) -> None:
        super().__init__("from the service")
        self._digest = TakenDigest() if keeps_digest else None
        self.source_key, self._on_end = source_key, on_end
        self._skipped = self._skippable = start_position.skippable if start_position is not None else 0
        """Rounds before the start position, and those of them that are still to be skipped."""
        self._options, self._origin = options, origin
        self._ended_at = self._unconfirmed_since = 0.0
        """When all rounds were taken, and since when the dispatcher has not answered that; 0 before."""
        self._follow_previous_read(service.address, options.job_name, self._consumer_name)
        self._channel = open_channel(service.address, service.token)
        joined = self._joined = self._join(dataset_id, iteration, start_position)
        self._client_id, self._instance = joined.client_id, joined.instance
        self._service_connection = service_connection(service.address, joined.instance)
        self._losses_received = joined.loss_count
        self._consumer_timeout_s = joined.consumer_timeout_ms / 1000
        self._inbox = CoordinatedInbox(options.num_consumers, options.consumer_index)
        self._inbox.opened_files = opened_files
        self._tasks = self._task_table(joined)
        self._acknowledged_halt = self._missed_reported = self._dropped_reported = 0
        self._clock = JobClock(paused=bool(joined.paused_by))
        self._began = self._clock()
        self._waits, self._elements_before = Stopwatch(self._clock), 0
        self._control = open_control_stream(
            service,
            joined,
            immediately=True,
            report=self._report,
            receive=self._receive_update,
            failed=self._inbox.set_refusal,
        )
        self._last_position: IterationPosition | None = None
        """The dispatcher's part of the position at the end: it may drop the iteration afterwards."""
        self._position_lock = threading.Lock()
        self._undecoded: FrameSlice | None = None
        """The slice being decoded, kept because decoding may be interrupted."""
        self._is_filler = False
        """Whether another consumer has this element too."""
        self._fillers = 0
        """Elements that were such, and do not count as consumed."""
        self._pads = options.at_end == PAD
        self._maintenance = threading.Thread(target=self._maintain, name=f"dsnb-rounds-{joined.client_id}", daemon=True)
        self._inbox.rounds.set_tasks([task.task_id for task in joined.tasks])
        self._inbox.updates.append(ClientUpdate(has_state=True, tasks=joined.tasks))
        self._maintenance.start()
        self._control.start()

    def _join(self, dataset_id: str, iteration: int, start_position: StartPosition | None) -> JoinReply:
        position = start_position.position if start_position is not None and start_position.skippable else None
        try:
            return join(self._channel, dataset_id, self._options, iteration, position)
        except BaseException:
            self._channel.close()
            raise

    def _task_table(self, joined: JoinReply) -> CoordinatedTaskTable:
        return CoordinatedTaskTable(
            self._inbox,
            joined.client_id,
            self._options,
            self._channel.token,
            joined.instance,
            deployment_mode=joined.deployment_mode,
        )

    @property
    def returned(self) -> bool:
        """Whether this consumer has read in this epoch before, and missed nothing of it since."""
        with self._inbox.changed:
            rounds = self._inbox.rounds
            first_round, missed = rounds.taken.first_round, rounds.missed
        return self._joined.returned and not missed and (first_round or 0) <= self._joined.next_round

    def warn_at_start(self) -> None:
        """Warn if the job lacks workers or is paused."""
        notices.warn_absent_or_paused(self._joined)

    # ---- the stage

    def produce(self, want: int) -> Run:
        """Return the element of the next round; waits for it. Nothing after the last round."""
        del want  # one at a time: a round counts as taken here, so none may be taken before its user needs it
        self._undecoded = self._undecoded or self._next_slice()
        if self._undecoded is None:
            return []
        began = time.perf_counter_ns()
        try:
            # A filler is another consumer's element, and counts as such.
            hashes = self._undecoded.hashes() if self._digest is not None and not self._is_filler else [0]
            run = list(self._undecoded.elements())
        except Exception:
            self._undecoded = None
            if self._digest is not None:
                self._digest.add_error()
            raise
        finally:
            self.decode_ns += time.perf_counter_ns() - began
        self._undecoded = None
        self._fillers += self._is_filler
        if self._digest is not None:
            self._digest.add(hashes)
        return [(element, self._is_filler) for element in run] if self._pads else run

    def skip(self, count: int) -> int:
        """Leave elements out: those before the start position are not read, the others are read and dropped."""
        free = min(count, self._skippable)
        self._skippable -= free
        return free + super().skip(count - free)

    def source_position(self, count: int) -> dict[str, Any]:
        """Return the position after the first `count` rounds. That of any consumer is good for all.

        Raises:
            FailedPreconditionError: this iteration has no exact position, or this consumer does not know its beginning.
        """
        with self._position_lock:
            position = self._last_position or self._fetch_position()
        return self._encode(count, position)

    def _encode(self, count: int, position: IterationPosition) -> dict[str, Any]:
        with self._inbox.changed:
            rounds = self._inbox.rounds
            taken, missed, to_come = rounds.taken, rounds.missed, rounds.tasks_to_come()
            before, now = taken.elements_after(count - self._skipped), taken.elements_after(taken.total)
        if taken.first_round or missed:
            raise no_position_error(
                f"{self._consumer_name} joined this pass when the others had begun it",
                "take the position in a pass that all consumers read from its beginning",
            )
        to_come |= {task for task, elements in now.items() if elements > before.get(task, 0)}
        return encode_rounds(self._joined.iteration, count, before, to_come, position)

    def _fetch_position(self) -> IterationPosition:
        request = PositionRequest(client_id=self._client_id)
        return self._channel.call(POSITION, request, timeout=_POSITION_S)

    def cancel(self) -> None:
        super().cancel()
        self._inbox.cancel()

    def release(self, unread: int) -> None:
        """Leave the job. The final report names the next round that this consumer would take."""
        with self._inbox.changed:
            # Rounds that the user did not get were not taken: the final report names the first of them.
            self._inbox.rounds.next_round -= unread + (self._undecoded is not None)
            self._undecoded = None
        self._fillers -= bool(unread and self._is_filler)  # only the last round has fillers
        if self._digest is not None:
            self._digest.take_back(unread)
        self._inbox.cancel()
        self._maintenance.join()
        try:
            self._tasks.close()
            self._control.close()
        finally:
            self._left.set()
            self._channel.close()
            self._inbox.clear()

    def debug_state(self) -> dict[str, Any]:
        """The tasks that are read, and the elements and bytes that wait here for their rounds, as plain data."""
        with self._inbox.changed:
            elements, nbytes = self._inbox.rounds.buffered()
            return {"tasks": [*self._tasks.reads], "elements": elements, "bytes": nbytes}

    def continue_counters(self, previous: Stage) -> None:
        """Continue the counters of the previous pass.

        Each pass is a new client, which reports only its own elements.
        """
        super().continue_counters(previous)
        self._elements_before = self.elements

    def _next_slice(self) -> FrameSlice | None:
        """The element of the next round; None after the last one."""
        inbox, waited = self._inbox, 0.0
        self._waits.start()
        try:
            while True:
                INTERRUPTS.raise_pending()
                self._warn_of_losses()
                with inbox.changed:
                    if inbox.cancelled:
                        raise CancelledError("reading was stopped")
                    if inbox.rounds.ready and not isinstance(inbox.refusal, CancelledError):
                        return self._take()
                    self._raise_errors()
                    if inbox.rounds.skip_missed():
                        continue
                    inbox.starving = inbox.has_work = True
                    inbox.changed.notify_all()
                    before, ended = self._clock(), inbox.rounds.ended
                    if not ended:
                        inbox.changed.wait(_CHECK_INTERVAL_S)
                if ended:
                    if self._is_over(time.monotonic()):
                        self._warn_of_losses()
                        return None
                    with inbox.changed:
                        inbox.changed.wait(_CONFIRM_INTERVAL_S)
                    continue
                self._check_service()
                # A longer check means that this process was stopped: do not count the excess.
                waited += min((self._clock() - before) / 1e9, 2 * _CHECK_INTERVAL_S)
                if waited > self._consumer_timeout_s:
                    self._check_overdue(waited)
                    waited = 0.0
        finally:
            self.wait_ns += self._waits.stop()

    def _is_over(self, now: float) -> bool:
        """Whether the read is over, now that all rounds are taken. An error may have ended the data: it comes first."""
        self._ended_at = self._ended_at or now
        waits_for_ends = not self._tasks.have_ended() and now - self._ended_at < _END_WAIT_S
        if waits_for_ends or not self._confirm_end(now):
            return False
        with self._inbox.changed:
            self._raise_errors()
        return True

    def _confirm_end(self, now: float) -> bool:
        """Tell the dispatcher that all rounds are taken: this consumer's next read is then of the next iteration."""
        request = EndRequest(client_id=self._client_id, final_report=self._report(0, leaving=True))
        with self._position_lock:
            try:
                reply = self._channel.call(CONFIRM_END, request, timeout=2.0)
                over, self._last_position = reply.finished, reply.position if reply.finished else None
            except NotFoundError:
                over = True  # it was counted as lost, and has all rounds
            except UnavailableError:
                over = self._assume_end(now)
        if over and self._on_end is not None:
            total = self._skipped + self._inbox.rounds.taken.total
            self._on_end(self._final_position(total))
        return over

    def _final_position(self, total: int) -> dict[str, Any]:
        """The position at the end of the pass. Other ranks may not know yet that it is the end: it says so besides."""
        if self._last_position is not None:
            with suppress(FailedPreconditionError):  # a consumer that knows no position knows that the pass is over
                return {**self._encode(total, self._last_position), "end": total}
        return encode_end(self._joined.iteration, total)

    def _assume_end(self, now: float) -> bool:
        """Whether to treat the iteration as over without the dispatcher's answer: if it is gone, or silent for long."""
        if self._service_connection is not None and discovery.stop_reason(self._service_connection):
            return True
        self._unconfirmed_since = self._unconfirmed_since or now
        if now - self._unconfirmed_since < UNREACHABLE_TIMEOUT_S:
            return False
        notices.warn_end_unconfirmed(self._channel.address, UNREACHABLE_TIMEOUT_S)
        return True

    def _take(self) -> FrameSlice:
        self._is_filler = self._inbox.rounds.is_filler
        piece: FrameSlice = self._inbox.rounds.take()
        self._inbox.has_work = True
        self._inbox.changed.notify_all()
        return piece

    def _warn_of_losses(self) -> None:
        """Emit all warnings that wait, or raise the first; the next call goes on with the others."""
        while warning := self._next_warning():
            if self._options.raises_losses:
                raise notices.lost_with_worker(warning, self._options)
            errors.warn(warning, DataLossWarning)

    def _next_warning(self) -> str:
        with self._inbox.changed:
            rounds, losses = self._inbox.rounds, self._inbox.loss_warnings
            if rounds.missed > self._missed_reported:
                count, self._missed_reported = rounds.missed - self._missed_reported, rounds.missed
                losses.append(f"{count} round(s) of job {self._options.job_name!r} went without {self._consumer_name}")
            if rounds.dropped > self._dropped_reported:
                count, self._dropped_reported = rounds.dropped - self._dropped_reported, rounds.dropped
                losses.append(
                    f"{count} round(s) of job {self._options.job_name!r} were dropped: not all consumers had them"
                )
            return losses.popleft() if losses else ""

    def _raise_errors(self) -> None:
        for task_id, error in list(self._inbox.errors):
            if not task_id or self._inbox.rounds.ended or self._inbox.rounds.waits_for(task_id):
                if isinstance(error, ResourceExhaustedError):  # may succeed later
                    self._inbox.errors.remove((task_id, error))
                    self._inbox.retry = True
                elif self._inbox.rounds.ended:
                    self._inbox.errors.remove((task_id, error))  # the next pull is the end
                raise copy(error)
        refusal = self._inbox.refusal
        if isinstance(refusal, NotFoundError) and self._inbox.rounds.ended:
            return  # it was counted as lost, and has all rounds
        if isinstance(refusal, NotFoundError):
            raise FailedPreconditionError(
                f"this reader is no longer {self._consumer_name} of job {self._options.job_name!r}: a new reader has "
                "taken its index, another consumer has gone back to a saved position, or the dispatcher got no report "
                "from this reader for longer than client_timeout_ms",
                did="the others continue with the reader that has its index",
                hint="iterate the dataset again: it joins the others at their next round. If another consumer went "
                "back to a saved position, load it here too",
            )
        if refusal is not None:
            raise copy(refusal)

    @property
    def _consumer_name(self) -> str:
        return self._options.trainer_id

    def _check_service(self) -> None:
        """Raise if the service is known to have ended, and no worker serves this consumer any more.

        Raises:
            UnavailableError: that is so.
        """
        if self._service_connection is None or self._control.broken_since is None or self._tasks.any_open:
            return
        if ended := discovery.stop_reason(self._service_connection):
            with self._inbox.changed:
                if self._inbox.rounds.ready or self._inbox.rounds.ended:
                    return
            raise notices.service_ended(self._service_connection.name, ended)

    def _check_overdue(self, waited: float) -> None:
        """Find out why nothing has arrived for so long.

        Raises:
            DeadlineExceededError: with the consumers, workers or service that the round waits for.
        """
        missing = f"the service at {self._channel.address}, which does not answer"
        with suppress(UnavailableError):
            snapshot = decode(Snapshot, self._channel.call(STATUS, Empty(), timeout=5.0))
            job = snapshot.job(self._options.job_name)
            if job is not None and job.paused_by:
                return  # the update that says so has not arrived yet
            missing = job.rounds.waits_for if job is not None and job.rounds is not None else "a job that is gone"
        with self._inbox.changed:
            at = self._inbox.rounds.next_round
            if self._inbox.rounds.ready:
                return
        raise DeadlineExceededError(
            f"{self._consumer_name} of job {self._options.job_name!r} has waited {waited:.0f} seconds for round "
            f"{at:,}; it waits for {missing or 'nothing any more: the round has just become available'}",
            did="nothing was lost: the next call of `next` continues to wait",
            hint="start a lost consumer again with its consumer_index: it joins the others; "
            "dsnb.start(consumer_timeout_ms=...) or DispatcherConfig(consumer_timeout_ms=...) says how long to wait",
        )

    # ---- the maintenance thread

    def _maintain(self) -> None:
        due = 0.0
        while True:
            with self._inbox.changed:
                if not self._inbox.wait_for_work(max(0.0, due - time.monotonic())):
                    return
                updates, failed = list(self._inbox.updates), list(self._inbox.failed)
                self._inbox.updates.clear()
                self._inbox.failed.clear()
                retry, self._inbox.retry = self._inbox.retry, False
            try:
                for loss in self._tasks.apply_updates(updates):  # the user's thread raises it, like other losses
                    self._tasks.warn(loss.what)
                for task_id, unreachable in self._tasks.give_up_unreachable(updates).items():
                    self._queue_error(task_id, unreachable)
                if retry:
                    self._tasks.try_refused()
                for sink, error in failed:
                    self._queue_error(sink.task_read.info.task_id, self._tasks.handle_broken(sink, error))
                due = self._tasks.maintain(time.monotonic())
                self._tasks.acknowledge()
            except Exception as error:  # noqa: BLE001 - the user's thread raises it
                self._queue_error("", error)
                due = time.monotonic() + 1.0
            self._acknowledge_halt()

    def _queue_error(self, task_id: str, error: Exception | None) -> None:
        """Queue an error for the user's thread, which raises it when the next round needs this task."""
        if error is not None:
            with self._inbox.changed:
                self._inbox.errors.append((task_id, error))
                self._inbox.changed.notify_all()

    def _acknowledge_halt(self) -> None:
        """Report to the dispatcher as soon as a halt can be acknowledged."""
        with self._inbox.changed:
            halt = self._inbox.rounds.report().halt
        if halt and halt != self._acknowledged_halt:
            self._control.report_now()

    # ---- the control stream

    def _receive_update(self, update: ClientUpdate) -> None:
        if update.report_seq:
            self._control.report_now(update.report_seq)
        if update.cancelled_by:
            self._inbox.set_refusal(notices.job_cancelled(self._options.job_name, update.cancelled_by))
        self._losses_received += len(update.losses)
        if update.has_state:
            self._clock.pause(paused=update.paused)
        with self._inbox.changed:
            if self._inbox.rounds.ended:
                update = replace(update, losses=())  # this consumer has all rounds
            if update.has_state:
                self._inbox.rounds.set_tasks([task.task_id for task in update.tasks])
            if update.rounds is not None:
                self._inbox.rounds.receive_update(update.rounds)
            self._inbox.update(update)

    def _report(self, seq: int, leaving: bool) -> ClientReport:
        with self._inbox.changed:
            consumer = self._inbox.rounds.report()
            missed = self._inbox.rounds.missed
        self._acknowledged_halt = consumer.halt
        return ClientReport(
            client_id=self._client_id,
            elements=self.elements - self._elements_before - self._fillers,
            digest=self._digest.value if self._digest is not None else b"",
            wait_ns=self._waits.ns,
            decode_ns=self.decode_ns,
            convert_ns=self.convert_ns,
            active_ns=self._clock() - self._began,
            lost=self._tasks.lost + missed,
            lost_parts=self._tasks.lost_parts,
            seq=seq,
            leaving=leaving,
            losses_received=self._losses_received,
            instance=self._instance,
            consumer=consumer,
            origin=self._origin,
            unreachable_workers=self._tasks.unreachable_workers,
        )
