"""One reader, as the worker sees it: what is sent to it, what it holds, what it has said."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.elements.columns import bytes_of, join_bytes
from dsnb.wire.status import page_of
from dsnb.wire.transfer.handover import Link, Opening, Piece, Reading, Sink
from dsnb.wire.transfer.headers import describe
from dsnb.wire.transfer.shared_memory.line import CHUNK, HEAD, Head, Kind, hang_up, head_of, message
from dsnb.wire.transfer.shared_memory.memory import Bytes, ConsumedPage
from dsnb.wire.transfer.shared_memory.pool import Pool, Slab

SMALL = 32 << 10
"""Pieces below this many bytes go over the socket: a slab would cost more than their copy."""

_PART = 256 << 10
"""A part of a frame has to be so large to be worth the whole frame's slab."""
_STRANGER_BYTES = 256 << 10
"""Most bytes to keep of a reader that has not proven itself; an opening has a few hundred."""
_BUFFERS = 512
"""Most buffers in one call; the system takes 1,024."""


@dataclass(slots=True)
class _Hold:
    """A slab that a reader holds, and by how many notices."""

    slab: Slab
    count: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a reader has said."""

    head: Head
    text: bytes


class ReaderOutlet(Sink):
    """The sink of one reading, with its socket.

    Args:
        connection: To the reader; does not block.
        share: Bytes that a reader may hold at present.
        wants_to_write: Called when not everything could be sent, to have `send_more` called when more can be.
    """

    def __init__(
        self, connection: socket.socket, share: Callable[[], int], wants_to_write: Callable[[ReaderOutlet], None]
    ) -> None:
        self.connection = connection
        self.reading: Reading | None = None
        self.opening = False
        self.admitted = False
        self._proven = False
        self._share = share
        self._wants_to_write = wants_to_write
        self._pool: Pool | None = None
        self._task_id = ""
        self._link = Link()
        self._lock = threading.Lock()  # over what is to be sent, in its order, and what is held
        self._backlog: deque[memoryview] = deque()
        self._holds: dict[int, _Hold] = {}
        self._heard = bytearray()
        self._descriptors: list[int] = []
        self._consumed: memoryview | None = None
        """Where the reader says how much it consumed, also if it is killed."""
        self._closed = False

    # ---- the sink

    def room(self, nbytes: int) -> Bytes | None:
        """A piece of the memory that the reader sees."""
        return None if self._pool is None or self._closed else self._pool.room(nbytes)

    def prepare(self, piece: Piece) -> None:
        """Write a frame that may be delivered soon: that takes long, and need not hold others up then."""
        if self._pool is not None and piece.nbytes >= SMALL and not self._closed:
            self._pool.prepare(self._task_id, piece)

    def deliver(self, piece: Piece) -> None:
        self.deliver_all([piece])

    def deliver_all(self, pieces: Sequence[Piece]) -> None:
        """Deliver pieces by one call to the socket."""
        if not self._closed:
            self.send([buffer for piece in pieces for buffer in self._said_of(piece)])

    def _said_of(self, piece: Piece) -> list[Any]:
        slab = self._slab_for(piece)
        if slab is None:
            head, _, buffers, nbytes = describe(self._task_id, piece)
            return [HEAD.pack(Kind.BODY, len(head), 0, nbytes, 0, piece.index), head, *buffers]
        place = piece.start << 32 | piece.count
        return [message(Kind.SLAB, slab.at, slab.nbytes, place, piece.index - piece.start, slab.head)]

    def end(self) -> None:
        self.send([message(Kind.END)])

    def recalled(self, granted: int) -> None:
        self.send([message(Kind.RECALLED, granted)])

    def progress(self, whole: int, base: int) -> None:
        self.send([message(Kind.PROGRESS, whole, base)])

    def fail(self, error: Exception) -> None:
        self.send([message(Kind.FAIL, text=page_of(error, "Read"))])

    # ---- its beginning

    def prove(self, proof: Any) -> None:
        """Show it that this is the worker; it has shown that it may read."""
        self._proven = True
        self.send([message(Kind.PROOF, text=proof)])

    def refuse(self, why: str) -> None:
        """Tell it that there is no shared memory."""
        self.send([message(Kind.REFUSED, text=why.encode())])

    def begin(self, pool: Pool, opening: Opening) -> None:
        """Give it the memory to look at."""
        self._pool, self._task_id, self._link = pool, opening.task_id, opening.link
        self._see_consumed()
        with self._lock, suppress(OSError):  # where it has gone, its end is heard elsewhere
            welcome = message(Kind.WELCOME, pool.memory.size)
            socket.send_fds(self.connection, [welcome], [pool.memory.descriptor])

    def _see_consumed(self) -> None:
        """Map the page that came with the first message; without one, messages alone tell."""
        if self._descriptors:
            with suppress(OSError):
                page = ConsumedPage(self._descriptors.pop())
                self._consumed = page.cell
                page.close_descriptor()

    # ---- slabs

    def _slab_for(self, piece: Piece) -> Slab | None:
        """A slab with the piece's frame, held for this reader; None where it goes over the socket."""
        if piece.nbytes < (SMALL if piece.count == piece.frame.count else _PART) or self._pool is None:
            return None
        if self._link.held_bytes + piece.frame.nbytes > self._share():
            self._fall_back(f"the reader holds {self._link.held_bytes >> 20} MiB, which is its share")
            return None
        slab = self._pool.hold(self._task_id, piece)
        if slab is None:
            self._fall_back("all shared memory is held by readers")
            return None
        with self._lock:
            closed = self._closed
            if not closed:
                hold = self._holds.setdefault(slab.at, _Hold(slab))
                hold.count += 1
                self._link.held_bytes += slab.pages
        if not closed:
            return slab
        self._pool.release(slab)  # it has gone while the frame was written, and perhaps nobody else is left
        self._pool.rest()
        return None

    def _fall_back(self, why: str) -> None:
        short = self._pool.short if self._pool is not None else ""
        self._link.fallbacks += 1
        self._link.note = f"the host is short of memory: {short}" if short else why

    def release(self, at: int) -> None:
        """Take one notice's hold back."""
        with self._lock:
            hold = self._holds.get(at)
            if hold is None or self._pool is None:
                return
            hold.count -= 1
            self._link.held_bytes -= hold.slab.pages
            if not hold.count:
                del self._holds[at]
        self._pool.release(hold.slab)

    @property
    def consumed(self) -> int | None:
        """What the reader has written into its page."""
        return None if self._consumed is None else int(self._consumed[0])

    def close(self) -> None:
        """Its socket has come to its end: take back all that it holds."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        with self._lock:
            self._closed = True
            hang_up(self.connection)
            self._backlog.clear()
            holds, self._holds = list(self._holds.values()), {}
            self._link.held_bytes = 0
        for hold in holds:
            assert self._pool is not None
            self._pool.release(hold.slab, hold.count)

    # ---- sending

    def send(self, buffers: Sequence[Any]) -> None:
        """Send what the socket takes at once, and leave the rest to the service's thread."""
        if len(buffers) > _BUFFERS:
            buffers = [join_bytes(buffers)]
        with self._lock:
            if self._closed:
                return
            waiting = bool(self._backlog)
            self._backlog += [part for part in map(bytes_of, buffers) if len(part)]
            if waiting or self._send_some():
                return
        self._wants_to_write(self)

    def send_more(self) -> bool:
        """Send more of what is left, as the socket can take it; True when nothing is left."""
        with self._lock:
            return self._closed or self._send_some()

    def _send_some(self) -> bool:
        while self._backlog:
            parts = [self._backlog[number] for number in range(min(len(self._backlog), _BUFFERS))]
            try:
                sent = self.connection.sendmsg(parts)
            except BlockingIOError:
                return False
            except OSError:  # it has gone; its end is heard elsewhere
                self._backlog.clear()
                return True
            while self._backlog and sent >= len(self._backlog[0]):
                sent -= len(self._backlog.popleft())
            if sent:
                self._backlog[0] = self._backlog[0][sent:]
                return False
        return True

    # ---- hearing

    def receive(self) -> bool:
        """Take in what has come; False when it is gone, or sends more than it may before it has proven itself."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, CHUNK, 0 if self._consumed is not None else 1)
            self._descriptors += descriptors
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._heard += data
        return bool(data) and (self._proven or len(self._heard) <= _STRANGER_BYTES)

    def requests(self) -> Iterator[Request]:
        """What it has said, as far as it may be acted upon now."""
        at, heard = 0, self._heard
        try:
            while not self.opening and len(heard) - at >= HEAD.size:
                head = head_of(heard, at)
                end = at + HEAD.size + head.length
                if len(heard) < end:
                    return
                text = bytes(heard[at + HEAD.size : end])
                at = end
                yield Request(head, text)
        finally:
            del heard[:at]
