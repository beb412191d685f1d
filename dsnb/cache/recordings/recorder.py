"""Records and reads the recordings of one pipeline for all readers of this process: the shell around `recording`.

Theory of operation. A process has one recorder for each pipeline whose recordings it reads, and a recorder has one
thread. The thread follows the log. When a reader wants an element that is not committed and that no other process is
writing, the thread takes the lease and runs the pipeline. It produces on demand only: for readers of this process what
they ask for, for waiting readers of other processes (`RecordingStore.requested_element`) up to a chunk at a time, even
if the readers of this process are slow. Produced elements are readable in this process at once; they are committed when
they fill a chunk or are `chunk_s` old. A lease that has not been used for `lease_s` is released.

Readers never touch the log, the pipeline or the lease: they state what they want, wait, and read frames. Therefore a
`KeyboardInterrupt`, which Python raises in the main thread between any two bytecodes, cannot leave shared state half
changed. A reader waits on a queue of its own, not on a condition: an interrupt inside a condition's methods can leave
its lock held. Reads from a server run on another thread (`cache/recordings/shield`).

A backend never stops a pass. If recording is impossible (full disk, unreachable server) or ends (an element failed),
`FallBackToPipeline` gives the reader the pipeline to run itself. A recording that is lost (damaged, evicted, forgotten
by the store, abandoned by another process) is started again once; if the next one is lost too, the rest of the pass
runs without the cache. So the backend causes at most two calls of a user function for each element, or three if the
pipeline cannot skip elements without running.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from dsnb.cache.opened_files import FileState, first_change
from dsnb.cache.recordings.backends import PipelineRecordings, RecordingLost, RecordingStore, StoreFailed, warn
from dsnb.cache.recordings.log_replica import LogReplica
from dsnb.cache.recordings.recording import LeaseWatch, ReaderAction, RecordingAbandoned, RecordingLog, next_action
from dsnb.cache.recordings.shield import start_thread
from dsnb.cache.recordings.writer import (
    ACTIVE_HOLDERS,
    PipelineFailed,
    RecordingPlan,
    RecordingWriter,
    RunningPipeline,
)
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, DataLossError, DsnbError, FailedPreconditionError, UnavailableError
from dsnb.storage.process_identity import is_gone, this_process
from dsnb.storage.urls import without_password

if TYPE_CHECKING:
    from dsnb.cache.recordings.reader import RecordingReader

_READER_POLL_S: Final = 0.25
"""Seconds after which a waiting reader checks again even if it was not woken: an interrupt can swallow the wake-up."""
_FIRST_POLL_S: Final = 0.002
_MAX_LOST_RECORDINGS: Final = 1
"""How many recordings a pass may lose before it continues without the cache."""
_REQUESTED_ELEMENTS: Final = 1024
"""How many elements to request from the pipeline for other processes; the writer reduces this at first."""
_REQUEST_INTERVAL_S: Final = 1.0
_USER_CODE_WAIT_S: Final = 0.5
"""Seconds that `remove_reader` waits for a thread that runs user code."""


class FallBackToPipeline(Exception):
    """Raised to a reader that from now on runs the pipeline itself.

    Attributes:
        entropy: The entropy to run the pipeline with.
        position: The index of the next element to produce. `error` is that of the element before it.
        pipeline: The pipeline, if it is running and stands at `position`.
        error: The error of the element at `position - 1`, to be raised first; None if no element failed.
    """

    def __init__(
        self, entropy: int, position: int, pipeline: RunningPipeline | None = None, error: Exception | None = None
    ) -> None:
        super().__init__("not recorded")
        self.entropy = entropy
        self.position = position
        self.pipeline = pipeline
        self.error = error

    def take_pipeline(self) -> RunningPipeline | None:
        """Return the pipeline, which the caller must then close; None if there is none or it was taken before."""
        pipeline, self.pipeline = self.pipeline, None
        return pipeline


class Recorder:
    """Reads and records the recordings of one pipeline, for all readers of this process.

    Args:
        recordings: The recordings of the pipeline.
        plan: How to record.
        on_close: Called after the last reader has left.
    """

    _number: int
    _store: RecordingStore
    _replica: LogReplica
    _writer: RecordingWriter

    def __init__(
        self, recordings: PipelineRecordings, plan: RecordingPlan, on_close: Callable[[Recorder], None]
    ) -> None:
        self._recordings = recordings
        self.key = recordings.key
        self._plan = plan
        self._on_close = on_close
        self._pid = os.getpid()
        # Reentrant: garbage collection in a thread that holds this lock may drop an iterator, which cancels its reader.
        self._lock = threading.RLock()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers: set[RecordingReader] = set()
        self._pending_warnings: deque[tuple[str, str, str]] = deque()
        self._thread_lock = threading.Lock()
        """Held by the recorder's thread for good, unless an exception ends it: a second thread exits at once."""
        self._thread_id = 0
        self._closed = self._opened = False
        self._lease_watch = LeaseWatch(plan.lease_s)
        self._poll_s = _FIRST_POLL_S
        self._requested_by_others: tuple[int, float] = (-1, 0.0)
        """Index of the last element that other processes requested, and the time of the last look."""
        self._requested_from_others: tuple[int, float] = (-1, 0.0)
        """Index of the element that this process last requested from the writer, and the time of the request."""
        self._files_checked = False
        """Whether the files that the recording was made from were compared with their current state."""
        self._read_problem: tuple[RecordingStore, DataLossError | StoreFailed] | None = None
        """The first error that a reader met while it read a frame, with the store; the recorder's thread handles it."""
        self._lost_count = 0
        self._disabled_by: DsnbError | None = None
        self._unreadable = False

    @property
    def _log(self) -> RecordingLog:
        return self._replica.log

    # ---- readers, each on its own thread

    def add_reader(self, reader: RecordingReader) -> bool:
        """Register a reader; False if the last reader has just left, or if this object is a fork's copy."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            if not self._closed:
                self._readers.add(reader)
            return not self._closed

    def on_reader_cancelled(self) -> None:
        """Note that a reader was cancelled; if all readers are, cancel the pipeline too."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._opened and all(reader.cancelled for reader in self._readers):
                self._writer.cancel()
        self._wakeups.put(None)

    def remove_reader(self, reader: RecordingReader) -> None:
        """Unregister a reader. After the last one, commit what was produced and release the lease."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._readers.discard(reader)
            last = not self._readers and not self._closed
            self._closed = self._closed or last
        unused = reader.fallback.take_pipeline() if reader.fallback is not None else None
        if unused is not None:
            unused.close()
        if last:
            self._wakeups.put(None)
            if self._thread_lock.acquire(blocking=False):
                self._shut_down()  # no thread was ever started, or it has died
            elif self._thread_id != threading.get_ident():
                self._wait_for_end()
        self._issue_warnings()

    def _wait_for_end(self) -> None:
        """Wait until everything is committed, but not for user code, which may take arbitrarily long."""
        in_user_code = 0.0
        while in_user_code < _USER_CODE_WAIT_S:
            with contextlib.suppress(queue.Empty):
                self._finished.get(timeout=_READER_POLL_S / 5)
                return
            in_user_code = in_user_code + _READER_POLL_S / 5 if self._opened and self._writer.in_user_code else 0.0

    def frame_at(self, reader: RecordingReader, want: int) -> tuple[int, Frame] | None:
        """The frame with the reader's next element, and the index of the frame's first element; None at the end."""
        while self.wait_for_elements(reader, reader.position + 1, want) > reader.position:
            with self._lock:
                pending, store = self._writer.pending_frame(reader.position), self._store
                committed = reader.position < self._log.elements
                first, ref = self._log.frame_at(reader.position) if committed else (0, None)
            if pending is not None:
                return pending
            # The read runs without the lock, so that a slow store does not block the other readers.
            if ref is not None:
                try:
                    return first, reader.shield.call(
                        partial(store.read_frame, ref)
                    ) if store.remote else store.read_frame(ref)
                except (DataLossError, StoreFailed) as problem:
                    with self._lock:
                        self._read_problem = self._read_problem or (store, problem)
        return None

    def wait_for_elements(self, reader: RecordingReader, end: int, want: int) -> int:
        """Wait until `end` elements are available, or all elements if there are fewer.

        Args:
            reader: The reader that waits.
            end: How many elements to wait for, counted from the start of the recording.
            want: How many elements the reader can use, from its position on; the writer may produce so many at once.

        Returns:
            The number of available elements.
        """
        reader.wanted = end, want
        try:
            while True:
                self._raise_if_stopped(reader)
                with self._lock:
                    if self._are_available(end):
                        return self._writer.tail
                # Also restarts a thread that an exception has ended: only then is the lock free again.
                if not self._thread_lock.locked() and not start_thread(self._run, "dsnb-cache-recorder"):
                    raise self._fallback_without_thread(reader)
                self._wakeups.put(None)
                # With a timeout: a KeyboardInterrupt can swallow the wake-up.
                with contextlib.suppress(queue.Empty):
                    reader.wakeups.get(timeout=_READER_POLL_S)
        finally:
            reader.wanted = None
            self._issue_warnings()

    def _raise_if_stopped(self, reader: RecordingReader) -> None:
        if self._pid != os.getpid():
            raise FailedPreconditionError(
                "this iterator was begun in the process that this one was forked from",
                did="nothing was read",
                hint="call iter(dataset) in this process",
            )
        if reader.cancelled:
            raise CancelledError("reading was stopped")
        error, reader.error = reader.error, None
        if error is not None:
            raise error
        if reader.fallback is not None:
            raise reader.fallback

    def _are_available(self, end: int) -> bool:
        if not self._opened or self._read_problem is not None or self._unreadable or self._log.abandoned:
            return False
        if not self._files_checked:
            return False
        return self._writer.tail >= end or self._log.ended

    def _fallback_without_thread(self, reader: RecordingReader) -> FallBackToPipeline:
        self._queue_warning(
            "no thread can be started to record",
            "the pass continues without the cache",
            "look for threads that do not end, and for limits of the container",
        )
        return FallBackToPipeline(self._entropy(), reader.position)

    def _queue_warning(self, what: str, did: str, hint: str) -> None:
        self._pending_warnings.append((what, did, hint))

    def _issue_warnings(self) -> None:
        """Issue the recorder thread's warnings in the thread of a reader, so that they name the user's line."""
        while self._pending_warnings:
            warn(*self._pending_warnings.popleft())

    # ---- the recorder's thread

    def _run(self) -> None:
        if not self._thread_lock.acquire(blocking=False):
            return
        self._thread_id = threading.get_ident()
        try:
            while self._step():
                self._wake()
        except BaseException:
            self._thread_lock.release()  # the next reader that waits starts another thread
            raise
        self._shut_down()

    def _step(self) -> bool:
        """Do one step of work; False after the last reader has left."""
        with self._lock:
            if self._closed:
                return False
            reader = next(filter(self._is_waiting, self._readers), None)
        try:
            self._act(reader)
        except StoreFailed as refusal:
            self._disable(refusal.error)
        except RecordingLost as loss:
            self._handle_loss(loss.error)
        except PipelineFailed as failure:
            self._set_error(reader, failure.error)
        except DsnbError as error:
            self._set_error(reader, error)
        except Exception as error:  # noqa: BLE001 - stores raise whatever their libraries do, and never end a pass
            self._disable(UnavailableError(f"recording to {self._location} failed: {type(error).__name__}: {error}"))
        return True

    def _act(self, reader: RecordingReader | None) -> None:
        if self._read_problem is not None:
            (store, problem), self._read_problem = self._read_problem, None
            self._handle_read_problem(store, problem)
        elif reader is None:
            self._idle()
        elif self._disabled_by is not None:
            self._set_error(reader, self._fallback(reader))
        elif not self._opened:
            self._open(max(1, self._recordings.newest_number()))
        elif self._writer.holder:
            end, want = reader.wanted or (0, 1)
            self._produce(reader, max(want, end - self._writer.tail))
        else:
            self._follow(reader)

    def _is_waiting(self, reader: RecordingReader) -> bool:
        wanted = reader.wanted
        served = reader.cancelled or reader.fallback is not None or reader.error is not None
        return wanted is not None and not served and not self._are_available(wanted[0])

    def _wake(self) -> None:
        with self._lock:
            for reader in self._readers:
                if reader.wanted is not None and reader.wakeups.empty() and not self._is_waiting(reader):
                    # At most one item in a reader's queue: this runs after every step, and the reader may be slow.
                    reader.wakeups.put(None)

    def _set_error(self, reader: RecordingReader | None, error: Exception) -> None:
        if reader is not None and isinstance(error, FallBackToPipeline):
            reader.fallback = error
        elif reader is not None:
            reader.error = error

    def _wait_for_wakeup(self, seconds: float | None) -> None:
        """Wait until a reader wants something, or until `seconds` have passed; None waits without a limit."""
        with contextlib.suppress(queue.Empty):
            self._wakeups.get(timeout=seconds)
            # Drop the other wake-ups: the following steps serve every reader that waits, one after another.
            while True:
                self._wakeups.get_nowait()

    def _open(self, number: int) -> None:
        store = self._recordings.open(number)
        replica = LogReplica(store, self._lock)
        writer = RecordingWriter(store, replica, self._plan, self._lock)
        with self._lock:
            self._number, self._store, self._replica, self._writer = number, store, replica, writer
            self._opened, self._finalized, self._files_checked = True, False, False
            self._requested_by_others = self._requested_from_others = (-1, 0.0)

    @property
    def _location(self) -> str:
        return self._store.location if self._opened else without_password(self.key[0])

    # ---- writing

    def _produce(self, reader: RecordingReader | None, want: int) -> None:
        """Run the pipeline for some elements: for `reader`, or for other processes if it is None."""
        try:
            self._writer.produce(want)
        except CancelledError:
            # All readers at that time were cancelled, and the pipeline with them. A reader that has joined since gets a
            # new pipeline.
            self._writer.commit_and_release()
            self._writer.close_pipeline()
        except PipelineFailed as failure:
            position = self._writer.tail
            pipeline = self._writer.take_pipeline_at(position) if reader is not None else None
            self._release_after_failure(reader)
            if reader is None:
                self._writer.close_pipeline()
            self._set_error(reader, FallBackToPipeline(self._entropy(), position + 1, pipeline, failure.error))

    def _release_after_failure(self, reader: RecordingReader | None) -> None:
        try:
            self._writer.commit_and_release()
        except (StoreFailed, RecordingLost) as refusal:
            self._disable(refusal.error)
        else:
            if reader is not None:  # else the process that requested the element takes the lease and gets its error
                pipeline = self._plan.header.pipeline
                self._queue_warning(
                    f"an element of {pipeline} failed, behind {self._log.elements:,} that are recorded",
                    "the rest of this pass runs the pipeline; the next one tries that element again",
                    "let the function return something for each element, or leave failing ones out in front of `cache`",
                )

    def _idle(self) -> None:
        """Serve other processes while no reader of this process waits: produce, commit, release an idle lease."""
        if not self._opened or not self._writer.holder or not self._store.shared:
            self._wait_for_wakeup(None)
        elif self._is_requested():
            self._produce(None, _REQUESTED_ELEMENTS)
        elif self._writer.idle_s >= self._plan.lease_s:
            self._writer.commit_and_release()
        else:
            self._writer.commit_if_due()
            self._wait_for_wakeup(min(self._store.max_poll_s, self._plan.lease_s / 4))

    def _is_requested(self) -> bool:
        """Whether a reader of another process waits for an element that is not committed."""
        now = time.monotonic()
        position, looked = self._requested_by_others
        if position < self._log.elements and now - looked >= self._store.max_poll_s:
            self._requested_by_others = position, _ = self._store.requested_element(), now
        return position >= self._log.elements

    # ---- following

    def _follow(self, reader: RecordingReader) -> None:
        position = (reader.wanted or (1, 1))[0] - 1
        try:
            if self._replica.refresh():
                self._poll_s = _FIRST_POLL_S
        except DataLossError as damage:
            self._handle_loss(damage)
            return
        self._finalize_once()
        if self._log.header is None:
            self._begin_recording()
            return
        if not self._files_checked and self._is_stale():
            self._open_next()  # readers of other processes may finish the stale recording
            return
        self._files_checked = True
        seen = any(known.position for known in self._readers)
        match next_action(self._log, position, seen=seen, holder_lost=self._holder_lost()):
            case ReaderAction.TAKE_LEASE:
                self._writer.take_lease()
            case ReaderAction.WAIT:
                self._request_element(position)
                self._wait_for_wakeup(self._poll_s)
                self._poll_s = min(2 * self._poll_s, self._store.max_poll_s)
            case ReaderAction.ABANDON:
                self._replica.claim(RecordingAbandoned(why="its writer stopped, and the pipeline cannot be repeated"))
            case ReaderAction.OPEN_NEXT:
                loss = DataLossError(f"the recording in {self._location} was abandoned again: {self._log.abandoned}")
                self._handle_loss(loss, already_reported=True)
            case ReaderAction.STRANDED:
                self._set_error(reader, self._fallback(reader))

    def _is_stale(self) -> bool:
        """Whether a source file has changed since recording, and no reader of this process has read an element yet."""
        if not self._store.shared or any(known.position for known in self._readers):
            return False
        change = first_change(self._log.files)
        if change:
            self._queue_warning(change, f"it is recorded again in {self._location}", "")
        return bool(change)

    def files(self) -> Sequence[FileState]:
        """The states of the files that were opened for the elements that can be read now."""
        with self._lock:
            return (*self._log.files, *self._writer.files) if self._opened else ()

    def _begin_recording(self) -> None:
        why = self._recordings.explain_miss() if self._number == 1 else ""
        if self._replica.claim(self._plan.header) and why:
            self._queue_warning(f"the pipeline has changed: {why}", f"it is recorded again in {self._location}", "")

    def _finalize_once(self) -> None:
        """Finish the work of a writer that died between the end of its recording and `finalize`."""
        if not self._finalized and self._log.ended:
            with contextlib.suppress(StoreFailed, RecordingLost):
                self._store.finalize(self._replica.records)
        self._finalized = True

    def _request_element(self, position: int) -> None:
        """Tell the writer, whose own readers may be slow, which element is wanted here."""
        now = time.monotonic()
        last_position, when = self._requested_from_others
        if last_position != position or now - when >= _REQUEST_INTERVAL_S:
            self._store.request_element(position)
            self._requested_from_others = position, now

    def _holder_lost(self) -> bool:
        holder = self._log.holder
        if holder is None:
            return False
        # A holder is a process's unique id and a random suffix: one process may hold the lease several times in turn.
        process = holder.holder.rpartition("-")[0]
        if process == this_process().unique_id():
            return holder.holder not in ACTIVE_HOLDERS
        if not self._store.shared:
            return True  # this process was forked from the holder's, and the recording is a copy of its memory
        return bool(is_gone(process)) or self._lease_watch.has_expired(
            holder.epoch, self._store.read_heartbeat(holder.epoch), time.monotonic()
        )

    # ---- lost and failed recordings

    def _handle_read_problem(self, store: RecordingStore, problem: DataLossError | StoreFailed) -> None:
        """Abandon a recording whose committed frames cannot be read, for all processes, and open the next one."""
        if store is not self._store:
            return  # that recording was abandoned before
        if isinstance(problem, StoreFailed):
            self._unreadable = True
            raise problem
        try:
            # Another process may claim the slot first: then read its record, and claim the next slot.
            while not self._log.abandoned and not self._replica.claim(RecordingAbandoned(why=problem.what)):
                self._replica.refresh()
        except StoreFailed as refusal:
            self._unreadable = True
            self._queue_warning(problem.what, "nothing of it was used", problem.hint)
            self._disable(refusal.error)
        except (DataLossError, RecordingLost):
            self._handle_loss(problem)  # the log is lost as well: every other reader finds that out by itself
        else:
            self._handle_loss(problem)

    def _handle_loss(self, what: DsnbError, *, already_reported: bool = False) -> None:
        """Open the next recording after this one is lost, or go on without the cache if another one would not help.

        Args:
            what: Why it is lost.
            already_reported: Whether another process has warned about it.
        """
        # A loss before the first element costs nothing, so one that another process reported is not counted.
        seen = any(reader.position for reader in self._readers)
        self._lost_count += seen or not already_reported
        again = self._lost_count <= _MAX_LOST_RECORDINGS and (self._repeatable() or not seen)
        did = "it is recorded again" if again else "none of it was used; the pass continues without the cache"
        if not (already_reported and again):
            self._queue_warning(what.what, did, what.hint)
        if again:
            self._writer.discard()
            self._open_next()
        else:
            self._disabled_by, self._unreadable = what, True
            self._writer.drop_lease()

    def _open_next(self) -> None:
        """Open the next recording with the same entropy, so that a repeatable pipeline gives the same elements."""
        self._plan = replace(self._plan, header=replace(self._plan.header, entropy=self._entropy()))
        before = self._store
        self._open(max(self._number + 1, self._recordings.newest_number()))
        before.close()

    def _entropy(self) -> int:
        header = self._log.header if self._opened else None
        return (header or self._plan.header).entropy

    def _repeatable(self) -> bool:
        header = self._log.header if self._opened else None
        return (header or self._plan.header).repeatable

    def _disable(self, error: DsnbError) -> None:
        """Stop recording in this process: readers read what is available and then run the pipeline themselves."""
        if self._disabled_by is None:
            self._queue_warning(error.what, error.did or "the pass continues without the cache", error.hint)
        self._disabled_by = self._disabled_by or error
        if self._opened:
            self._writer.drop_lease()

    def _fallback(self, reader: RecordingReader) -> Exception:
        pipeline = self._writer.take_pipeline_at(reader.position) if self._opened else None
        if pipeline is None and reader.position and not self._repeatable():
            return self._stranded_error()
        return FallBackToPipeline(self._entropy(), reader.position, pipeline)

    def _stranded_error(self) -> DsnbError:
        holder = self._log.holder
        return FailedPreconditionError(
            f"the rest of the recording in {self._location} will not come: "
            f"{holder.name if holder else 'its writer'} stopped after {self._log.elements:,} elements, "
            "and running the pipeline again would give others",
            did="what was recorded up to there was read",
            hint="leave `deterministic=False` out in front of `cache`; or begin again",
        )

    def _shut_down(self) -> None:
        """Commit, release the lease and close everything, after the last reader has left."""
        try:
            if self._opened:
                with contextlib.suppress(Exception):  # if the store refuses, the next run produces one chunk again
                    self._writer.commit_and_release()
                self._writer.discard()
                self._store.close()
            self._recordings.close()
        finally:
            self._on_close(self)
            self._finished.put(None)
