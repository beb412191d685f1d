"""TCP connections with TLS."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dsnb.elements.columns import bytes_of
from dsnb.transfer.tcp.connection import Connection, close_socket, shut_down, wait_ready
from dsnb.wire.certificates import TLS_NAME, pinned_peer

Result = TypeVar("Result")


class TlsConnection(Connection):
    """A connection with TLS.

    OpenSSL's state of a connection is not thread-safe, so a lock is held in each call of it. The socket does not block:
    threads wait for it without the lock.

    Args:
        sock: The socket.
        context: What this side presents and accepts.
        server: Whether this side is the worker.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self.deadline = None
        self._context = context
        self._lock = threading.Lock()
        sock.setblocking(False)
        name = None if server else TLS_NAME
        self._sock = context.wrap_socket(sock, server_side=server, server_hostname=name, do_handshake_on_connect=False)

    def shake_hands(self) -> None:
        self._call(self._sock.do_handshake)
        if not pinned_peer(self._sock, self._context):
            raise ssl.SSLError("the peer presents another certificate")

    def receive_into(self, into: memoryview, *, whole: bool) -> int:
        return self._call(lambda: self._receive_records(into, whole=whole))

    def _receive_records(self, into: memoryview, *, whole: bool) -> int:
        """Receive one record of at most 16 KB, or with `whole` all that have arrived. Requires the lock."""
        got = 0
        try:
            while got < len(into) and (there := self._sock.recv_into(into[got:])):
                got += there
                if not whole:
                    break
        except ssl.SSLWantReadError:
            if not got:
                raise
        return got

    def send_now(self, data: bytes) -> int:
        sent = 0
        with self._lock, suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while sent < len(data):
                sent += self._sock.send(memoryview(data)[sent:])
        return sent

    def send_all(self, buffers: Sequence[Any]) -> None:
        for view in map(bytes_of, buffers):
            rest = view
            while len(rest):
                sent = self._call(lambda part=rest: self._sock.send(part))  # type: ignore[misc]  # called at once
                rest = rest[sent:]

    def finish_sending(self) -> None:
        shut_down(self._sock, socket.SHUT_WR)

    def shutdown(self) -> None:
        shut_down(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            close_socket(self._sock)

    def _call(self, act: Callable[[], Result]) -> Result:
        """Call OpenSSL, again and again until it neither needs bytes from the peer nor room to send."""
        while True:
            try:
                with self._lock:
                    return act()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            wait_ready(self._sock, events, self.deadline)
