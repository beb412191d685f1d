"""A link that is slow or damages what it carries: a TCP proxy of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 16 << 10


class Proxy:
    """Passes what it accepts on to `upstream`, which may be set after it has begun to listen.

    Args:
        bytes_s: Bytes a second that come back from upstream at the most; 0 for all.
        delay_s: Seconds that each piece takes in either direction.
        damage: Makes of a piece that comes back from upstream what arrives in its place; of the same length.
    """

    def __init__(
        self, bytes_s: float = 0.0, delay_s: float = 0.0, damage: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.upstream = ("127.0.0.1", 0)
        self._bytes_s = bytes_s
        self._delay_s = delay_s
        self._damage = damage
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """End all connections and threads."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5.0)

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
                self._sockets += [here, there]
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
                time.sleep(self._delay_s + (len(data) / bytes_s if bytes_s else 0.0))
                sink.sendall(damage(data) if damage is not None else data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


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
