"""The protocol that all transfers of elements from a worker to a client share.

A worker offers an `Endpoint`. A client opens one of its tasks and passes a `Sink`; it gets a `ReadHandle`. From then on
frame slices are delivered to the sink as far as the read's credit allows. Code outside of the transfers does not depend
on whether client and worker are in one process (`local`), on one host (`shared_memory`) or anywhere (`grpc`).

Counters are cumulative and count the elements of one read: `granted` elements may be sent in all, `received` arrived,
`consumed` were returned to the user. A lost, late or repeated message is therefore harmless, and a broken read is
opened again with its last counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from dsnb.code.failures import exception_of
from dsnb.elements.compression import NONE
from dsnb.elements.frame import Array, Frame
from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.messages import ReadRequest
from dsnb.wire.poller import Poller

FIRST_GRANT: Final = 16
"""If several clients share a task's elements, each may hold at most this many more than it has consumed.

It is small so that clients that join at about the same time share a small epoch."""


class LinkStats(msgspec.Struct, kw_only=True):
    """Statistics of one read of one task; updated by the transfer, from any thread.

    Attributes:
        transfer: "local", "shared_memory" or "grpc".
        reason: Why this transfer was chosen.
        frame_slices: How many frame slices were sent.
        fallbacks: How many of them were large enough for shared memory, but there was no room for them.
        held_bytes: Shared memory that the reader holds now: unconsumed elements, and views that the user keeps.
        fallback_reason: Why there was no room, the last time.
        compression: The codec and the reason for it, as text; empty if the transfer never compresses.
    """

    transfer: str = "local"
    reason: str = ""
    frame_slices: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    fallback_reason: str = ""
    compression: str = ""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request to read a task.

    Attributes:
        task_id: The task.
        client_id: The client.
        trainer_id: Clients with the same trainer id share one offset in the task's sequence.
        max_bytes: Most bytes that may be in flight or unconsumed; one element is always allowed.
        granted: Elements that may be sent in all.
        received: Elements that arrived before the connection broke; later ones are sent again.
        consumed: Elements that were consumed before the connection broke.
        cache_policy: The trainer's options in the cross-trainer cache; None for other jobs.
        instance: The id of the service, kept across restarts of the dispatcher: a task of another service may have the
            same task id.
        compression: "AUTO", "NONE" or a codec's name; ignored by transfers that do not compress.
        codecs: The codecs that the client can decompress.
        checksum: Whether each message must have a checksum.
        consumed_before: The element indices that the client consumed before the dispatcher released it and it rejoined:
            first and end of each range in turn, in the order of arrival.
        consumed_before_count: How many elements it had consumed in all then.
        previous_client_id: Its client id then.
        incarnation: The incarnation of the task that the dispatcher named to the client; 0 for any. A worker may still
            have an earlier one, whose elements may belong to other clients by now.
        link_stats: Statistics of this read.
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
    link_stats: LinkStats = msgspec.field(default_factory=LinkStats)

    @classmethod
    def from_message(cls, request: ReadRequest, transfer: str) -> OpenRequest:
        """Create a request from the first message of a read from another process."""
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
        """The first message of a read in another process."""
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


class FrameSlice(msgspec.Struct, frozen=True):
    """Consecutive elements of one frame, to be sent to one reader.

    Attributes:
        frame: The frame.
        index: The index of the first element in the task's sequence.
        start: The index of the first element in the frame.
        count: How many elements there are.
        incarnation: The incarnation of the task that produced them.
    """

    frame: Frame
    index: int
    start: int
    count: int
    incarnation: int

    @property
    def nbytes(self) -> int:
        """Bytes of these elements; an average share if the frame's elements differ in size."""
        return self.frame.nbytes * self.count // self.frame.count

    def elements(self) -> Sequence[Any]:
        """Return the elements, or raise the error that the frame has instead of an element; a new one each time."""
        if self.frame.failure is not None:
            raise exception_of(self.frame.failure)
        return self.frame.elements(self.start, self.start + self.count)


class Sink(Protocol):
    """Receives the frame slices and notices of one read. Called from any thread; never waits for the reader."""

    @property
    def poller(self) -> Poller | None:
        """The poller of the thread that waits for elements; None if the transfer must use a thread of its own."""
        return None

    def allocate(self, nbytes: int) -> Array | None:
        """Memory in which to build an element of `nbytes`, to avoid the copy when it is sent; None if there is none."""
        del nbytes
        return None

    @property
    def consumed(self) -> int | None:
        """How many elements the reader consumed, if that is known even after it died; else None."""
        return None

    def prepare(self, frame_slice: FrameSlice) -> None:
        """Do the slow part of delivering a whole frame in advance. Never called under a lock that others need."""
        del frame_slice

    def deliver(self, frame_slice: FrameSlice) -> None:
        """Accept one frame slice, without waiting for the reader."""

    def deliver_all(self, slices: Sequence[FrameSlice]) -> None:
        """Accept several frame slices, in one step if the transfer can."""
        for piece in slices:
            self.deliver(piece)

    def end(self) -> None:
        """Called at the end of the data: no more elements will be delivered."""

    def recalled(self, granted: int) -> None:
        """Called after a recall with the remaining credit: as many elements as were sent."""

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        """Called with the progress of a coordinated read.

        Args:
            complete_rounds: How many task rounds all consumers have received.
            oldest_round: The first task round that the worker still keeps.
        """

    def fail(self, error: Exception) -> None:
        """Called when the read has failed and delivers nothing more."""


class ReadHandle(Protocol):
    """An open read of one task, on the client's side of the protocol."""

    @property
    def consumed_cell(self) -> memoryview | None:
        """Memory for the number of consumed elements: a 64-bit integer that the worker can read if this process dies.

        None if only `credit` can report it.
        """
        return None

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        """Grant credit and acknowledge elements. All counts are cumulative; in a coordinated read they are task rounds.

        Args:
            granted: Elements that may be sent in all.
            consumed: Elements that were returned to the user. The others are delivered again if the client dies.
            max_bytes: Most bytes that may be in flight or in the client's buffer.
            received: Elements that arrived.
            dequeued: Elements that left the client's buffer, at least `consumed`: operations of the client may hold
                elements that are not consumed yet.
        """

    def recall(self) -> None:
        """Revoke unused credit; the worker answers with `Sink.recalled`."""

    def leave(self, consumed: int) -> None:
        """End the read; elements that were sent but not consumed return to the task. Further calls do nothing."""


class Endpoint(Protocol):
    """A worker that serves reads of its tasks."""

    def open(self, open_request: OpenRequest, sink: Sink) -> ReadHandle:
        """Start to read a task.

        Raises:
            NotFoundError: neither the worker nor the dispatcher has such a task.
            ResourceExhaustedError: the worker's limit of readers is reached.
        """
        ...
