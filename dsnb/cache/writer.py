"""The writer of one recording: holds its lease, runs the pipeline, commits what comes out of it.

All of it is called by the one thread of a recorder (`cache/recorder`), except `cancel`, `held` and `tail`.
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

from dsnb.cache.backends import RecordingLost, RecordingStore, StoreFailed
from dsnb.cache.frames import merge_small_frames, nbytes_of
from dsnb.cache.log_replica import LogReplica
from dsnb.cache.opened_files import FileState
from dsnb.cache.process_identity import this_process
from dsnb.cache.recording import Chunk, LeaseReleased, LeaseTaken, Record, RecordingEnded, RecordingHeader
from dsnb.dataclass import dataclass
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError

_MIN_REQUEST: Final = 16
"""Elements to ask for at once if they may be of any size; beyond that, a 16th of those that wait to be committed."""

ACTIVE_HOLDERS: set[str] = set()
"""The holders of leases in this process: one of this process that is not in here is gone."""


class RunningPipeline(Protocol):
    """A pipeline at work."""

    def pull(self, want: int) -> list[Frame]:
        """At most `want` more elements; none at the end. Raises what one of them failed with, in its place."""
        ...

    def skip(self, count: int) -> int:
        """Leave elements out, as cheaply as can be; how many there were."""
        ...

    def take_files(self) -> tuple[FileState, ...]:
        """The files that were opened since the last call."""
        ...

    def cancel(self) -> None:
        """Let whoever pulls get a `CancelledError`."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """How to record.

    Attributes:
        header: What to put into the first slot of a new recording.
        open_pipeline: Runs the pipeline, with the entropy that its recording names.
        chunk_bytes: What is committed at once, in bytes of leaves.
        chunk_s: How old an element may be before it is committed, in seconds.
        lease_s: After how long a silent writer is taken over, in seconds.
    """

    header: RecordingHeader
    open_pipeline: Callable[[int], RunningPipeline]
    chunk_bytes: int = 16 << 20
    chunk_s: float = 1.0
    lease_s: float = 5.0


class PipelineFailed(Exception):
    """The pipeline failed, and not what it is recorded to.

    Attributes:
        error: What it raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RecordingWriter:
    """Writes one recording, when it is this process's turn.

    Args:
        store: Where to.
        replica: Its log.
        plan: How.
        lock: Held while what readers look at changes.

    Attributes:
        holder: The name under which the lease is held; empty while it is not.
        in_user_code: Whether the pipeline is at work now.
        files: The files that were opened for what is not committed yet.
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

    @property
    def tail(self) -> int:
        """How many elements can be read in this process: what is committed, and what waits for that."""
        return self._replica.log.elements + self._pending_count

    def pending_frame(self, position: int) -> tuple[int, Frame] | None:
        """The frame of an element that is not committed, with the index of its first element."""
        if not self._replica.log.elements <= position < self.tail:
            return None
        index = bisect_right(self._pending_starts, position) - 1
        return self._pending_starts[index], self._pending[index]

    # ---- the lease

    def take_lease(self) -> None:
        """Take the lease, if nobody is faster, and bring the pipeline to the end of what is recorded.

        Raises:
            PipelineFailed: it cannot be run.
            Unwritable: the store refuses.
        """
        holder = f"{this_process().unique_id()}-{secrets.token_hex(4)}"
        ACTIVE_HOLDERS.add(holder)
        self.holder = holder
        try:
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
            return  # the lease was given back for a while, and nobody took it
        self.close_pipeline()
        assert log.header is not None
        with self._user_code():
            pipeline = self._plan.open_pipeline(log.header.entropy)
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
        """Commit what is pending and give the lease back.

        Raises:
            Unwritable: the store refuses.
        """
        if self.holder and self.commit():
            self._release_lease()

    def _release_lease(self) -> None:
        if self.holder and self._replica.log.holder is not None:
            with contextlib.suppress(StoreFailed, RecordingLost):  # then others wait for the lease to run out
                self._replica.claim(LeaseReleased(epoch=self._replica.log.epoch))
        self.drop_lease()

    def drop_lease(self) -> None:
        """Stop being the holder, whatever the log says."""
        ACTIVE_HOLDERS.discard(self.holder)
        self.holder = ""
        self._lease_ended.set()

    # ---- elements

    def produce(self, want: int) -> None:
        """Run the pipeline for at least one element, or to its end.

        Raises:
            PipelineFailed: the next element failed.
            Unwritable: the store refuses to commit; the elements can still be read here.
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
        """How many elements to ask for, so that a death costs no more than a chunk, or a second.

        By the largest element so far, and by the time that the last ones took. The next ones may be quite different, so
        never for many more than wait to be committed already; the first one comes alone.
        """
        if not self._element_bytes:
            return 1
        by_size = (self._plan.chunk_bytes - nbytes_of(self._pending)) // self._element_bytes
        left_s = self._plan.chunk_s - (now - self._pending_since if self._pending else 0.0)
        by_time = left_s / self._element_s if self._element_s else by_size
        return max(1, min(by_size, int(by_time), max(_MIN_REQUEST, self._pending_count // _MIN_REQUEST)))

    @property
    def idle_s(self) -> float:
        """For how many seconds nobody has asked for an element."""
        return time.monotonic() - self._last_produced

    def commit_if_due(self) -> None:
        """Commit what is pending, if that fills a chunk or is old.

        Raises:
            Unwritable: the store refuses; it is still pending.
        """
        old = time.monotonic() - self._pending_since >= self._plan.chunk_s
        if self._pending and (old or nbytes_of(self._pending) >= self._plan.chunk_bytes):
            self.commit()

    def commit(self) -> bool:
        """Commit what is pending; False if somebody else has taken over.

        Raises:
            Unwritable: the store refuses; it is still pending.
        """
        if not self._pending:
            return True
        log = self._replica.log
        refs = self._store.write_frames(merge_small_frames(self._pending))
        chunk = Chunk(
            epoch=log.epoch, first=log.elements, count=self._pending_count, frames=refs, files=tuple(self.files)
        )
        return self._claim(chunk, self._clear_pending)

    def _claim(self, record: Record, then: Callable[[], None] | None = None) -> bool:
        made = self._replica.claim(record, then)
        if not made:
            self._on_fenced()
        return made

    def _on_fenced(self) -> None:
        """Another process has taken over: its elements count. They are the same, if the pipeline is repeatable."""
        self.drop_lease()
        header = self._replica.log.header
        if header is not None and header.repeatable:
            self.discard()

    def discard(self) -> None:
        """Forget what is not committed, and the pipeline."""
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
        with contextlib.suppress(StoreFailed, RecordingLost):  # whoever opens it next does this
            self._store.finalize(self._replica.records)

    def take_pipeline_at(self, position: int) -> RunningPipeline | None:
        """Give the pipeline away, if it stands at this element."""
        if self._pipeline_position != position:
            return None
        pipeline, self._pipeline = self._pipeline, None
        return pipeline

    def close_pipeline(self) -> None:
        """Close the pipeline."""
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def cancel(self) -> None:
        """Cancel the pipeline, from any thread."""
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.cancel()

    # ---- the pulse

    def _start_heartbeat(self) -> None:
        """On a thread of its own: user code may take longer than a lease."""
        ended = self._lease_ended = threading.Event()
        every, epoch, store = self._plan.lease_s / 4, self._replica.log.epoch, self._store

        def send() -> None:
            while not ended.wait(every):
                store.write_heartbeat(epoch)

        threading.Thread(target=send, name="dsnb-cache-pulse", daemon=True).start()
