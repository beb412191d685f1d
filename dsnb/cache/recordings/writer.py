"""The writer of one recording: holds its lease, runs the pipeline and commits its elements.

Only the recorder's thread (`cache/recordings/recorder`) calls it, except for `cancel`, `pending_frame`, `tail`, `files`
and `in_user_code`, which other threads use too.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import msgspec

from dsnb.cache.opened_files import FileState
from dsnb.cache.recordings.backends import RecordingLost, RecordingStore, StoreFailed
from dsnb.cache.recordings.frames import merge_small_frames, nbytes_of
from dsnb.cache.recordings.log_replica import LogReplica
from dsnb.cache.recordings.recording import Chunk, LeaseReleased, LeaseTaken, Record, RecordingEnded, RecordingHeader
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError
from dsnb.storage.process_identity import this_process

_MIN_REQUEST: Final = 16
"""A request is limited to this many elements, or to the pending elements divided by this, whichever is more."""

ACTIVE_HOLDERS: set[str] = set()
"""The holders of leases in this process. A holder of this process that is not in this set has ended."""


class RunningPipeline(Protocol):
    """A pipeline that is being iterated."""

    def pull(self, want: int) -> list[Frame]:
        """Return at most `want` more elements; an empty list at the end. Raises the error of an element in its turn."""
        ...

    def skip(self, count: int) -> int:
        """Skip `count` elements as cheaply as possible; returns the number of elements that there were."""
        ...

    def take_files(self) -> tuple[FileState, ...]:
        """Return the states of the files that were opened since the last call."""
        ...

    def cancel(self) -> None:
        """Make a running `pull` raise `CancelledError`, from any thread."""
        ...

    def close(self) -> None:
        """Release all resources of the pipeline."""
        ...


class RecordingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to record a pipeline.

    Attributes:
        header: The first record of a new recording.
        open_pipeline: Starts the pipeline with the entropy of its recording.
        chunk_bytes: How many bytes of leaves fill a chunk.
        chunk_s: After how many seconds a produced element is committed, even if the chunk is not full.
        lease_s: After how many seconds without a heartbeat another process takes over from the writer.
    """

    header: RecordingHeader
    open_pipeline: Callable[[int], RunningPipeline]
    chunk_bytes: int = 16 << 20
    chunk_s: float = 1.0
    lease_s: float = 5.0


class PipelineFailed(Exception):
    """The pipeline failed, not the store.

    Attributes:
        error: The pipeline's error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RecordingWriter:
    """Writes one recording while this process holds its lease.

    Args:
        store: The store of the recording.
        replica: The recording's log.
        plan: How to record.
        lock: Held while state changes that readers look at.

    Attributes:
        holder: The id under which this process holds the lease; empty while it does not.
        in_user_code: Whether the pipeline is running now.
        files: The files that were opened for elements that are not committed yet.
    """

    def __init__(
        self, store: RecordingStore, replica: LogReplica, plan: RecordingPlan, lock: AbstractContextManager[object]
    ) -> None:
        self._store = store
        self._replica = replica
        self._plan = plan
        self._lock = lock
        self.holder = ""
        self.in_user_code = False
        self._pending: list[Frame] = []
        self._pending_starts: list[int] = []
        self._pending_count = 0
        self.files: list[FileState] = []
        self._pending_since = 0.0
        self._last_produced = 0.0
        self._pipeline: RunningPipeline | None = None
        self._pipeline_position = 0
        self._element_bytes = 0
        self._element_s = 0.0
        self._lease_ended = threading.Event()
        self._heartbeat_thread: threading.Thread | None = None

    @property
    def tail(self) -> int:
        """How many elements can be read in this process: the committed ones and the pending ones."""
        return self._replica.log.elements + self._pending_count

    def pending_frame(self, position: int) -> tuple[int, Frame] | None:
        """The frame of a pending element, with the index of the frame's first element; None if it is not pending."""
        if not self._replica.log.elements <= position < self.tail:
            return None
        index = bisect_right(self._pending_starts, position) - 1
        return self._pending_starts[index], self._pending[index]

    # ---- the lease

    def take_lease(self) -> None:
        """Take the lease, unless another process is faster, and advance the pipeline to the end of the recording.

        Raises:
            PipelineFailed: the pipeline cannot be run.
            StoreFailed: the store refuses.
        """
        holder = f"{this_process().unique_id()}-{secrets.token_hex(4)}"
        ACTIVE_HOLDERS.add(holder)
        self.holder = holder
        try:
            # List orphans before the claim: a segment that a living writer creates afterwards is never in the list.
            orphans = self._store.orphans()
            if not self._replica.claim(
                LeaseTaken(epoch=self._replica.log.epoch + 1, holder=holder, name=str(this_process()))
            ):
                self.drop_lease()
                return
            self._last_produced = time.monotonic()
            if self._store.shared:
                self._start_heartbeat()
            self._store.remove_orphans(self._replica.records, orphans)
            self._start_pipeline()
        except BaseException:
            self._release_lease()
            self.close_pipeline()
            raise

    def _start_pipeline(self) -> None:
        log = self._replica.log
        if self._pipeline is not None and self._pipeline_position == log.elements:
            return  # the lease was released for a while, and no other process took it
        self.close_pipeline()
        assert log.header is not None
        with self._user_code():
            pipeline = self._plan.open_pipeline(log.header.entropy)
            # Under the lock and before `skip`, which may run user code for long: `cancel` must be able to stop it.
            with self._lock:
                self._pipeline = pipeline
            self._pipeline_position = log.elements
            pipeline.skip(log.elements)

    @contextmanager
    def _user_code(self) -> Iterator[None]:
        self.in_user_code = True
        try:
            yield
        except CancelledError:
            raise
        except Exception as error:
            raise PipelineFailed(error) from error
        finally:
            self.in_user_code = False

    def commit_and_release(self) -> None:
        """Commit the pending elements and release the lease.

        Raises:
            StoreFailed: the store refuses.
        """
        if self.holder and self.commit():
            self._release_lease()

    def _release_lease(self) -> None:
        if self.holder and self._replica.log.holder is not None:
            with contextlib.suppress(StoreFailed, RecordingLost):  # then other processes wait until the lease expires
                self._replica.claim(LeaseReleased(epoch=self._replica.log.epoch))
        self.drop_lease()

    def drop_lease(self) -> None:
        """Stop being the holder in this process only; the log is not changed."""
        ACTIVE_HOLDERS.discard(self.holder)
        self.holder = ""
        self._lease_ended.set()

    # ---- elements

    def produce(self, want: int) -> None:
        """Run the pipeline for at least one element, or to its end.

        Raises:
            PipelineFailed: the next element failed.
            StoreFailed: the store refuses to commit; the elements can still be read in this process.
        """
        assert self._pipeline is not None
        began = time.monotonic()
        with self._user_code():
            frames = self._pipeline.pull(min(want, self._elements_to_request(began)))
        self.files += self._pipeline.take_files()
        self._last_produced = time.monotonic()
        if not frames:
            self._finish()
            return
        with self._lock:
            self._pending_since = self._pending_since if self._pending else self._last_produced
            for frame in frames:
                self._pending_starts.append(self.tail)
                self._pending.append(frame)
                self._pending_count += frame.count
                self._element_bytes = max(self._element_bytes, 1, frame.nbytes // frame.count)
            self._element_s = (self._last_produced - began) / sum(frame.count for frame in frames)
            self._pipeline_position = self.tail
        self.commit_if_due()

    def _elements_to_request(self, now: float) -> int:
        """How many elements to request, so that a crash loses no more than one chunk or `chunk_s` of work.

        Estimated from the largest element so far and from the time that the last elements took. The next elements may
        be quite different, so the request is limited to `_MIN_REQUEST` or a 16th of the pending elements, whichever is
        more. The first element is requested alone.
        """
        if not self._element_bytes:
            return 1
        by_size = (self._plan.chunk_bytes - nbytes_of(self._pending)) // self._element_bytes
        left_s = self._plan.chunk_s - (now - self._pending_since if self._pending else 0.0)
        by_time = left_s / self._element_s if self._element_s else by_size
        return max(1, min(by_size, int(by_time), max(_MIN_REQUEST, self._pending_count // _MIN_REQUEST)))

    @property
    def idle_s(self) -> float:
        """Seconds since elements were last produced, or since the lease was taken."""
        return time.monotonic() - self._last_produced

    def commit_if_due(self) -> None:
        """Commit the pending elements if they fill a chunk or the oldest is `chunk_s` old.

        Raises:
            StoreFailed: the store refuses; the elements are still pending.
        """
        old = time.monotonic() - self._pending_since >= self._plan.chunk_s
        if self._pending and (old or nbytes_of(self._pending) >= self._plan.chunk_bytes):
            self.commit()

    def commit(self) -> bool:
        """Commit the pending elements; False if another process has taken over.

        Raises:
            StoreFailed: the store refuses; the elements are still pending.
        """
        if not self._pending:
            return True
        log = self._replica.log
        refs = self._store.write_frames(merge_small_frames(self._pending))
        # The frames are durable before the record that names them: a log never refers to data that are not there.
        chunk = Chunk(
            epoch=log.epoch, first=log.elements, count=self._pending_count, frames=refs, files=tuple(self.files)
        )
        return self._claim(chunk, self._clear_pending)
        # `_clear_pending` runs under the replica's lock, so that a reader never finds an element twice or not at all.

    def _claim(self, record: Record, then: Callable[[], None] | None = None) -> bool:
        made = self._replica.claim(record, then)
        if not made:
            self._on_fenced()
        return made

    def _on_fenced(self) -> None:
        """Give up writing: another process has taken over. A repeatable pipeline gives the same elements there."""
        self.drop_lease()
        header = self._replica.log.header
        # If the pipeline is not repeatable, keep the pending elements: readers of this process may have seen some.
        if header is not None and header.repeatable:
            self.discard()

    def discard(self) -> None:
        """Drop the lease, the pending elements and the pipeline."""
        self.drop_lease()
        with self._lock:
            self._clear_pending()
        self.close_pipeline()

    def _clear_pending(self) -> None:
        self._pending, self._pending_starts, self._pending_count, self.files = [], [], 0, []

    def _finish(self) -> None:
        log = self._replica.log
        if not self.commit() or not self._claim(
            RecordingEnded(epoch=log.epoch, elements=log.elements, files=tuple(self.files))
        ):
            return
        self.drop_lease()
        self.close_pipeline()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.join()  # a heartbeat that is under way would appear again once it is removed
        with contextlib.suppress(StoreFailed, RecordingLost):  # the next process that opens it finalizes it
            self._store.finalize(self._replica.records)

    def take_pipeline_at(self, position: int) -> RunningPipeline | None:
        """Return the pipeline if it stands at this element, and forget it; else None. The caller must close it."""
        if self._pipeline_position != position:
            return None
        pipeline, self._pipeline = self._pipeline, None
        return pipeline

    def close_pipeline(self) -> None:
        """Close the pipeline, if there is one."""
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def cancel(self) -> None:
        """Cancel the pipeline, if there is one, from any thread."""
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.cancel()

    # ---- the heartbeat

    def _start_heartbeat(self) -> None:
        """Send heartbeats from a thread of their own: user code may block longer than a lease."""
        ended = self._lease_ended = threading.Event()
        # Bound to local names: a later lease of this writer has another event and another epoch.
        every, epoch, store = self._plan.lease_s / 4, self._replica.log.epoch, self._store

        def send() -> None:
            while not ended.wait(every):
                store.write_heartbeat(epoch)

        self._heartbeat_thread = threading.Thread(target=send, name="dsnb-cache-heartbeat", daemon=True)
        self._heartbeat_thread.start()
