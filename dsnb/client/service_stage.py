"""The stage of a distributed dataset: joins the job on the first read, then forwards everything to the job's reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from dsnb.errors import CancelledError, mark_out_of_band
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, Stage
from dsnb.wire.threads import shielded

_LEAVE_WAIT_S: Final = 5.0
_reads: WeakValueDictionary[tuple[str, str, str], JobReader] = WeakValueDictionary()
"""The last read of each consumer or trainer in this process, by service, job and name."""


class JobReader(Stage):
    """A stage that has joined a job and reads it."""

    decode_ns = 0
    """Time that the user's `next` spent on building elements from received data."""
    convert_ns = 0
    """Time that the user's `next` spent on making a framework's objects."""

    def __init__(self, name: str, *inputs: Stage) -> None:
        super().__init__(name, *inputs)
        self._left = threading.Event()
        """Set once the dispatcher has the final report, or the reader has tried to send it."""

    @property
    def returned(self) -> bool:
        """Whether its consumer or trainer has read in this epoch before, left it, and now continues where it left."""
        return False

    def _follow_previous_read(self, address: str, job: str, name: str) -> None:
        """Wait until this process's last read under the same name has left, and said where the next one continues.

        A loop that is left closes its read on another thread.
        """
        previous, _reads[address, job, name] = _reads.get((address, job, name)), self
        if previous is not None and previous.is_leaving:
            previous.wait_until_left(_LEAVE_WAIT_S)

    @property
    def is_leaving(self) -> bool:
        """Whether it was cancelled, and is being closed or was."""
        return self._cancelled

    def wait_until_left(self, timeout: float) -> None:
        """Wait until the dispatcher has the final report, but not longer than `timeout` seconds."""
        self._left.wait(timeout)

    def note_conversion(self, ns: int, *, to_framework: bool) -> None:
        """Add to the time that this reader reports."""
        if to_framework:
            self.convert_ns += ns
        else:
            self.decode_ns += ns

    def warn_at_start(self) -> None:
        """Warn of what keeps elements from coming: the iteration is over, the job is paused, or a worker is missing."""
        raise NotImplementedError

    def source_position(self, count: int) -> Any:
        """Return what it takes to resume after the first `count` elements, as plain data."""
        raise NotImplementedError

    def shared_with_other_readers(self) -> bool:
        """Whether other clients may have read elements of the iteration, or some were lost."""
        return True


class ServiceStage(Stage):
    """A source whose elements come from a service.

    Building the pipeline does not join the job: its iterator may never be read, or only another part of it.

    Args:
        join: Joins the job; returns the stage that reads it. Called again if it failed.
        source_key: Identifies the source, and its pass, within the local pipeline.
        start_state: The position at which the stage begins, encoded.
        skippable: Elements that need not come again; skipping them does not join the job.
        end: How many elements there are, if the start position says so.
        replayable: Whether the same elements come again in the same order, if an operation behind it needs them.
    """

    def __init__(
        self,
        join: Callable[[], JobReader],
        source_key: str = "",
        start_state: Any = None,
        skippable: int = 0,
        *,
        end: int | None = None,
        replayable: bool = True,
    ) -> None:
        super().__init__("from the service")
        self.source_key = source_key
        self.replayable = replayable
        self._end = end
        self._passed_end = False
        """Whether elements behind the end were to be skipped: the pipeline is in a later pass."""
        self._join = join
        self._start_state = start_state
        self._skippable = skippable
        self._skipped = 0
        self._reader: JobReader | None = None
        self._tracked = self._buffered = False
        """Whether the end of the pipeline reports what the user consumed, and whether operations hold elements back."""
        self._listener: ConsumptionListener | None = None
        self._join_lock = threading.Lock()
        self._waited_before = 0
        """Waiting time of previous passes."""

    def start(self) -> None:
        """Join the job, unless it was joined already.

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
        self._pass_consumption_on()

    def _join_and_warn(self) -> JobReader:
        # If the user interrupts the join, the reader is closed as soon as it has joined.
        reader = shielded(self._join, lambda late: late.close())
        try:
            reader.warn_at_start()
        except BaseException:  # a warning was turned into an error: leave the job again
            reader.close()
            raise
        return reader

    def produce(self, want: int) -> Run:
        """Return the next elements that the service delivered."""
        if self._passed_end:
            return []
        run = self._pull(want)
        if not len(run) and self._begins_next_epoch():
            run = self._pull(want)
        return run

    def _pull(self, want: int) -> Run:
        reader = self._joined_reader()
        try:
            return reader.pull(want)
        finally:
            self.wait_ns = self._waited_before + reader.wait_ns

    def _begins_next_epoch(self) -> bool:
        """Leave the epoch if nothing was left of it for this loop; returns whether to join the next one.

        A loop that takes exactly as many steps as the epoch has stops before it receives the end. So the dispatcher
        lets the next loop continue that epoch, and only that loop finds that nothing is left.
        """
        reader = self._reader
        if reader is None or not reader.returned or reader.delivered or self._skippable:
            return False
        self._waited_before += reader.wait_ns
        reader.close()
        self._reader = None
        return True

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener:
        """Track which elements the user receives, from the first one on. Does not join the job."""
        self._tracked, self._buffered = True, buffered
        self._pass_consumption_on()
        return self

    def _pass_consumption_on(self) -> None:
        if self._tracked and self._reader is not None:
            self._listener = self._reader.track_consumption(buffered=self._buffered)

    def consumed(self, elements: int, errors: int) -> None:
        """Pass what the user received on to the reader, once the job is joined."""
        if self._listener is not None:
            self._listener.consumed(elements, errors)

    def may_consume(self) -> bool:
        """Whether the reader's elements may still be consumed; True before the job is joined."""
        return self._listener is None or self._listener.may_consume()

    def skip(self, count: int) -> int:
        """Leave elements out. Elements before the start position are skipped without joining the job."""
        if self._reader is None and self._skipped + count <= self._skippable:
            self._skipped += count
            return count
        if self._reader is None and self._end == self._skippable:
            left, self._skipped, self._passed_end = self._end - self._skipped, self._end, True
            return left
        skipped = self._joined_reader().skip(count)
        if skipped < count and self._begins_next_epoch():
            skipped = self._joined_reader().skip(count)
        return skipped

    def source_position(self, count: int) -> Any:
        """Return the position after the first `count` elements; the start position if the job was not joined."""
        if self._reader is None:
            return self._start_state
        return self._reader.source_position(count)

    def note_conversion(self, ns: int, *, to_framework: bool) -> None:
        """Add to the time that the reader reports, if the job was joined."""
        if self._reader is not None:
            self._reader.note_conversion(ns, to_framework=to_framework)

    def cancel(self) -> None:
        """Wake the thread that waits for elements. A stage that is joining leaves as soon as it has joined."""
        super().cancel()
        if self._reader is not None:
            self._reader.cancel()

    def release(self, unread: int) -> None:
        """Leave the job, if it was joined."""
        if self._reader is not None:
            self._reader.close(unread)

    def shared_with_other_readers(self) -> bool:
        """Whether other clients may have read elements, as the reader knows at the end; False if no job was joined."""
        return self._reader is not None and self._reader.shared_with_other_readers()

    def continue_counters(self, previous: Stage) -> None:
        super().continue_counters(previous)
        self._waited_before = self.wait_ns

    def _joined_reader(self) -> JobReader:
        self.start()
        assert self._reader is not None
        return self._reader
