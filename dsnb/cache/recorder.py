"""Records and reads one recording for all readers of this process: the shell around `cache/recording`.

Theory of operation. Each process has one recorder for each recording that it reads, and the recorder has one thread.
The thread follows the log, and when a reader wants an element that is neither recorded nor being written by somebody
else, it takes the lease and runs the pipeline. It produces only what was asked for: by readers of this process element
by element, by waiting readers of other processes (`Store.asked`) chunk by chunk, however slowly this process consumes.
What is produced is readable in this process at once, and committed when it fills a chunk or is a second old. A lease
that nobody has used for `lease_s` is given back.

Readers never touch the log, the pipeline or the lease: they state what they want, wait, and read frames. So a
`KeyboardInterrupt`, which Python raises in the main thread between any two instructions, finds nothing half done. A
reader waits on a queue of its own and not on a condition, whose methods an interrupt can leave with the lock held. What
is read from a server is read on another thread (`cache/shield`).

A backend never stops a pass. Where recording is not possible (a full disk, a server that is gone) or ends (an element
failed), `Alone` hands the reader its pipeline. A recording that is lost (damaged, evicted, forgotten, given up by
others) is begun anew once; when the next one is lost too, the rest of the pass runs without the cache. So on account of
the backend no pass calls a function more than twice for an element, or three times where the pipeline cannot skip
elements without running.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from dsnb.cache.backends import PipelineRecordings, RecordingLost, RecordingStore, StoreFailed, warn
from dsnb.cache.locations import without_password
from dsnb.cache.log_replica import LogReplica
from dsnb.cache.opened_files import FileState, first_change
from dsnb.cache.process_identity import is_gone, this_process
from dsnb.cache.recording import LeaseWatch, ReaderAction, RecordingAbandoned, RecordingLog, next_action
from dsnb.cache.shield import start_thread
from dsnb.cache.writer import ACTIVE_HOLDERS, PipelineFailed, RecordingPlan, RecordingWriter, RunningPipeline
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, DataLossError, DsnbError, FailedPreconditionError, UnavailableError

if TYPE_CHECKING:
    from dsnb.cache.reader import RecordingReader

_READER_POLL_S: Final = 0.25
"""How often a reader that waits looks for itself; it is woken in time, unless an interrupt swallows the call."""
_FIRST_POLL_S: Final = 0.002
_MAX_LOST_RECORDINGS: Final = 1
"""How many recordings may be lost in a pass before it goes on without the cache."""
_REQUESTED_ELEMENTS: Final = 1024
"""How many elements to produce at once for other processes; the writer asks the pipeline for fewer at first."""
_REQUEST_INTERVAL_S: Final = 1.0
_USER_CODE_WAIT_S: Final = 0.5
"""How long leaving waits for a thread that is in user code."""


class FallBackToPipeline(Exception):
    """From here on the reader runs the pipeline for itself.

    Attributes:
        entropy: What to run it with.
        position: Where it is to stand: the index of the first element behind the one that `error` stands for.
        pipeline: The pipeline, if it stands there already.
        error: What an element failed with; it stands in its place, in front of `position`.
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
        """The pipeline, which then is the caller's to close."""
        pipeline, self.pipeline = self.pipeline, None
        return pipeline


class Recorder:
    """All that this process has to do with the recordings of one shelf.

    Args:
        recordings: Where they are.
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
        # Reentrant: a collection of garbage may drop an iterator, and cancel its reader, while its thread holds this.
        self._lock = threading.RLock()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers: set[RecordingReader] = set()
        self._pending_warnings: deque[tuple[str, str, str]] = deque()
        self._thread_lock = threading.Lock()
        """Held by the recorder's thread for good: one that is started besides, as after an interrupt, ends at once."""
        self._thread_id = 0
        self._closed = self._opened = False
        self._lease_watch = LeaseWatch(plan.lease_s)
        self._poll_s = _FIRST_POLL_S
        self._requested_by_others: tuple[int, float] = (-1, 0.0)
        """Up to which element others have asked for more, and when that was last looked at."""
        self._requested_from_others: tuple[int, float] = (-1, 0.0)
        """The element that others were last asked for, and when."""
        self._files_checked = False
        """Whether the files that the recording was made from have been looked at."""
        self._read_problem: tuple[RecordingStore, DataLossError | StoreFailed] | None = None
        """What a reader met when it read a frame."""
        self._lost_count = 0
        self._disabled_by: DsnbError | None = None
        self._unreadable = False

    @property
    def _log(self) -> RecordingLog:
        return self._replica.log

    # ---- readers, each on its own thread

    def add_reader(self, reader: RecordingReader) -> bool:
        """Take one more reader; False if the last one has just left, or this is a copy in a forked process."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            if not self._closed:
                self._readers.add(reader)
            return not self._closed

    def on_reader_cancelled(self) -> None:
        """A reader was cancelled; if all were, the pipeline is, too."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._opened and all(reader.cancelled for reader in self._readers):
                self._writer.cancel()
        self._wakeups.put(None)

    def remove_reader(self, reader: RecordingReader) -> None:
        """A reader is done. After the last one, what was produced is committed and the lease given back."""
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
                self._shut_down()  # no thread was ever needed
            elif self._thread_id != threading.get_ident():
                self._wait_for_end()
        self._issue_warnings()

    def _wait_for_end(self) -> None:
        """Wait until everything is committed. User code may take as long as it likes; it is not waited for."""
        in_user_code = 0.0
        while in_user_code < _USER_CODE_WAIT_S:
            with contextlib.suppress(queue.Empty):
                self._finished.get(timeout=_READER_POLL_S / 5)
                return
            in_user_code = in_user_code + _READER_POLL_S / 5 if self._opened and self._writer.in_user_code else 0.0

    def frame_at(self, reader: RecordingReader, want: int) -> tuple[int, Frame] | None:
        """The frame that holds the reader's next element, with the index of its first element; None at the end."""
        while self.wait_for_elements(reader, reader.position + 1, want) > reader.position:
            with self._lock:
                pending, store = self._writer.pending_frame(reader.position), self._store
                committed = reader.position < self._log.elements
                first, ref = self._log.frame_at(reader.position) if committed else (0, None)
            if pending is not None:
                return pending
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
        """Wait until there are `end` elements, or all.

        Returns:
            How many there are.
        """
        reader.wanted = end, want
        try:
            while True:
                self._raise_if_stopped(reader)
                with self._lock:
                    if self._are_available(end):
                        return self._writer.tail
                if not self._thread_lock.locked() and not start_thread(self._run, "dsnb-cache-recorder"):
                    raise self._fallback_without_thread(reader)
                self._wakeups.put(None)
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
            "the pass goes on without the cache",
            "look for threads that do not end, and for limits of the container",
        )
        return FallBackToPipeline(self._entropy(), reader.position)

    def _queue_warning(self, what: str, did: str, hint: str) -> None:
        self._pending_warnings.append((what, did, hint))

    def _issue_warnings(self) -> None:
        """Issue the warnings of the recorder's thread in the thread of a reader, so that they name the user's line."""
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
        """Do what is to be done next; False when all readers have left."""
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
                    reader.wakeups.put(None)

    def _set_error(self, reader: RecordingReader | None, error: Exception) -> None:
        if reader is not None and isinstance(error, FallBackToPipeline):
            reader.fallback = error
        elif reader is not None:
            reader.error = error

    def _wait_for_wakeup(self, seconds: float | None) -> None:
        """Wait until a reader wants something, or the time is over."""
        with contextlib.suppress(queue.Empty):
            self._wakeups.get(timeout=seconds)
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
        """Run the pipeline for one run of elements; without a reader, for one of another process."""
        try:
            self._writer.produce(want)
        except CancelledError:
            # All readers there were had been cancelled, and the pipeline with them; one that came since begins anew.
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
            if reader is not None:  # else the process that asked for the element takes the lease, and meets its error
                pipeline = self._plan.header.pipeline
                self._queue_warning(
                    f"an element of {pipeline} failed, behind {self._log.elements:,} that are recorded",
                    "the rest of this pass runs the pipeline; the next one tries that element again",
                    "let the function return something for each element, or leave failing ones out in front of `cache`",
                )

    def _idle(self) -> None:
        """While no reader of this process waits: produce for others, commit, give the lease back after a while."""
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
            self._open_next()  # others may end this one
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
                loss = DataLossError(f"the recording in {self._location} was given up again: {self._log.abandoned}")
                self._handle_loss(loss, already_reported=True)
            case ReaderAction.STRANDED:
                self._set_error(reader, self._fallback(reader))

    def _is_stale(self) -> bool:
        """Whether a file that the recording was made from has changed since, and nobody here has read from it yet."""
        if not self._store.shared or any(known.position for known in self._readers):
            return False
        change = first_change(self._log.files)
        if change:
            self._queue_warning(change, f"it is recorded anew in {self._location}", "")
        return bool(change)

    def files(self) -> Sequence[FileState]:
        """The files that were opened for what can be read."""
        with self._lock:
            return (*self._log.files, *self._writer.files) if self._opened else ()

    def _begin_recording(self) -> None:
        why = self._recordings.explain_miss() if self._number == 1 else ""
        if self._replica.claim(self._plan.header) and why:
            self._queue_warning(f"the pipeline has changed: {why}", f"it is recorded anew in {self._location}", "")

    def _finalize_once(self) -> None:
        """Finish the work of a writer that died while it put its recording in order."""
        if not self._finalized and self._log.ended:
            with contextlib.suppress(StoreFailed, RecordingLost):
                self._store.finalize(self._replica.records)
        self._finalized = True

    def _request_element(self, position: int) -> None:
        """Let the writer, whose own readers may be slow, know what is wanted here."""
        now = time.monotonic()
        last_position, when = self._requested_from_others
        if last_position != position or now - when >= _REQUEST_INTERVAL_S:
            self._store.request_element(position)
            self._requested_from_others = position, now

    def _holder_lost(self) -> bool:
        holder = self._log.holder
        if holder is None:
            return False
        process = holder.holder.rpartition("-")[0]
        if process == this_process().unique_id():
            return holder.holder not in ACTIVE_HOLDERS
        if not self._store.shared:
            return True  # this process is a fork of the holder's, and the memory a copy of its memory
        return bool(is_gone(process)) or self._lease_watch.has_expired(
            holder.epoch, self._store.read_heartbeat(holder.epoch), time.monotonic()
        )

    # ---- when it does not go on

    def _handle_read_problem(self, store: RecordingStore, problem: DataLossError | StoreFailed) -> None:
        """What is committed cannot be read: close this recording, for all, and go over to the next."""
        if store is not self._store:
            return  # it was given up already
        if isinstance(problem, StoreFailed):
            self._unreadable = True
            raise problem
        try:
            while not self._log.abandoned and not self._replica.claim(RecordingAbandoned(why=problem.what)):
                self._replica.refresh()
        except StoreFailed as refusal:
            self._unreadable = True
            self._queue_warning(problem.what, "nothing of it was used", problem.hint)
            self._disable(refusal.error)
        except (DataLossError, RecordingLost):
            self._handle_loss(problem)  # the log is lost as well: all who read it find that out
        else:
            self._handle_loss(problem)

    def _handle_loss(self, what: DsnbError, *, already_reported: bool = False) -> None:
        """What is recorded is lost: begin the next recording; or go on without, where that is no use.

        Args:
            what: Why.
            already_reported: Whether another process has warned of it.
        """
        seen = any(reader.position for reader in self._readers)
        self._lost_count += seen or not already_reported
        again = self._lost_count <= _MAX_LOST_RECORDINGS and (self._repeatable() or not seen)
        did = "it is recorded anew" if again else "nothing of it was used; the pass goes on without the cache"
        if not (already_reported and again):
            self._queue_warning(what.what, did, what.hint)
        if again:
            self._writer.discard()
            self._open_next()
        else:
            self._disabled_by, self._unreadable = what, True
            self._writer.drop_lease()

    def _open_next(self) -> None:
        """Go over to the next recording, with the same entropy: what is repeatable goes on as it began."""
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
        """Stop recording in this process; readers read what there is and then go on alone."""
        if self._disabled_by is None:
            self._queue_warning(error.what, error.did or "the pass goes on without the cache", error.hint)
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
        """After the last reader."""
        try:
            if self._opened:
                with contextlib.suppress(Exception):  # what a store refuses now costs the next run a chunk
                    self._writer.commit_and_release()
                self._writer.discard()
                self._store.close()
            self._recordings.close()
        finally:
            self._on_close(self)
            self._finished.put(None)
