"""A link that is slow, breaks or damages what it carries: a TCP proxy of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain

_CHUNK_BYTES = 16 << 10


class Proxy:
    """Passes what it accepts on to `upstream`, which may be set after it has begun to listen.

    Args:
        bytes_s: Bytes a second that come back from upstream at the most; 0 for all.
        delay_s: Seconds that each piece takes in either direction; may be changed at any time.
        damage: Makes of a piece that comes back from upstream what arrives in its place; of the same length.
    """

    def __init__(
        self, bytes_s: float = 0.0, delay_s: float = 0.0, damage: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.upstream = ("127.0.0.1", 0)
        self._bytes_s = bytes_s
        self.delay_s = delay_s
        self._damage = damage
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """End all connections and threads."""
        for one in (self._listener, *chain.from_iterable(self._links)):
            _shut(one, socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5.0)

    def cut(self) -> None:
        """Break all connections; new ones are accepted."""
        for one in chain.from_iterable(self._links):
            _shut(one, socket.SHUT_RDWR)

    def half_close(self, *, upstream: bool) -> None:
        """End one direction of all connections, towards upstream or back, as if that sender had closed it."""
        for here, there in self._links:
            _shut(there if upstream else here, socket.SHUT_WR)

    def _begin(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, name="test-proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.socket()
                there.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES
                )  # before, or the system buffers megabytes
                there.connect(self.upstream)
                self._links.append((here, there))
                self._begin(self._pass_on, here, there, 0.0, None)
                self._begin(self._pass_on, there, here, self._bytes_s, self._damage)

    def _on_data(self, data: bytes) -> None:
        """Learn what passes; for those who want to know."""

    def _pass_on(
        self,
        source: socket.socket,
        sink: socket.socket,
        bytes_s: float,
        damage: Callable[[bytes], bytes] | None,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._on_data(data)
                time.sleep(self.delay_s + (len(data) / bytes_s if bytes_s else 0.0))
                sink.sendall(damage(data) if damage is not None else data)
        for one in (source, sink):
            _shut(one, socket.SHUT_RDWR)


def _shut(one: socket.socket, how: int) -> None:
    """Shut a socket down, if it is not yet."""
    with suppress(OSError):
        one.shutdown(how)


@contextmanager
def poor_link(
    bytes_s: float = 0.0, delay_s: float = 0.0, damage: Callable[[bytes], bytes] | None = None
) -> Iterator[Proxy]:
    """A proxy that is closed at the end."""
    proxy = Proxy(bytes_s, delay_s, damage)
    try:
        yield proxy
    finally:
        proxy.close()
