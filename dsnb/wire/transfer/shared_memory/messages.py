"""What goes over the socket between a worker and one of its readers, and how the two find and trust each other.

A message is a head of fixed size and what follows it. The socket's name is in Linux's abstract namespace: it is no
file, so nothing is left behind, and a program in another container or on another host finds nobody there.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from dsnb.errors import UnavailableError
from dsnb.system_limits import limit_error
from dsnb.wire import forks
from dsnb.wire.security import PROOF_HEADER, VERSION_HEADER, Proof, call_metadata

HEADER = struct.Struct("<BxxxIQQQQ")
RECEIVE_BYTES = 1 << 16
"""Most bytes to take off a socket at once; many messages together."""

COUNT = struct.Struct("<Q")
PROOF_METHOD: Final = "shared memory"
"""What a proof for such a socket is of, so that it is of no use elsewhere."""

_PEER = struct.Struct("iII")
_CONNECT_S = 2.0


class MessageKind(enum.IntEnum):
    """What a message is. `length` bytes follow its head, then the body's where it has one."""

    OPEN = 1  # from the reader; follow: what it shows and a ReadRequest, `a` bytes of it the former
    CREDIT = 2  # a: granted, b: consumed, c: max_bytes, d: received; follows, where it is more than consumed: taken
    RECALL = 3
    LEAVE = 4  # b: consumed
    RELEASE = 5  # a: the slab
    WELCOME = 6  # from the worker; a: size of the memory, whose descriptor comes along
    SLAB = 7  # follow: what the frame is; a: the slab, b: bytes, c: start and count, d: index of the frame
    BODY = 8  # follow: what the piece is, and its body of b bytes; d: its index
    END = 9
    RECALLED = 10  # a: granted
    FAIL = 11  # follow: the error's page
    REFUSED = 12  # follow: why there is no shared memory here
    BYE = 13  # answers LEAVE
    PROGRESS = 14  # a: whole, b: base
    PROOF = 15  # from the worker, first of all; follows: its proof


class MessageHeader(NamedTuple):
    """The fixed part of a message."""

    kind: int
    length: int
    a: int
    b: int
    c: int
    d: int


def pack_message(kind: MessageKind, a: int = 0, b: int = 0, c: int = 0, d: int = 0, text: bytes = b"") -> bytes:
    """A message without a body."""
    return HEADER.pack(kind, len(text), a, b, c, d) + text


def unpack_header(data: bytes | bytearray, at: int = 0) -> MessageHeader:
    """The head that begins at a place."""
    return MessageHeader(*HEADER.unpack_from(data, at))


class PartialMessage:
    """A message whose body has come in part."""

    def __init__(self, head: MessageHeader, text: bytes) -> None:
        self.head = head
        self.text = text
        self.body: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(head.b, np.uint8)
        self.filled = 0

    @property
    def remaining(self) -> memoryview:
        """What is to be filled."""
        return self.body.data[self.filled :]

    def fill(self, received: bytearray) -> None:
        """Take what belongs to it off what was heard."""
        there = min(len(self.body) - self.filled, len(received))
        if there:
            self.body[self.filled : self.filled + there] = np.frombuffer(received, np.uint8, there)
            del received[:there]
            self.filled += there


class SharedMemoryRefused(UnavailableError):
    """Why a reader cannot have its elements through shared memory; there are other ways."""


def socket_name(worker_uid: str) -> str:
    """The address of a worker's socket."""
    return f"\0dsnb-{worker_uid}"


def connect(worker_uid: str) -> socket.socket:
    """A connection to a worker on this host.

    Raises:
        SharedMemoryRefused: there is none, or it is another user's.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise limit_error(error) or SharedMemoryRefused(str(error)) from error
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(socket_name(worker_uid))
        connection.settimeout(None)
        trusted = same_user(connection)
    except OSError as error:
        connection.close()
        gone = isinstance(error, ConnectionRefusedError)
        why = "the worker is on another host, or in another container" if gone else str(error)
        raise SharedMemoryRefused(why) from None
    if not trusted:
        connection.close()
        raise SharedMemoryRefused("the worker belongs to another user of this host")
    forks.register_fd(connection.fileno())
    return connection


def close_socket(connection: socket.socket) -> None:
    """Close a connection; the second call does nothing."""
    if connection.fileno() >= 0:
        forks.unregister_fd(connection.fileno())
        connection.close()


def same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user: only such processes may see elements here, or send them."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(peer)[1] == os.geteuid())


def encode_proof(proof: Proof) -> bytes:
    """What a reader shows, as it is sent."""
    shown = [part for _, part in call_metadata(proof)]
    return b"\n".join(part if isinstance(part, bytes) else part.encode() for part in shown)


def decode_proof(text: bytes) -> Mapping[str, Any]:
    """What a reader has shown."""
    version, _, proof = text.partition(b"\n")
    return {VERSION_HEADER: version.decode(errors="replace"), PROOF_HEADER: proof}
