"""What a task needs of its element log, whatever its readers share: the interface of `SharedLog` and `RoundLog`.

Pure: no threads, I/O or clock.
"""

# ruff: noqa: B027 - a method with an empty body is the default for logs that do not need it

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from dsnb.elements.frame import Frame
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import CachePolicy, TrainerReport
from dsnb.wire.schedule import Leftovers

_NO_POLICY = CachePolicy()
_FIRST = 128 << 10


class ReadAhead:
    """The adaptive read-ahead limit: 128 KiB at first, doubled when a reader starves although the producer had stopped.

    If the producer had not stopped, the pipeline is slower than the reader, and a higher limit would not help.

    Args:
        most: The largest limit, in bytes.

    Attributes:
        limit: The present limit, in bytes.

    Example:
        >>> ahead = ReadAhead(300_000)
        >>> ahead.reader_starved()  # the pipeline was slower than the reader: more would not have helped
        >>> ahead.producer_stopped()
        >>> ahead.reader_starved()
        >>> ahead.limit
        262144
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = min(most, _FIRST)
        self._stopped = False

    def producer_stopped(self) -> None:
        """Note that the producer stopped at the limit."""
        self._stopped = True

    def reader_starved(self) -> None:
        """Note that a reader found no element ready; doubles the limit if the producer had stopped at it."""
        if self._stopped:
            self._stopped = False
            self.limit = min(self.most, 2 * self.limit)

    def raise_to(self, nbytes: int) -> None:
        """Raise the limit to so many bytes, as far as the largest one allows."""
        self.limit = max(self.limit, min(self.most, nbytes))


class ElementLog(ABC):
    """The elements of one task: which ones are kept, sent to which reader and consumed, and how far to produce.

    Elements are numbered from 0. Methods with an implementation here have no effect in logs that do not override them.

    Attributes:
        capacity: Most bytes that it may keep.
        finished: Whether everything is produced.
        first: The index of the first element that is produced.
        evicted: How many elements were dropped before every trainer had them.
        short_by: How many elements that an earlier incarnation delivered were not produced again.
        closing: Whether the first elements must be evicted, and wait for the dispatcher to close the iteration to new
            trainers: see `close_to_new_trainers`.
    """

    capacity: int
    finished: bool = False
    first: int = 0
    evicted: int = 0
    short_by: int = 0
    closing: bool = False

    @property
    @abstractmethod
    def head(self) -> int:
        """The index of the next element to be produced."""

    @property
    @abstractmethod
    def tail(self) -> int:
        """The index of the first element in memory; `head` if there is none."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in memory."""

    @property
    def done(self) -> bool:
        """Whether everything is produced and consumed."""
        return False

    @property
    def exhausted(self) -> bool:
        """Whether everything is produced and sent."""
        return False

    # ---- the producer's side

    @abstractmethod
    def wants_more(self) -> bool:
        """Whether another frame should be produced now."""

    def keep_ready(self, nbytes: int) -> None:
        """Let at least so many bytes be produced ahead, if `read_ahead_bytes` allows, whether or not readers starve."""

    @abstractmethod
    def append(self, frame: Frame, count: int, nbytes: int, failed: bool = False) -> None:
        """Add a frame of `count` elements at the head; `failed` if it is an error in an element's place."""

    @abstractmethod
    def finish(self) -> None:
        """End the sequence at `head`: nothing more will be appended."""

    def divide_leftovers(self, leftovers: Leftovers) -> None:
        """In a coordinated read that has ended: give the elements after the last whole round to consumers."""

    def make_room(self, nbytes: int = 0) -> None:
        """Evict or spill frames until `nbytes` more fit within the capacity, or no other frame may leave memory."""

    def reserve_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Charge the cached encoding of the frame that begins at `index`; False if it must not be kept."""
        del index, nbytes
        return False

    @abstractmethod
    def drop_frames(self) -> None:
        """Free all frames in memory; the counters stay, for a last report."""

    @abstractmethod
    def newest_frames(self, most: int) -> Sequence[tuple[int, Frame]]:
        """The newest frames in memory, each with the index of its first element; changes nothing.

        Args:
            most: How many elements are wanted: older frames than those that hold them are left out.

        Returns:
            The frames, the newest first. There may be none: consumed elements need not be kept.
        """

    # ---- the readers' side

    @property
    @abstractmethod
    def clients(self) -> Sequence[str]:
        """The clients that read."""

    @abstractmethod
    def attach(
        self, client: str, trainer: str, received: int = 0, consumed: int = 0, cache_policy: CachePolicy = _NO_POLICY
    ) -> None:
        """Add a reader. A client that reconnects continues after what it received.

        Args:
            client: The client.
            trainer: Its trainer, or the consumer of a coordinated read for which it reads.
            received: How much the client received before; 0 for a new one.
            consumed: How much of it the client consumed.
            cache_policy: The trainer's policy, from now on.
        """

    @abstractmethod
    def credit(
        self, client: str, granted: int, consumed: int, max_bytes: int, *, received: int = 0, taken: int = 0
    ) -> None:
        """Update a reader's cumulative counters; a value below the known one is ignored.

        Args:
            client: The reader.
            granted: How much may be sent in all.
            consumed: How much was consumed.
            max_bytes: Most bytes that the reader may hold.
            received: How much has arrived at the client.
            taken: How much left the client's buffer, consumed or not.
        """

    @abstractmethod
    def recall(self, client: str) -> int:
        """Revoke a reader's unused credit; returns how much was sent, which is what remains granted."""

    @abstractmethod
    def leave(self, client: str, consumed: int | None = None) -> None:
        """Remove a reader.

        Args:
            client: The reader; an unknown one is ignored.
            consumed: Its final counter, if it is known.
        """

    def consumed_by(self, client: str) -> int | None:
        """How many elements a client acknowledged; None if no other client would get the rest when it leaves."""
        del client
        return None

    def reconcile(self, trainer_id: str, consumed: Sequence[tuple[int, int]], unacked: int | None = None) -> int:
        """Account for what a client consumed before it was declared dead; returns how many elements two clients got."""
        del trainer_id, consumed, unacked
        return 0

    @abstractmethod
    def take_all(self, client: str) -> list[FrameSlice]:
        """All elements that may be sent to a reader now, in order."""

    @abstractmethod
    def at_end(self, client: str) -> bool:
        """Whether a reader has been sent everything that it can get."""

    def end_error(self, job: str) -> Exception | None:
        """The error that a reader of a job gets at the end; None if the end is no error."""
        del job
        return None

    def unreported_progress(self, client: str) -> tuple[int, int] | None:
        """How many rounds are complete, and the oldest one kept, if the client does not know it; else None."""
        del client
        return None

    # ---- trainers and time

    @abstractmethod
    def consumed_counts(self) -> Mapping[str, int]:
        """How much each trainer or consumer has consumed."""

    @abstractmethod
    def trainer_report(self, name: str) -> TrainerReport:
        """A trainer's report, without what depends on the time."""

    def elements_before_eviction(self, name: str) -> float | None:
        """How many elements a trainer can fall back before it loses some; None if it will not lose any."""
        del name
        return None

    def resume_index(self) -> int | None:
        """The first element that a trainer still needs; None if no other worker can continue the sequence."""
        return None

    def remove_trainer(self, trainer_id: str) -> None:
        """Stop keeping elements for a trainer, until a reader attaches to it again."""

    def remove_unread_trainers(self) -> None:
        """Stop keeping elements for trainers without readers."""

    def close_to_new_trainers(self, joined: Iterable[tuple[str, str]]) -> None:
        """Allow to evict elements that only a new trainer would need; `joined` has the clients that have joined."""

    def touch_all(self, now: float) -> None:
        """Restart every trainer's timeout. For a paused task, in which no trainer can make progress."""

    def expire(self, now: float) -> None:
        """Time out trainers that have consumed nothing for too long. `now`: seconds of a monotonic clock."""

    def start_timed_out(self, now: float) -> bool:
        """Whether the trainers here have waited too long for others to start with. True once, then it starts again."""
        del now
        return False
