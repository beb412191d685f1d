"""The messages on a TCP connection between a worker and a reader: a header of fixed size, and the content."""

from __future__ import annotations

import enum
import os
import struct
import sys
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from dsnb.elements.allocation import ALIGNMENT, aligned_part
from dsnb.elements.columns import bytes_of
from dsnb.transfer.frame_codec import EncodedMessage, damaged_message_error
from dsnb.transfer.protocol import Transfer
from dsnb.transfer.tcp.connection import Connection

TCP: Final = Transfer(name="tcp", over_network=True, carries_checksum=True)

PROOF_METHOD: Final = "read over TCP"
"""The method name in proofs for these connections, so that they are not valid for any other call."""
MAX_PROOF_BYTES: Final = 4 << 10
"""Most bytes of a message from a peer that has not proven that it knows the token; a proof has about 150."""
MAX_ANSWER_BYTES: Final = 64 << 10
"""Most bytes of the worker's first answer: its proof, or the reason why it refuses the reader."""

_HEADER: Final = struct.Struct("<IBxxxQ")
"""A checksum of the rest, the kind, and the length of the content."""
_REST: Final = struct.Struct("<BxxxQ")
_BUFFER_BYTES: Final = 256 << 10
_LARGE_BYTES: Final = 64 << 10
"""From this size on a message that has not arrived is received into memory of its own."""
_AFTER_LARGE_BYTES: Final = 4 << 10
"""Bytes to ask for after a large message. The next one is probably large too, and what arrives with its header has to
be copied."""
_JOIN_BYTES: Final = 16 << 10
"""Buffers below this size are joined with their neighbours, because the system takes longer for a buffer than for a
copy of that size."""
_RECYCLED_ARRAYS: Final = 4
_MOST_RECYCLED_BYTES: Final = 32 << 20
"""Larger arrays are not recycled: a connection would keep too much memory."""

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]


def _unused_references() -> int:
    """What `sys.getrefcount` says of an array that only a deque refers to, which depends on the version of Python."""
    arrays = deque([np.empty(1, np.uint8)])
    return sys.getrefcount(arrays[0])


_UNUSED_REFERENCES: Final = _unused_references()


class MessageKind(enum.IntEnum):
    """The kind of a message."""

    PROOF = 1  # the first one in each direction: the sender's proof
    REQUEST = 2  # from the reader: a signed ReadRequest
    READ = 3  # from the worker: a ReadReply
    ERROR = 4  # from the worker, the last one: why the read ends, see `encode_error`


class Message(NamedTuple):
    """A message that arrived; a large content is a read-only view of an array of its own."""

    kind: int
    content: bytes | memoryview


def pack_header(kind: MessageKind, nbytes: int) -> bytes:
    """The header of a message."""
    return _HEADER.pack(zlib.crc32(_REST.pack(kind, nbytes)), kind, nbytes)


def pack_message(kind: MessageKind, content: bytes) -> bytes:
    """A small message with its header."""
    return pack_header(kind, len(content)) + content


def pack_read_messages(messages: Sequence[EncodedMessage]) -> list[Any]:
    """The buffers to send for READ messages, in order; small ones are joined."""
    joined: list[Any] = []
    small: list[Any] = []

    def flush() -> None:
        if small:
            joined.append(b"".join(small))
            small.clear()

    for buffers, nbytes in messages:
        small.append(pack_header(MessageKind.READ, nbytes))
        for view in map(bytes_of, buffers):
            if len(view) >= _JOIN_BYTES:
                flush()
                joined.append(view)
            else:
                small.append(view)
    flush()
    return joined


class ArrayRecycler:
    """Makes arrays for messages, of memory whose last user is gone if there is some.

    New memory costs about as much as receiving into it: the system clears each page first. Elements of one size are
    mostly consumed and dropped in turn, so a few arrays serve for all of them.
    """

    def __init__(self) -> None:
        self._arrays: deque[ByteArray] = deque(maxlen=_RECYCLED_ARRAYS)

    def array(self, nbytes: int) -> ByteArray:
        """A writable array of `nbytes` bytes, at a multiple of `ALIGNMENT`, that nobody else uses.

        Raises:
            DataLossError: there is not so much memory.
        """
        room = nbytes + ALIGNMENT
        for number in range(len(self._arrays)):
            # Views refer to their array, through others or not. The deque and the call refer to it too.
            if len(self._arrays[number]) == room and sys.getrefcount(self._arrays[number]) == _UNUSED_REFERENCES:
                return aligned_part(self._arrays[number], nbytes)
        try:
            made = np.empty(room, np.uint8)  # the system gives it memory when it is written
        except MemoryError:
            raise damaged_message_error(f"it announces {nbytes:,} bytes, more than fit into memory") from None
        if nbytes <= _MOST_RECYCLED_BYTES:
            self._arrays.append(made)
        return aligned_part(made, nbytes)


class MessageReader:
    """Receives the messages of one connection, for one thread.

    Args:
        connection: The connection.
        max_bytes: Most bytes of a message; may be changed at any time.

    Attributes:
        max_bytes: Most bytes of a message.
    """

    def __init__(self, connection: Connection, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._connection = connection
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        """What has arrived and was not returned, in the buffer."""
        self._ask_bytes = _BUFFER_BYTES
        self._recycler = ArrayRecycler()

    @property
    def has_message(self) -> bool:
        """Whether a whole message has arrived, so that `next` returns at once."""
        there = self._end - self._start
        return there >= _HEADER.size and there >= _HEADER.size + _HEADER.unpack_from(self._buffer, self._start)[2]

    def next(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            DataLossError: what arrives is not a message, or it announces more than `max_bytes`.
            EOFError: the peer has closed the connection.
            OSError: the connection is broken.
        """
        self._fill(_HEADER.size)
        checksum, kind, nbytes = _HEADER.unpack_from(self._buffer, self._start)
        if checksum != zlib.crc32(_REST.pack(kind, nbytes)):
            raise damaged_message_error("its header")
        if nbytes > self.max_bytes:
            raise damaged_message_error(f"it announces {nbytes:,} bytes")
        self._start += _HEADER.size
        there = self._end - self._start
        if there < nbytes and nbytes >= _LARGE_BYTES:
            self._ask_bytes = _AFTER_LARGE_BYTES
            return Message(kind, self._receive_large(nbytes))
        self._fill(nbytes)
        content = bytes(self._buffer[self._start : self._start + nbytes])
        self._start += nbytes
        self._ask_bytes = _BUFFER_BYTES
        return Message(kind, content)

    def _receive_large(self, nbytes: int) -> memoryview:
        body = self._recycler.array(nbytes)
        filled = self._end - self._start
        body.data[:filled] = self._buffer[self._start : self._end]
        self._start = self._end = 0
        while filled < nbytes:
            filled += self._receive(body.data[filled:], whole=True)
        return body.data.toreadonly()

    def _fill(self, nbytes: int) -> None:
        """Receive until the buffer has so many bytes, which must fit into it."""
        there = self._end - self._start
        if not there:
            self._start = self._end = 0
        elif self._start + nbytes > len(self._buffer) or (self._start and there < _AFTER_LARGE_BYTES):
            self._buffer[:there] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, there
        while (missing := self._start + nbytes - self._end) > 0:
            free = self._buffer[self._end :]
            self._end += self._receive(free[: max(missing, self._ask_bytes)], whole=False)

    def _receive(self, into: memoryview, *, whole: bool) -> int:
        got = self._connection.receive_into(into, whole=whole)
        if not got:
            raise EOFError
        return got


def max_read_bytes() -> int:
    """Most bytes of a READ message: this host's memory. An element has no other limit."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that does not say
        return 1 << 40
