"""The protocol that all transfers of elements from a worker to a client share.

A client has an `Endpoint` for each worker. It opens one of the worker's tasks and passes a `Sink`; it gets a
`ReadHandle`. From then on frame slices are delivered to the sink as far as the read's credit allows. Code outside of
the transfers does not depend on whether client and worker are in one process (`local`), on one host (`shared_memory`)
or anywhere (`tcp`, `grpc`).

Counters are cumulative and count the elements of one read: `granted` elements may be sent in all, `received` arrived,
`consumed` were returned to the user. A lost, late or repeated message is therefore harmless, and a broken read is
opened again with its last counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from dsnb.code.failures import exception_of
from dsnb.elements.content_digest import frame_hashes
from dsnb.elements.frame import Array, Frame
from dsnb.errors import UnavailableError
from dsnb.wire.messages import ReadRequest
from dsnb.wire.poller import Poller
from dsnb.wire.unit_mark import UnitMark

BREAK_S: Final = 0.5
"""Seconds that a receiving thread may take to end once its connection was broken."""
FIRST_GRANT: Final = 16
"""If several clients share a task's elements, each may hold at most this many more than it has consumed.

It is small so that clients that join at about the same time share a small epoch."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes a transfer for its reader.

    Attributes:
        name: "local", "shared_memory", "tcp" or "grpc".
        over_network: Whether elements and acknowledgements cross a network connection. Some are on their way at
            any time, and these are lost if it breaks.
        worker_reads_consumed: Whether the worker can read at any time how many elements were consumed, also if no
            acknowledgement came or this process has died.
        carries_checksum: Whether messages can carry a checksum.
        uses_channel: Whether reads share a gRPC channel to the worker, which is worth keeping from one read to the
            next.
    """

    name: str
    over_network: bool = False
    worker_reads_consumed: bool = False
    carries_checksum: bool = False
    uses_channel: bool = False


class TransferRefused(UnavailableError):
    """Raised if a reader cannot use a transfer to a worker; another transfer may work."""


class LinkStats(msgspec.Struct, kw_only=True):
    """Statistics of one read of one task; updated by the transfer, from any thread.

    Attributes:
        transfer: "local", "shared_memory", "tcp" or "grpc".
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

    def hashes(self) -> list[int]:
        """The hashes of the elements, for the digest of what a reader consumed."""
        return frame_hashes(self.frame, self.start, self.start + self.count)


class Sink(Protocol):
    """Receives the frame slices and notices of one read. Called from any thread; never waits for the reader."""

    @property
    def poller(self) -> Poller | None:
        """The poller of the thread that waits for elements; None if the transfer must use a thread of its own."""
        return None

    @property
    def connected(self) -> bool:
        """Whether the connection to the reader is still there, as far as this side knows."""
        return True

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

    def accepted(self) -> None:
        """Called when the worker has answered and proven who it is, before anything else."""
        return

    def deliver(self, frame_slice: FrameSlice) -> None:
        """Accept one frame slice, without waiting for the reader."""

    def deliver_all(self, slices: Sequence[FrameSlice]) -> None:
        """Accept several frame slices, in one step if the transfer can."""
        for piece in slices:
            self.deliver(piece)

    def note_files(self, states: str) -> None:
        """Called with files that the task opened, before elements that follow from them; only if the reader asked.

        Args:
            states: JSON, which the transfer passes on as it is.
        """
        del states

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

    def note_unit(self, mark: UnitMark) -> None:
        """Called where a unit of splits begins or ends in the task's sequence, before any element after that place."""
        del mark

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
        """Ask the worker to end the read; the elements that were sent beyond `consumed` return to the task.

        Does not wait for the worker. Further calls do nothing.

        Args:
            consumed: Elements that were returned to the user, or that the client keeps for its user because the task
                was taken off this worker.
        """

    def wait_until_left(self, timeout: float) -> None:
        """After `leave`: wait until the worker has ended the read, or break the connection.

        Does nothing where `leave` itself ends the read, on the thread that receives, or if no connection was made.

        Args:
            timeout: Seconds that the worker may take.
        """
        del timeout


class Endpoint(Protocol):
    """A client's way to a worker, over one of the transfers."""

    @property
    def transfer(self) -> Transfer:
        """The transfer that is used."""
        ...

    def open(self, request: ReadRequest, sink: Sink) -> ReadHandle:
        """Start to read one of the worker's tasks. Later errors go to the sink's `fail`.

        Args:
            request: The first message of the read.
            sink: Receives the frame slices, the end and errors.

        Raises:
            NotFoundError: neither the worker nor the dispatcher has such a task.
            ResourceExhaustedError: the worker's limit of readers is reached.
        """
        ...


class TaskServer(Protocol):
    """A worker, as the serving ends of the transfers call it."""

    def open(self, request: ReadRequest, sink: Sink, link_stats: LinkStats | None = None) -> ReadHandle:
        """Begin to serve one of the worker's tasks to a client.

        Args:
            request: The first message of the read.
            sink: Receives the frame slices, the end and errors.
            link_stats: Statistics of the read, which the transfer updates; None for new ones.

        Raises:
            NotFoundError: neither the worker nor the dispatcher has such a task.
        """
        ...
