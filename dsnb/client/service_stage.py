"""The stage of a distributed dataset: joins its job when it is first read, and is that job's reader from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dsnb.errors import CancelledError, beside
from dsnb.pipeline.engine.stage import Run, Stage, Tracking
from dsnb.wire.threads import shielded


class JobReader(Stage):
    """A stage that has joined a job and reads it."""

    def announce(self) -> None:
        """Warn of what keeps elements of the pass from coming: it is over, paused, or lacks a worker."""
        raise NotImplementedError

    def bookmark(self, behind: int) -> Any:
        """What it takes to go on after the first `behind` elements; plain data."""
        raise NotImplementedError

    def may_be_taken_by_others(self) -> bool:
        """Whether other clients may have had elements of the pass, or some were lost."""
        return True


class ServiceStage(Stage):
    """A source whose elements come from a service.

    Building a pipeline joins no job: its iterator may never be read, or be read only in another part of the pipeline.

    Args:
        join: Joins the job; returns the stage that reads it. Called again if it failed.
        place: Which source of which pass of a local pipeline it is.
        mark: The bookmark of its beginning.
        behind: Elements that need not come again; leaving them out joins nothing.
    """

    def __init__(self, join: Callable[[], JobReader], place: str = "", mark: Any = None, behind: int = 0) -> None:
        super().__init__("from the service")
        self.place = place
        self._join = join
        self._mark = mark
        self._behind = behind
        self._skipped = 0
        self._reader: JobReader | None = None
        self._tracking: _Later | None = None
        self._joining = threading.Lock()
        self._waited_before = 0
        """Time that the passes before waited."""

    def start(self) -> None:
        """Join the job, if that was not done.

        Raises:
            DsnbError: why it cannot be joined; the next call tries again.
        """
        with self._joining:
            if self._reader is not None:
                return
            if self._cancelled:
                raise CancelledError("reading was stopped")
            try:
                self._reader = self._joined()
            except Exception as error:
                beside(error)
                raise
            self.closes_slowly = True
        self.adopt(self._reader)
        self._reader.skip(self._skipped)
        if self._tracking is not None:
            self._tracking.begin(self._reader)

    def _joined(self) -> JobReader:
        reader = shielded(self._join, lambda late: late.close())
        try:
            reader.announce()
        except BaseException:  # where warnings are errors
            reader.close()
            raise
        return reader

    def produce(self, want: int) -> Run:
        """The next elements that the service delivered."""
        reader = self._reading()
        try:
            return reader.pull(want)
        finally:
            self.wait_ns = self._waited_before + reader.wait_ns

    def track(self, *, held: bool = False) -> Tracking | None:
        """Learn of each element when the user has it, from the first one on; asking for it does not join the job."""
        self._tracking = _Later(held=held)
        if self._reader is not None:
            self._tracking.begin(self._reader)
        return self._tracking

    def skip(self, count: int) -> int:
        """Leave elements out; those that are behind for good without joining."""
        if self._reader is None and self._skipped + count <= self._behind:
            self._skipped += count
            return count
        return self._reading().skip(count)

    def bookmark(self, behind: int) -> Any:
        """What it takes to go on after the first elements; of one that has not joined, where it is to begin."""
        if self._reader is None:
            return self._mark
        return self._reader.bookmark(behind)

    def cancel(self) -> None:
        """Wake the thread that waits for elements. One that is joining leaves as soon as it has joined."""
        super().cancel()
        if self._reader is not None:
            self._reader.cancel()

    def release(self, unread: int) -> None:
        """Leave the job."""
        if self._reader is not None:
            self._reader.close(unread)

    def may_be_taken_by_others(self) -> bool:
        """As the reader knows when the pass is over."""
        return self._reader is not None and self._reader.may_be_taken_by_others()

    def carry_on(self, before: Stage) -> None:
        """Count on."""
        super().carry_on(before)
        self._waited_before = self.wait_ns

    def _reading(self) -> JobReader:
        self.start()
        assert self._reader is not None
        return self._reader


class _Later(Tracking):
    """Tells a reader what the user consumed, also where it has yet to join when the pipeline is asked."""

    def __init__(self, *, held: bool) -> None:
        self._held = held
        self._of_reader: Tracking | None = None

    def begin(self, reader: JobReader) -> None:
        """The reader has joined, and what it gives from now on is for the user."""
        self._of_reader = reader.track(held=self._held)

    def consumed(self, elements: int, errors: int) -> None:
        if self._of_reader is not None:
            self._of_reader.consumed(elements, errors)

    def valid(self) -> bool:
        return self._of_reader is None or self._of_reader.valid()
