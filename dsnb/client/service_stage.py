"""The stage of a distributed dataset: joins its job when it is first read, and is that job's reader from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dsnb.errors import CancelledError, mark_out_of_band
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, Stage
from dsnb.wire.threads import shielded


class JobReader(Stage):
    """A stage that has joined a job and reads it."""

    def warn_at_start(self) -> None:
        """Warn of what keeps elements of the pass from coming: it is over, paused, or lacks a worker."""
        raise NotImplementedError

    def source_position(self, count: int) -> Any:
        """What it takes to go on after the first `count` elements; plain data."""
        raise NotImplementedError

    def shared_with_other_readers(self) -> bool:
        """Whether other clients may have had elements of the pass, or some were lost."""
        return True


class ServiceStage(Stage):
    """A source whose elements come from a service.

    Building a pipeline joins no job: its iterator may never be read, or be read only in another part of the pipeline.

    Args:
        join: Joins the job; returns the stage that reads it. Called again if it failed.
        source_key: Which source of which pass of a local pipeline it is.
        start_state: The bookmark of its beginning.
        skippable: Elements that need not come again; leaving them out joins nothing.
    """

    def __init__(
        self, join: Callable[[], JobReader], source_key: str = "", start_state: Any = None, skippable: int = 0
    ) -> None:
        super().__init__("from the service")
        self.source_key = source_key
        self._join = join
        self._start_state = start_state
        self._skippable = skippable
        self._skipped = 0
        self._reader: JobReader | None = None
        self._tracking: _DeferredTracking | None = None
        self._join_lock = threading.Lock()
        self._waited_before = 0
        """Time that the passes before waited."""

    def start(self) -> None:
        """Join the job, if that was not done.

        Raises:
            DsnbError: why it cannot be joined; the next call tries again.
        """
        with self._join_lock:
            if self._reader is not None:
                return
            if self._cancelled:
                raise CancelledError("reading was stopped")
            try:
                self._reader = self._join_and_warn()
            except Exception as error:
                mark_out_of_band(error)
                raise
            self.closes_slowly = True
        self.adopt(self._reader)
        self._reader.skip(self._skipped)
        if self._tracking is not None:
            self._tracking.attach(self._reader)

    def _join_and_warn(self) -> JobReader:
        reader = shielded(self._join, lambda late: late.close())
        try:
            reader.warn_at_start()
        except BaseException:  # where warnings are errors
            reader.close()
            raise
        return reader

    def produce(self, want: int) -> Run:
        """The next elements that the service delivered."""
        reader = self._joined_reader()
        try:
            return reader.pull(want)
        finally:
            self.wait_ns = self._waited_before + reader.wait_ns

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """Learn of each element when the user has it, from the first one on; asking for it does not join the job."""
        self._tracking = _DeferredTracking(held=buffered)
        if self._reader is not None:
            self._tracking.attach(self._reader)
        return self._tracking

    def skip(self, count: int) -> int:
        """Leave elements out; those that are behind for good without joining."""
        if self._reader is None and self._skipped + count <= self._skippable:
            self._skipped += count
            return count
        return self._joined_reader().skip(count)

    def source_position(self, count: int) -> Any:
        """What it takes to go on after the first elements; of one that has not joined, where it is to begin."""
        if self._reader is None:
            return self._start_state
        return self._reader.source_position(count)

    def cancel(self) -> None:
        """Wake the thread that waits for elements. One that is joining leaves as soon as it has joined."""
        super().cancel()
        if self._reader is not None:
            self._reader.cancel()

    def release(self, unread: int) -> None:
        """Leave the job."""
        if self._reader is not None:
            self._reader.close(unread)

    def shared_with_other_readers(self) -> bool:
        """As the reader knows when the pass is over."""
        return self._reader is not None and self._reader.shared_with_other_readers()

    def continue_counters(self, previous: Stage) -> None:
        """Count on."""
        super().continue_counters(previous)
        self._waited_before = self.wait_ns

    def _joined_reader(self) -> JobReader:
        self.start()
        assert self._reader is not None
        return self._reader


class _DeferredTracking(ConsumptionListener):
    """Tells a reader what the user consumed, also where it has yet to join when the pipeline is asked."""

    def __init__(self, *, held: bool) -> None:
        self._held = held
        self._tracking: ConsumptionListener | None = None

    def attach(self, reader: JobReader) -> None:
        """The reader has joined, and what it gives from now on is for the user."""
        self._tracking = reader.track_consumption(buffered=self._held)

    def consumed(self, elements: int, errors: int) -> None:
        if self._tracking is not None:
            self._tracking.consumed(elements, errors)

    def may_consume(self) -> bool:
        return self._tracking is None or self._tracking.may_consume()
