"""The worker's connection to one reader: sends frame slices and notices, counts held slabs, receives messages."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from dsnb.elements.columns import bytes_of, join_bytes
from dsnb.transfer.frame_codec import encode_slice
from dsnb.transfer.protocol import FrameSlice, LinkStats, ReadHandle, Sink
from dsnb.transfer.shared_memory.memory import ByteArray, ConsumedPage
from dsnb.transfer.shared_memory.messages import (
    COUNT,
    HEADER,
    RECEIVE_BYTES,
    MessageHeader,
    MessageKind,
    close_socket,
    pack_message,
    unpack_header,
)
from dsnb.transfer.shared_memory.pool import Pool, Slab
from dsnb.wire.grpc_errors import encode_error
from dsnb.wire.unit_mark import UnitMark

MIN_SLAB_BYTES = 32 << 10
"""Frame slices with fewer bytes are sent over the socket: a slab would cost more than the copy."""

_MIN_PARTIAL_SLAB_BYTES = 256 << 10
"""The same for a part of a frame, because a slab always holds the whole frame."""
_MAX_UNPROVEN_BYTES = 256 << 10
"""Most bytes to buffer from an unauthenticated reader; an OPEN message has a few hundred."""
_MAX_BUFFERS = 512
"""Most buffers in one `sendmsg` call; the system accepts 1,024."""


class _HeldSlab(msgspec.Struct):
    """A slab that a reader holds; `count` is the number of unreleased notices."""

    slab: Slab
    count: int = 0


class Request(msgspec.Struct, frozen=True):
    """A message from a reader."""

    header: MessageHeader
    text: bytes


class ServerConnection(Sink):
    """The sink of one read, with the reader's socket.

    Args:
        sock: The non-blocking socket to the reader.
        max_held_bytes: Returns the bytes that one reader may hold at present.
        watch_writable: Called if the socket did not accept everything; `send_more` must then be called when it is
            writable again.

    Attributes:
        sock: The socket.
        session: The open read; None before it is open and after the reader has left.
        is_opening: Whether the read is being opened; until then further messages wait.
        admitted: Whether the reader counts in the worker's `Admission`.
    """

    def __init__(
        self, sock: socket.socket, max_held_bytes: Callable[[], int], watch_writable: Callable[[ServerConnection], None]
    ) -> None:
        self.sock = sock
        self.session: ReadHandle | None = None
        self.is_opening = False
        self.admitted = False
        self._proven = False
        self._max_held_bytes = max_held_bytes
        self._watch_writable = watch_writable
        self._pool: Pool | None = None
        self._task_id = ""
        self._link_stats = LinkStats()
        self._lock = threading.Lock()  # protects `_backlog` (and the order of sending), `_held_slabs` and `_closed`
        self._backlog: deque[memoryview] = deque()
        self._held_slabs: dict[int, _HeldSlab] = {}
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._consumed_cell: memoryview | None = None
        """The reader's count of consumed elements, readable even after it was killed."""
        self._closed = False

    # ---- the sink

    def allocate(self, nbytes: int) -> ByteArray | None:
        return None if self._pool is None or self._closed else self._pool.allocate(nbytes)

    def prepare(self, frame_slice: FrameSlice) -> None:
        if self._pool is not None and frame_slice.nbytes >= MIN_SLAB_BYTES and not self._closed:
            self._pool.prepare(self._task_id, frame_slice)

    def deliver(self, frame_slice: FrameSlice) -> None:
        self.deliver_all([frame_slice])

    def deliver_all(self, slices: Sequence[FrameSlice]) -> None:
        """Send several frame slices by one call to the socket."""
        if not self._closed:
            self.send([buffer for piece in slices for buffer in self._buffers_of(piece)])

    def _buffers_of(self, frame_slice: FrameSlice) -> list[Any]:
        slab = self._acquire_slab(frame_slice)
        if slab is None:
            head, _, buffers, nbytes = encode_slice(self._task_id, frame_slice)
            return [HEADER.pack(MessageKind.BODY, len(head), 0, nbytes, 0, frame_slice.index), head, *buffers]
        packed_range = frame_slice.start << 32 | frame_slice.count
        return [
            pack_message(
                MessageKind.SLAB, slab.at, slab.nbytes, packed_range, frame_slice.index - frame_slice.start, slab.header
            )
        ]

    def note_files(self, states: str) -> None:
        self.send([pack_message(MessageKind.FILES, text=states.encode())])

    def end(self) -> None:
        self.send([pack_message(MessageKind.END)])

    def recalled(self, granted: int) -> None:
        self.send([pack_message(MessageKind.RECALLED, granted)])

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        self.send([pack_message(MessageKind.PROGRESS, complete_rounds, oldest_round)])

    def note_unit(self, mark: UnitMark) -> None:
        skipped = COUNT.pack(mark.skipped) if mark.skipped else b""
        self.send([pack_message(MessageKind.UNIT, mark.unit, mark.unit_end, mark.index, int(mark.ended), skipped)])

    def fail(self, error: Exception) -> None:
        self.send([pack_message(MessageKind.FAIL, text=encode_error(error, "Read"))])

    # ---- opening

    def send_proof(self, proof: Any) -> None:
        """Send the worker's proof, after the reader's was accepted."""
        self._proven = True
        self.send([pack_message(MessageKind.PROOF, text=proof)])

    def send_refusal(self, why: str) -> None:
        """Tell the reader why it cannot use shared memory."""
        self.send([pack_message(MessageKind.REFUSED, text=why.encode())])

    def send_memory(self, pool: Pool, task_id: str, link_stats: LinkStats) -> None:
        """Send the reader the descriptor of the memory, and map its page of consumed elements."""
        self._pool, self._task_id, self._link_stats = pool, task_id, link_stats
        self._map_consumed_page()
        with self._lock, suppress(OSError):  # reader gone: handled by the receiving thread
            welcome = pack_message(MessageKind.WELCOME, pool.memory.size)
            socket.send_fds(self.sock, [welcome], [pool.memory.descriptor])

    def _map_consumed_page(self) -> None:
        """Map the page that came with the first message; without it, only CREDIT messages tell what was consumed."""
        if self._descriptors:
            with suppress(OSError):
                page = ConsumedPage(self._descriptors.pop())
                self._consumed_cell = page.cell
                page.close_descriptor()

    # ---- slabs

    def _acquire_slab(self, frame_slice: FrameSlice) -> Slab | None:
        """A slab with the slice's frame, held for this reader; None if the slice must be sent over the socket."""
        if (
            frame_slice.nbytes
            < (MIN_SLAB_BYTES if frame_slice.count == frame_slice.frame.count else _MIN_PARTIAL_SLAB_BYTES)
            or self._pool is None
        ):
            return None
        if self._link_stats.held_bytes + frame_slice.frame.nbytes > self._max_held_bytes():
            self._record_fallback(f"the reader holds {self._link_stats.held_bytes >> 20} MiB, which is its share")
            return None
        slab = self._pool.acquire(self._task_id, frame_slice)
        if slab is None:
            self._record_fallback("all shared memory is held by readers")
            return None
        with self._lock:
            closed = self._closed
            if not closed:
                hold = self._held_slabs.setdefault(slab.at, _HeldSlab(slab))
                hold.count += 1
                self._link_stats.held_bytes += slab.pages
        if not closed:
            return slab
        self._pool.release(slab)  # closed while the frame was written; it may have been the last reader
        self._pool.release_when_unused()
        return None

    def _record_fallback(self, why: str) -> None:
        short = self._pool.shortage if self._pool is not None else ""
        self._link_stats.fallbacks += 1
        self._link_stats.fallback_reason = f"the host is short of memory: {short}" if short else why

    def release(self, at: int) -> None:
        """Release one notice of the slab at offset `at`."""
        with self._lock:
            hold = self._held_slabs.get(at)
            if hold is None or self._pool is None:
                return
            hold.count -= 1
            self._link_stats.held_bytes -= hold.slab.pages
            if not hold.count:
                del self._held_slabs[at]
        self._pool.release(hold.slab)

    @property
    def connected(self) -> bool:
        return not self._closed

    @property
    def consumed(self) -> int | None:
        cell = self._consumed_cell
        return None if cell is None else int(cell[0])

    def close(self) -> None:
        """Close the socket, and release the reader's page and all slabs that it holds."""
        self._consumed_cell = None  # now: this object and its session refer to each other, so both live on for a while
        while self._descriptors:
            os.close(self._descriptors.pop())
        with self._lock:
            self._closed = True
            close_socket(self.sock)
            self._backlog.clear()
            holds, self._held_slabs = list(self._held_slabs.values()), {}
            self._link_stats.held_bytes = 0
        for hold in holds:
            assert self._pool is not None
            self._pool.release(hold.slab, hold.count)

    # ---- sending

    def send(self, buffers: Sequence[Any]) -> None:
        """Send what the socket accepts without blocking, and leave the rest to the server's thread."""
        if len(buffers) > _MAX_BUFFERS:
            buffers = [join_bytes(buffers)]
        with self._lock:
            if self._closed:
                return
            waiting = bool(self._backlog)
            self._backlog += [part for part in map(bytes_of, buffers) if len(part)]
            # A backlog is already watched, and must be sent first.
            if waiting or self._send_some():
                return
        self._watch_writable(self)

    def send_more(self) -> bool:
        """Send more of the backlog; returns True if nothing is left."""
        with self._lock:
            return self._closed or self._send_some()

    def _send_some(self) -> bool:
        while self._backlog:
            parts = [self._backlog[number] for number in range(min(len(self._backlog), _MAX_BUFFERS))]
            try:
                sent = self.sock.sendmsg(parts)
            except BlockingIOError:
                return False
            except OSError:  # reader gone: handled by the receiving thread
                self._backlog.clear()
                return True
            while self._backlog and sent >= len(self._backlog[0]):
                sent -= len(self._backlog.popleft())
            if sent:
                self._backlog[0] = self._backlog[0][sent:]
                return False
        return True

    # ---- receiving

    def receive(self) -> bool:
        """Receive some bytes; returns False if the reader is gone, or sends too much before its proof was accepted."""
        try:  # one descriptor is accepted, that of the page with the count of consumed elements
            data, descriptors, _, _ = socket.recv_fds(
                self.sock, RECEIVE_BYTES, 0 if self._consumed_cell is not None else 1
            )
            self._descriptors += descriptors
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += data
        return bool(data) and (self._proven or len(self._received) <= _MAX_UNPROVEN_BYTES)

    def requests(self) -> Iterator[Request]:
        """Yield complete messages; stops while the read is being opened, because later messages need it."""
        at, received = 0, self._received
        try:
            while not self.is_opening and len(received) - at >= HEADER.size:
                head = unpack_header(received, at)
                end = at + HEADER.size + head.length
                if len(received) < end:
                    return
                text = bytes(received[at + HEADER.size : end])
                at = end
                yield Request(head, text)
        finally:
            del received[:at]
