"""What every way of handing elements over has in common.

A worker offers an `Endpoint`. A client opens a `Reading` of one task there and gives a `Sink`; from then on pieces of
frames are put into the sink as far as the reading's credit goes. Whether the two are in one process (`local`), on one
host (`shared_memory`) or anywhere (`grpc`) shows nowhere else.

Counters are cumulative and count elements of this reading: `granted` may be sent in all, `consumed` came to their user,
`received` arrived. So a message that is lost, late or doubled does no harm, and a reading that breaks is opened again
with what it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final, Protocol

from dsnb.dataclass import dataclass
from dsnb.elements.compression import NONE
from dsnb.elements.frame import Array, Frame
from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.messages import ReadRequest
from dsnb.wire.poller import Poller

FIRST_GRANT: Final = 16
"""How many more elements of a task a reader may hold than it has consumed, where readers take them from each other.

So those that come at about the same time share a small pass."""


@dataclass(slots=True, kw_only=True)
class LinkStats:
    """How one reader gets one task's elements; the transfer counts in it, from any thread.

    Attributes:
        transfer: "local", "shared_memory" or "grpc".
        why: What this way was chosen for.
        pieces: Frames and parts of frames that went this way.
        fallbacks: Those of them that were large enough for shared memory, and for which there was no room.
        held_bytes: Shared memory that the reader holds now: what it has not consumed, and views that it keeps.
        note: Why there was no room, the last time.
        compression: What the elements are compressed with, and why; empty of a transfer that never does.
    """

    transfer: str = "local"
    reason: str = ""
    frame_slices: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    fallback_reason: str = ""
    compression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """What a reader says when it opens a task.

    Attributes:
        trainer_id: Readers of one trainer id share one place in the task's sequence.
        received: Elements that arrived before; what was sent after them is sent again.
        cache_policy: How its trainer wants to be treated, in the cross-trainer cache.
        max_bytes: Bytes that may be on their way or unconsumed; one element may always be.
        instance: Of the service, for a task of another one may have the same number.
        compression: "AUTO", "NONE" or a codec's name; of transfers that can.
        codecs: What the reader can decompress.
        checksum: Whether messages are to carry one.
        consumed_before: What the client consumed before it was given up and came back, as numbers of elements: the first of a range
            and the one behind its last, and so on; in the order in which they came.
        consumed_before_count: How many it had consumed in all then.
        previous_client_id: Who it was then.
        incarnation: The incarnation of the task that the dispatcher named to the client; 0 for whichever there is. A
            worker may still have an earlier one, and its elements may belong to other readers by now.
        link_stats: How the elements come to it.
    """

    task_id: str
    client_id: str
    trainer_id: str
    max_bytes: int
    granted: int = 0
    received: int = 0
    consumed: int = 0
    cache_policy: CachePolicy | None = None
    instance: str = ""
    compression: str = NONE
    codecs: tuple[str, ...] = ()
    checksum: bool = False
    consumed_before: tuple[int, ...] = ()
    consumed_before_count: int = 0
    previous_client_id: str = ""
    incarnation: int = 0
    link_stats: LinkStats = field(default_factory=LinkStats, compare=False)

    @classmethod
    def from_message(cls, request: ReadRequest, transfer: str) -> OpenRequest:
        """What the first message of a read from another process says."""
        return cls(
            task_id=request.task_id,
            client_id=request.client_id,
            trainer_id=request.trainer_id,
            max_bytes=request.max_bytes,
            granted=request.granted,
            received=request.received,
            consumed=request.consumed,
            cache_policy=request.cache_policy,
            instance=request.instance,
            compression=request.compression,
            codecs=request.codecs,
            checksum=request.checksum,
            consumed_before=request.consumed_before,
            consumed_before_count=request.consumed_before_count,
            previous_client_id=request.previous_client_id,
            incarnation=request.incarnation,
            link_stats=LinkStats(transfer=transfer, reason=request.why),
        )

    def to_message(self) -> ReadRequest:
        """The first message of a read from another process."""
        return ReadRequest(
            task_id=self.task_id,
            client_id=self.client_id,
            trainer_id=self.trainer_id,
            max_bytes=self.max_bytes,
            granted=self.granted,
            received=self.received,
            consumed=self.consumed,
            cache_policy=self.cache_policy,
            instance=self.instance,
            compression=self.compression,
            codecs=self.codecs,
            checksum=self.checksum,
            consumed_before=self.consumed_before,
            consumed_before_count=self.consumed_before_count,
            previous_client_id=self.previous_client_id,
            incarnation=self.incarnation,
            why=self.link_stats.reason,
        )


@dataclass(frozen=True, slots=True)
class FrameSlice:
    """Some elements of a frame, on their way to one reader.

    Attributes:
        index: Place of the first one in the task's sequence.
        start: Place of the first one in the frame.
    """

    frame: Frame
    index: int
    start: int
    count: int
    incarnation: int

    @property
    def nbytes(self) -> int:
        """Bytes of these elements; their share where the frame's elements differ in size."""
        return self.frame.nbytes * self.count // self.frame.count

    def elements(self) -> Sequence[Any]:
        """The elements; raises the error that stands in an element's place."""
        return self.frame.elements(self.start, self.start + self.count)


class Sink(Protocol):
    """Where a reading puts what it gets. Called from any thread; it waits for no reader, and so holds nobody up."""

    @property
    def poller(self) -> Poller | None:
        """Who listens for it; None where that takes a thread."""
        return None

    def allocate(self, nbytes: int) -> Array | None:
        """Where to lay out an element of so many bytes, so that it is in its place; None for anywhere."""
        del nbytes
        return None

    @property
    def consumed(self) -> int | None:
        """How much the reader consumed, where that can be looked up although it does not answer."""
        return None

    def prepare(self, frame_slice: FrameSlice) -> None:
        """Do what takes long before a whole frame that may be delivered soon; not called under a lock of others."""
        del frame_slice

    def deliver(self, frame_slice: FrameSlice) -> None:
        """Take some elements."""

    def deliver_all(self, slices: Sequence[FrameSlice]) -> None:
        """Take the elements of several pieces, together if it can."""
        for piece in slices:
            self.deliver(piece)

    def end(self) -> None:
        """Learn that nothing more will come."""

    def recalled(self, granted: int) -> None:
        """Learn what is left of the credit after a recall: as much as was sent."""

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        """Learn, in a coordinated read, how many turns all consumers have received, and the first that is kept."""

    def fail(self, error: Exception) -> None:
        """Learn that this reading cannot go on."""


class ReadHandle(Protocol):
    """One reader's hold on one task."""

    @property
    def consumed_cell(self) -> memoryview | None:
        """Where to write how much was consumed, one 64-bit number that the worker reads if this process dies.

        None where only `credit` can tell it.
        """
        return None

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        """Allow more to be sent, and tell how far the client is.

        Args:
            granted: Elements that may be sent in all.
            consumed: Elements that the user has had. The others come again if the client dies.
            max_bytes: Bytes that may be on their way or in the client's buffer.
            received: Elements that arrived. In a coordinated read all counters are of turns, from the first one on.
            dequeued: Elements that left the buffer; operations of the client may hold some that are not consumed. At least
                those that are consumed.
        """

    def recall(self) -> None:
        """Take back credit that is not used; the answer comes to the sink."""

    def leave(self, consumed: int) -> None:
        """End the reading; what was sent and not consumed goes back to the task. The second call does nothing."""


class Endpoint(Protocol):
    """A worker, as its readers see it."""

    def open(self, open_request: OpenRequest, sink: Sink) -> ReadHandle:
        """Begin to read a task.

        Raises:
            NotFoundError: the worker has no such task, and the dispatcher neither.
            ResourceExhaustedError: the worker serves as many readers as it is set to.
        """
        ...
