"""Connected TCP sockets, on which one thread receives while others send; `tls` has those with TLS.

A thread that waits in a call ends when another thread calls `shutdown`. Only the thread that owns a connection calls
`close`, when no other one uses the socket any more: its number may be another file's at once.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from dsnb.elements.columns import bytes_of
from dsnb.wire import forks

CONNECT_S: Final = 3.0
"""How long an attempt to connect may take."""
_MAX_BUFFERS: Final = 512
"""Most buffers in one `sendmsg` call; the system accepts 1,024."""
_KEEPALIVE_IDLE_S: Final = 20
_KEEPALIVE_INTERVAL_S: Final = 5
_NO_WAIT: Final = int(socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))


class Connection(Protocol):
    """A connection to a peer."""

    deadline: float | None
    """Until when calls may wait, by `time.monotonic`; None for no limit. They raise `TimeoutError` then."""

    def shake_hands(self) -> None:
        """Do what must be done before anything is sent: the handshake of TLS.

        Raises:
            OSError: it failed; `ssl.SSLError` and `TimeoutError` are such errors.
        """
        return

    def receive_into(self, into: memoryview, *, whole: bool) -> int:
        """Wait for bytes; returns how many arrived, 0 at the end of the connection.

        Args:
            into: Where to write them.
            whole: Whether all of them are wanted; the connection then waits for as many as one call can receive.
        """
        ...

    def send_now(self, data: bytes) -> int:
        """Send as much as the system takes without waiting; returns how many bytes that were.

        What is left must be sent first by the next call.
        """
        ...

    def send_all(self, buffers: Sequence[Any]) -> None:
        """Send buffers one after another; waits until the system has taken all of them."""
        ...

    def finish_sending(self) -> None:
        """Tell the peer that nothing more will be sent."""
        ...

    def shutdown(self) -> None:
        """End all waiting calls, in both directions. From any thread; further calls do nothing."""
        ...

    def close(self) -> None:
        """Close the socket. Further calls do nothing."""
        ...


class PlainConnection(Connection):
    """A connection without encryption; the socket blocks."""

    def __init__(self, sock: socket.socket) -> None:
        self.deadline: float | None = None
        self._sock = sock
        sock.setblocking(True)

    def receive_into(self, into: memoryview, *, whole: bool) -> int:
        if self.deadline is None:
            return self._sock.recv_into(into, 0, socket.MSG_WAITALL if whole else 0)
        while True:
            try:
                return self._sock.recv_into(into, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self._sock, select.POLLIN, self.deadline)

    def send_now(self, data: bytes) -> int:
        try:
            return self._sock.send(data, _NO_WAIT)
        except BlockingIOError:
            return 0

    def send_all(self, buffers: Sequence[Any]) -> None:
        for group in _groups(buffers):
            while group:
                _drop_sent(group, self._sock.sendmsg(group))

    def finish_sending(self) -> None:
        _shut_down(self._sock, socket.SHUT_WR)

    def shutdown(self) -> None:
        _shut_down(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        close_socket(self._sock)


def connect(host: str, port: int) -> socket.socket:
    """Connect to a worker's data port.

    Raises:
        OSError: there is no connection within `CONNECT_S` seconds.
    """
    sock = socket.create_connection((host, port), CONNECT_S)
    forks.register_fd(sock.fileno())
    set_options(sock, 2 * _KEEPALIVE_IDLE_S)
    return sock


def set_options(sock: socket.socket, gone_after_s: float) -> None:
    """Set the options of a connected socket.

    Small messages are sent at once, and a peer whose host vanished is noticed, as gRPC's keepalive does.

    Args:
        sock: The socket.
        gone_after_s: Seconds without an acknowledgement after which the connection breaks.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": _KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": _KEEPALIVE_INTERVAL_S,
        "TCP_USER_TIMEOUT": int(1000 * gone_after_s),
    }
    for name, value in values.items():
        if hasattr(socket, name):  # not all systems have all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wait(sock: socket.socket, events: int, deadline: float | None) -> None:
    """Wait until the socket is ready.

    Raises:
        TimeoutError: it is not by the deadline.
    """
    poll = select.poll()
    poll.register(sock, events)
    left = None if deadline is None else max(0, math.ceil(1000 * (deadline - time.monotonic())))
    if not poll.poll(left) and deadline is not None:
        raise TimeoutError("the peer does not answer")


def _groups(buffers: Sequence[Any]) -> list[list[memoryview]]:
    views = [view for view in map(bytes_of, buffers) if len(view)]
    return [views[at : at + _MAX_BUFFERS] for at in range(0, len(views), _MAX_BUFFERS)]


def _drop_sent(views: list[memoryview], sent: int) -> None:
    """Remove the first `sent` bytes of the buffers."""
    while views and sent >= len(views[0]):
        sent -= len(views.pop(0))
    if sent:
        views[0] = views[0][sent:]


def _shut_down(sock: socket.socket, how: int) -> None:
    with suppress(OSError):  # the peer is gone, or the socket is closed
        sock.shutdown(how)


def close_socket(sock: socket.socket) -> None:
    """Close a socket; further calls do nothing."""
    if sock.fileno() >= 0:
        forks.unregister_fd(sock.fileno())
        sock.close()
