"""TCP connections with TLS.

OpenSSL encrypts and decrypts in memory, and a plain connection carries the result in large pieces. On a socket of its
own OpenSSL would make one or two system calls for each record of 16 KB, which takes longer than to encrypt it.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from dsnb.elements.columns import bytes_of
from dsnb.transfer.tcp.connection import Connection, PlainConnection
from dsnb.wire.certificates import TLS_NAME, pinned_peer

_PIECE_BYTES: Final = 256 << 10
"""Bytes that are encrypted, or received and decrypted, at a time."""
_RECORD_BYTES: Final = 32 << 10
"""More than a record has, encrypted."""


class TlsConnection(Connection):
    """A connection with TLS.

    OpenSSL's state of a connection is not thread-safe, so a lock is held in each call of it. No thread holds it while
    it waits for the socket.

    Args:
        sock: The socket.
        context: What this side presents and accepts.
        server: Whether this side is the worker.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self._plain = PlainConnection(sock)
        self._context = context
        self._lock = threading.Lock()  # protects `_tls` and its two buffers
        self._send_lock = threading.Lock()  # protects `_unsent`; records must be sent in order. Taken before `_lock`
        self._arrived, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server else TLS_NAME
        self._tls = context.wrap_bio(self._arrived, self._encrypted, server_side=server, server_hostname=name)
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._unsent = b""
        """Encrypted bytes that the socket did not accept."""

    @property
    def deadline(self) -> float | None:
        return self._plain.deadline

    @deadline.setter
    def deadline(self, deadline: float | None) -> None:
        self._plain.deadline = deadline

    def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive_piece(whole=False):
                    raise ConnectionResetError("the peer closed the connection") from None
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # the alert that tells the peer the reason
                raise
        self._flush()
        if not pinned_peer(self._tls, self._context):
            raise ssl.SSLError("the peer presents another certificate")

    def receive_into(self, into: memoryview, *, whole: bool) -> int:
        while True:
            with self._lock:
                got = self._decrypt(into, whole=whole)
            if got is not None:
                return got
            self._send_unsent()
            # If it waits for a full piece, that must be on its way: what is wanted is more than a piece and a record.
            if not self._receive_piece(whole=whole and len(into) > _PIECE_BYTES + _RECORD_BYTES):
                return 0

    def _decrypt(self, into: memoryview, *, whole: bool) -> int | None:
        """Decrypt a record, or with `whole` all that have arrived; None if none has. Requires the lock."""
        got = 0
        try:
            while got < len(into) and (there := self._tls.read(len(into) - got, into[got:])):
                got += int(there)
                if not whole:
                    break
        except ssl.SSLWantReadError:
            return got or None
        return got

    def _receive_piece(self, *, whole: bool) -> int:
        """Receive encrypted bytes; returns how many, 0 at the end of the connection."""
        got = self._plain.receive_into(self._piece, whole=whole)
        with self._lock:
            self._arrived.write(self._piece[:got])
        return got

    def send_now(self, data: bytes) -> int:
        with self._send_lock:
            self._unsent += self._encrypt(data)
            self._send_some()
        return len(data)

    def send_all(self, buffers: Sequence[Any]) -> None:
        for view in map(bytes_of, buffers):
            for at in range(0, len(view), _PIECE_BYTES):
                with self._send_lock:
                    data = self._unsent + self._encrypt(view[at : at + _PIECE_BYTES])
                    self._unsent = b""
                    self._plain.send_all([data])

    def _flush(self) -> None:
        """Send what OpenSSL has to say, and wait until the socket has accepted it."""
        with self._send_lock, self._lock:
            self._plain.send_all([self._encrypted.read()])

    def _encrypt(self, data: bytes | memoryview) -> bytes:
        """Encrypt bytes; returns them with everything else that is to be sent before."""
        with self._lock:
            self._tls.write(data)
            return self._encrypted.read()

    def _send_unsent(self) -> None:
        """Send what the socket did not accept before, and what OpenSSL answers to what it received."""
        if (self._unsent or self._encrypted.pending) and self._send_lock.acquire(blocking=False):
            try:  # if another thread is sending, its next piece takes this along
                with self._lock:
                    self._unsent += self._encrypted.read()
                self._send_some()
            finally:
                self._send_lock.release()

    def _send_some(self) -> None:
        """Send what the socket accepts without waiting. Requires the lock for sending."""
        self._unsent = self._unsent[self._plain.send_now(self._unsent) :]

    def finish_sending(self) -> None:
        self._plain.finish_sending()

    def shutdown(self) -> None:
        self._plain.shutdown()

    def close(self) -> None:
        self._plain.close()
