"""The messages on the socket between a worker and a reader, and how the two find and authenticate each other.

A message is a header of fixed size and its payload. The socket's name is in Linux's abstract namespace: it is not a
file, so nothing is left behind, and it does not exist in other containers or on other hosts.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from array import array
from typing import Any, Final, NamedTuple

import numpy as np

from dsnb.system_limits import limit_error
from dsnb.transfer.protocol import Transfer, TransferRefused
from dsnb.wire import forks

SHARED_MEMORY: Final = Transfer(name="shared_memory", worker_reads_consumed=True)

HEADER = struct.Struct("<BxxxIQQQQ")
RECEIVE_BYTES = 1 << 16
"""Most bytes to receive from a socket at once, usually many messages."""

COUNT = struct.Struct("<Q")
PROOF_METHOD: Final = "shared memory"
"""The method name in proofs for these sockets, so that they are not valid for any other call."""

_PEER = struct.Struct("iII")
_CONNECT_S = 2.0


class MessageKind(enum.IntEnum):
    """The kind of a message. Its header is followed by `length` bytes of text, and in a BODY message by the body.

    `a` to `d` are numbers in the header, see `MessageHeader`.
    """

    OPEN = 1  # from the reader, first; text: its proof (`a` bytes) and a ReadRequest
    CREDIT = 2  # a: granted, b: consumed, c: max_bytes, d: received; text: dequeued if more than consumed
    RECALL = 3
    LEAVE = 4  # b: consumed
    RELEASE = 5  # a: offset of the slab
    WELCOME = 6  # from the worker; a: size of the memory, whose descriptor is attached
    SLAB = 7  # a: offset of the slab, b: bytes, c: start << 32 | count, d: index of the frame; text: header
    BODY = 8  # b: bytes of the body that follows, d: index of the slice; text: header
    END = 9
    RECALLED = 10  # a: granted
    FAIL = 11  # text: the error, see `encode_error`
    REFUSED = 12  # text: why shared memory is not available
    BYE = 13  # answers LEAVE
    PROGRESS = 14  # a: complete_rounds, b: oldest_round
    PROOF = 15  # from the worker, first; text: its proof
    FILES = 16  # text: files that the task opened, as in ReadReply
    UNIT = 17  # a: unit, b: unit_end, c: index, d: 1 for its end; text: the number of skipped elements, if any


class MessageHeader(NamedTuple):
    """The fixed part of a message; the meaning of `a` to `d` depends on `kind`."""

    kind: int
    length: int
    a: int
    b: int
    c: int
    d: int


def pack_message(kind: MessageKind, a: int = 0, b: int = 0, c: int = 0, d: int = 0, text: bytes = b"") -> bytes:
    """Encode a message that has no body."""
    return HEADER.pack(kind, len(text), a, b, c, d) + text


def unpack_header(data: bytes | bytearray, at: int = 0) -> MessageHeader:
    """Decode the header at offset `at`."""
    return MessageHeader(*HEADER.unpack_from(data, at))


class PartialMessage:
    """A BODY message whose body has arrived in part."""

    def __init__(self, head: MessageHeader, text: bytes) -> None:
        self.head = head
        self.text = text
        self.body: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(head.b, np.uint8)
        self.filled = 0

    @property
    def remaining(self) -> memoryview:
        """The part of the body that has not arrived yet."""
        return self.body.data[self.filled :]

    def fill(self, received: bytearray) -> None:
        """Move the body's bytes from the start of `received` into it."""
        there = min(len(self.body) - self.filled, len(received))
        if there:
            self.body[self.filled : self.filled + there] = np.frombuffer(received, np.uint8, there)
            del received[:there]
            self.filled += there


def send_with_descriptor(sock: socket.socket, data: bytes, descriptor: int, flags: int) -> int:
    """Send bytes and a descriptor; returns how many bytes were sent. `socket.send_fds` ignores its flags."""
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))], flags)


def receive_with_descriptor(sock: socket.socket, most: int, flags: int) -> tuple[bytes, list[int]]:
    """Receive some bytes, and the descriptor that comes with them, if there is one.

    `socket.recv_fds` ignores its flags, so it blocks in spite of `MSG_DONTWAIT`: for ever, if the peer is suspended.
    """
    found = array("i")
    data, ancillary, _, _ = sock.recvmsg(most, socket.CMSG_LEN(found.itemsize), flags)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, found.tolist()


def socket_name(worker_uid: str) -> str:
    """The abstract address of a worker's socket."""
    return f"\0dsnb-{worker_uid}"


def connect(worker_uid: str) -> socket.socket:
    """Connect to a worker on this host.

    Raises:
        TransferRefused: there is no such worker here, or it belongs to another user.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise limit_error(error) or TransferRefused(str(error)) from error
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(socket_name(worker_uid))
        connection.settimeout(None)
        trusted = same_user(connection)
    except OSError as error:
        connection.close()
        gone = isinstance(error, ConnectionRefusedError)
        why = "the worker is on another host, or in another container" if gone else str(error)
        raise TransferRefused(why) from None
    if not trusted:
        connection.close()
        raise TransferRefused("the worker belongs to another user of this host")
    forks.register_fd(connection.fileno())
    return connection


def close_socket(connection: socket.socket) -> None:
    """Close a connection; further calls do nothing."""
    if connection.fileno() >= 0:
        forks.unregister_fd(connection.fileno())
        connection.close()


def same_user(connection: socket.socket) -> bool:
    """Whether the peer is a process of this user: only those may send or receive elements through shared memory."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(peer)[1] == os.geteuid())
