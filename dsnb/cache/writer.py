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

from dsnb.cache.backends import Gone, Store, Unwritable
from dsnb.cache.frames import joined, nbytes_of
from dsnb.cache.opened import FileNote
from dsnb.cache.process import here
from dsnb.cache.recording import Begin, Chunk, End, Record, Release, Take
from dsnb.cache.slots import Slots
from dsnb.dataclass import dataclass
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError

_FEW: Final = 16
"""Elements to ask for at once if they may be of any size; beyond that, a 16th of those that wait to be committed."""

HOLDERS: set[str] = set()
"""The holders of leases in this process: one of this process that is not in here is gone."""


class Source(Protocol):
    """A pipeline at work."""

    def pull(self, want: int) -> list[Frame]:
        """At most `want` more elements; none at the end. Raises what one of them failed with, in its place."""
        ...

    def skip(self, count: int) -> int:
        """Leave elements out, as cheaply as can be; how many there were."""
        ...

    def take_files(self) -> tuple[FileNote, ...]:
        """The files that were opened since the last call."""
        ...

    def cancel(self) -> None:
        """Let whoever pulls get a `CancelledError`."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to record.

    Attributes:
        begin: What to put into the first slot of a new recording.
        open: Runs the pipeline, with the entropy that its recording names.
        chunk_bytes: What is committed at once, in bytes of leaves.
        chunk_s: How old an element may be before it is committed, in seconds.
        lease_s: After how long a silent writer is taken over, in seconds.
    """

    begin: Begin
    open: Callable[[int], Source]
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


class Writer:
    """Writes one recording, when it is this process's turn.

    Args:
        store: Where to.
        slots: Its log.
        plan: How.
        lock: Held while what readers look at changes.

    Attributes:
        holder: The name under which the lease is held; empty while it is not.
        in_user_code: Whether the pipeline is at work now.
        files: The files that were opened for what is not committed yet.
    """

    def __init__(self, store: Store, slots: Slots, plan: Plan, lock: AbstractContextManager[object]) -> None:
        self._store = store
        self._slots = slots
        self._plan = plan
        self._lock = lock
        self.holder = ""
        self.in_user_code = False
        self._pending: list[Frame] = []
        self._firsts: list[int] = []
        self._count = 0
        self.files: list[FileNote] = []
        self._since = 0.0
        self._last = 0.0
        self._source: Source | None = None
        self._source_at = 0
        self._element_bytes = 0
        self._element_s = 0.0
        self._ended = threading.Event()

    @property
    def tail(self) -> int:
        """How many elements can be read in this process: what is committed, and what waits for that."""
        return self._slots.log.elements + self._count

    def held(self, position: int) -> tuple[int, Frame] | None:
        """The frame of an element that is not committed, with the index of its first element."""
        if not self._slots.log.elements <= position < self.tail:
            return None
        index = bisect_right(self._firsts, position) - 1
        return self._firsts[index], self._pending[index]

    # ---- the lease

    def take(self) -> None:
        """Take the lease, if nobody is faster, and bring the pipeline to the end of what is recorded.

        Raises:
            PipelineFailed: it cannot be run.
            Unwritable: the store refuses.
        """
        holder = f"{here().short()}-{secrets.token_hex(4)}"
        HOLDERS.add(holder)
        self.holder = holder
        try:
            left = self._store.left_behind()
            if not self._slots.claim(Take(epoch=self._slots.log.epoch + 1, holder=holder, name=str(here()))):
                self.lay_down()
                return
            self._last = time.monotonic()
            if self._store.shared:
                self._show_pulse()
            self._store.tidy(self._slots.records, left)
            self._begin_source()
        except BaseException:
            self._release()
            self.end_source()
            raise

    def _begin_source(self) -> None:
        log = self._slots.log
        if self._source is not None and self._source_at == log.elements:
            return  # the lease was given back for a while, and nobody took it
        self.end_source()
        assert log.begin is not None
        with self._user_code():
            source = self._plan.open(log.begin.entropy)
            with self._lock:
                self._source = source
            self._source_at = log.elements
            source.skip(log.elements)

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

    def give_back(self) -> None:
        """Commit what is pending and give the lease back.

        Raises:
            Unwritable: the store refuses.
        """
        if self.holder and self.commit():
            self._release()

    def _release(self) -> None:
        if self.holder and self._slots.log.holder is not None:
            with contextlib.suppress(Unwritable, Gone):  # then others wait for the lease to run out
                self._slots.claim(Release(epoch=self._slots.log.epoch))
        self.lay_down()

    def lay_down(self) -> None:
        """Stop being the holder, whatever the log says."""
        HOLDERS.discard(self.holder)
        self.holder = ""
        self._ended.set()

    # ---- elements

    def produce(self, want: int) -> None:
        """Run the pipeline for at least one element, or to its end.

        Raises:
            PipelineFailed: the next element failed.
            Unwritable: the store refuses to commit; the elements can still be read here.
        """
        assert self._source is not None
        began = time.monotonic()
        with self._user_code():
            frames = self._source.pull(min(want, self._room(began)))
        self.files += self._source.take_files()
        self._last = time.monotonic()
        if not frames:
            self._finish()
            return
        with self._lock:
            self._since = self._since if self._pending else self._last
            for frame in frames:
                self._firsts.append(self.tail)
                self._pending.append(frame)
                self._count += frame.count
                self._element_bytes = max(self._element_bytes, 1, frame.nbytes // frame.count)
            self._element_s = (self._last - began) / sum(frame.count for frame in frames)
            self._source_at = self.tail
        self.commit_if_due()

    def _room(self, now: float) -> int:
        """How many elements to ask for, so that a death costs no more than a chunk, or a second.

        By the largest element so far, and by the time that the last ones took. The next ones may be quite different, so
        never for many more than wait to be committed already; the first one comes alone.
        """
        if not self._element_bytes:
            return 1
        by_size = (self._plan.chunk_bytes - nbytes_of(self._pending)) // self._element_bytes
        left_s = self._plan.chunk_s - (now - self._since if self._pending else 0.0)
        by_time = left_s / self._element_s if self._element_s else by_size
        return max(1, min(by_size, int(by_time), max(_FEW, self._count // _FEW)))

    @property
    def idle_s(self) -> float:
        """For how many seconds nobody has asked for an element."""
        return time.monotonic() - self._last

    def commit_if_due(self) -> None:
        """Commit what is pending, if that fills a chunk or is old.

        Raises:
            Unwritable: the store refuses; it is still pending.
        """
        old = time.monotonic() - self._since >= self._plan.chunk_s
        if self._pending and (old or nbytes_of(self._pending) >= self._plan.chunk_bytes):
            self.commit()

    def commit(self) -> bool:
        """Commit what is pending; False if somebody else has taken over.

        Raises:
            Unwritable: the store refuses; it is still pending.
        """
        if not self._pending:
            return True
        log = self._slots.log
        places = self._store.put(joined(self._pending))
        chunk = Chunk(epoch=log.epoch, first=log.elements, count=self._count, frames=places, files=tuple(self.files))
        return self._claim(chunk, self._forget_pending)

    def _claim(self, record: Record, then: Callable[[], None] | None = None) -> bool:
        made = self._slots.claim(record, then)
        if not made:
            self._fenced()
        return made

    def _fenced(self) -> None:
        """Another process has taken over: its elements count. They are the same, if the pipeline is repeatable."""
        self.lay_down()
        begin = self._slots.log.begin
        if begin is not None and begin.repeatable:
            self.drop()

    def drop(self) -> None:
        """Forget what is not committed, and the pipeline."""
        self.lay_down()
        with self._lock:
            self._forget_pending()
        self.end_source()

    def _forget_pending(self) -> None:
        self._pending, self._firsts, self._count, self.files = [], [], 0, []

    def _finish(self) -> None:
        log = self._slots.log
        if not self.commit() or not self._claim(End(epoch=log.epoch, elements=log.elements, files=tuple(self.files))):
            return
        self.lay_down()
        self.end_source()
        with contextlib.suppress(Unwritable, Gone):  # whoever opens it next does this
            self._store.settle(self._slots.records)

    def source_at(self, position: int) -> Source | None:
        """Give the pipeline away, if it stands at this element."""
        if self._source_at != position:
            return None
        source, self._source = self._source, None
        return source

    def end_source(self) -> None:
        """Close the pipeline."""
        with self._lock:
            source, self._source = self._source, None
        if source is not None:
            source.close()

    def cancel(self) -> None:
        """Cancel the pipeline, from any thread."""
        source = self._source
        if source is not None:
            source.cancel()

    # ---- the pulse

    def _show_pulse(self) -> None:
        """On a thread of its own: user code may take longer than a lease."""
        ended = self._ended = threading.Event()
        every, epoch, store = self._plan.lease_s / 4, self._slots.log.epoch, self._store

        def show() -> None:
            while not ended.wait(every):
                store.beat(epoch)

        threading.Thread(target=show, name="dsnb-cache-pulse", daemon=True).start()
