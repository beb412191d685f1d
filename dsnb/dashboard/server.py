"""The dashboard's web server, in a thread with its own event loop; notebooks and the command line use it.

A Jupyter kernel's event loop is blocked while a cell runs, which freezes Panel's comms; a separate thread stays live.
Bokeh's server is started directly, because `pn.serve(threaded=True)` reports a taken port only in its own thread. On
stop, every socket is closed, which `Server.stop` alone does not do.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from bokeh.server.contexts import ApplicationContext
from bokeh.server.server import Server
from panel.io.server import get_server
from panel.io.state import state
from tornado.ioloop import IOLoop
from tornado.iostream import StreamClosedError
from tornado.platform.asyncio import AsyncIOLoop
from tornado.websocket import WebSocketClosedError

from dsnb.arguments import port as port_rule
from dsnb.dashboard.access import IS_REPLAY, LOOPBACK, READ_ONLY_REQUESTED, AccessPolicy
from dsnb.dashboard.app import application
from dsnb.dashboard.control_requests import AddressLookup, RequestRunner
from dsnb.dashboard.feed import Feed, SnapshotStream
from dsnb.dashboard.replay import Replay
from dsnb.errors import AlreadyExistsError, DeadlineExceededError, DsnbError, InvalidArgumentError
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.wire import forks

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0

_SESSION_MS = 60_000
"""Keep an unused session for a browser that is slow to open its websocket; Bokeh's default of 15 s is too short."""

_WEBSOCKET_CLOSE_S, _POLL_INTERVAL_S = 1.0, 0.01

_SESSIONS_END_TIMEOUT_S = 5.0
"""Well within the deadline of `stop`; page callbacks that still run afterwards are cancelled."""

_LAST_DRAW_S = 1.0

_COMPRESSION = 3
"""zlib level: successive updates are so similar that light compression reduces them to a tenth."""


class DashboardServer:
    """A dashboard served by a thread of this process. Use `start_in_thread` to create one.

    Attributes:
        address: The address that the server listens on.
        port: The port that the server listens on.
        feed: The snapshots that its pages show.
        policy: Which pages are shown, and whether they may control the service.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        port: int = 0,
        address: str = "127.0.0.1",
        look_up_address: AddressLookup | None = None,
        read_only_reason: str = "",
        replay: RunReader | None = None,
    ) -> None:
        self.address = address
        self.port = port_rule("port", port)
        self.feed = feed
        # Reuse the key of an earlier server on this port, so that open pages work again after a restart.
        self.policy = AccessPolicy(
            key=_keys_by_port.get(port) or secrets.token_urlsafe(12), read_only_reason=read_only_reason
        )
        self._requests = RequestRunner(look_up_address) if look_up_address is not None else None
        self._page_source = self.feed if replay is None else lambda: Replay(replay)
        self._is_replay = replay is not None
        self._id = uuid.uuid4().hex
        self._server: Server | None = None
        self._loop: IOLoop | None = None
        self._failure: Exception | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsnb-dashboard", daemon=True)

    @property
    def url(self) -> str:
        """The page's address for a browser on this machine. It includes the key; without it the page is empty."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/?key={self.policy.key}"

    @property
    def running(self) -> bool:
        """Whether the server's thread is alive."""
        return self._thread.is_alive()

    def start(self) -> DashboardServer:
        """Start the server, and return once it serves pages.

        Raises:
            AlreadyExistsError: the port is taken.
            DeadlineExceededError: the server did not start in time.
        """
        self._thread.start()
        if not self._ready.wait(START_DEADLINE_S):
            self.stop()
            raise DeadlineExceededError(f"the dashboard did not start within {START_DEADLINE_S:g} s")
        if self._failure is not None:
            self._thread.join(STOP_DEADLINE_S)
            raise self._start_error(self._failure) from self._failure
        if not self._is_replay:
            self.feed.start()  # before the first page, so that a page shows what was before it was opened
        return self

    def stop(self, end: str = "") -> None:
        """Close all pages, sockets and threads; a second call does nothing.

        Args:
            end: Why pages show nothing new from now on, as a sentence; empty if a server may return on the same port.
        """
        self.feed.stop(end=end)
        if self._requests is not None:
            self._requests.stop()
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            loop.add_callback(loop.stop)
            self._thread.join(STOP_DEADLINE_S)
        _forget(self)

    def wait(self, timeout: float | None = None) -> None:
        """Block until another thread stops the server, or for `timeout` seconds."""
        self._thread.join(timeout)

    def _run(self) -> None:
        loop = self._loop = AsyncIOLoop()
        loop.asyncio_loop.set_exception_handler(_ignore_closed_socket)
        try:
            self._listen(loop)
        except Exception as failure:  # noqa: BLE001 - raised by `start`, in the thread that called it
            self._failure = failure
        self._ready.set()
        if self._failure is None:
            loop.start()
        loop.run_sync(self._close)
        self._loop = None
        loop.close(all_fds=True)

    def _listen(self, loop: IOLoop) -> None:
        _check_port_is_free(self.address, self.port)
        server = self._server = get_server(
            {"/": application(self._page_source, self._requests, self.policy, self._allow_origin)},
            port=self.port,
            address=self.address,
            loop=loop,
            title="dsnb",
            server_id=self._id,
            index=None,
            unused_session_lifetime_milliseconds=_SESSION_MS,
            websocket_compression_level=_COMPRESSION,
        )
        server.start()
        assert server.port is not None  # Bokeh reports None only for a Unix socket
        self.port = server.port
        _keys_by_port[self.port] = self.policy.key
        forks.register_port(self.port)
        # The port is only known now. Allow this origin alone: pages of other origins must not read the snapshots.
        server._tornado.websocket_origins.update(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def _allow_origin(self, host: str) -> None:
        """Allow websockets from the host of a page that had the key: it may come through a tunnel or proxy."""
        if self._server is not None and host:
            # An origin without a port means the default port of its scheme, and the scheme is not known here.
            names = [host] if ":" in host else [f"{host}:80", f"{host}:443", host]
            self._server._tornado.websocket_origins.update(names)

    async def _close(self) -> None:
        server = self._server
        if server is not None:
            await _draw_last_state(server)
            await _close_connections(server)
            await asyncio.gather(*(_end_sessions(context) for context in server._tornado.applications.values()))
        state._servers.pop(self._id, None)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()

    def _start_error(self, failure: Exception) -> DsnbError:
        port_taken = isinstance(failure, OSError) and failure.errno in (errno.EADDRINUSE, errno.EACCES)
        if port_taken:
            return AlreadyExistsError(
                f"the port {self.port} of {self.address} is taken",
                did="the dashboard was not started",
                hint="omit `port` to use a free one, or choose another",
            )
        return DsnbError(f"the dashboard did not start: {failure}", did="it was closed")


def _ignore_closed_socket(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Do not log a failed write to a page that was closed meanwhile; that is normal."""
    if not isinstance(context.get("exception"), WebSocketClosedError | StreamClosedError):
        loop.default_exception_handler(context)


def _check_port_is_free(address: str, port: int) -> None:
    """Raise OSError if the port is taken. Tornado would raise too, but leave its socket to the garbage collector."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family):
        pass


async def _draw_last_state(server: Server) -> None:
    """Update all pages once more: they stay open in the browser when the server is gone."""
    for session in server.get_sessions("/"):
        draw: Any = session.with_document_locked
        for periodic in session.document.session_callbacks:
            with suppress(Exception):  # a page that cannot be drawn must not keep the server from closing
                await asyncio.wait_for(draw(periodic.callback), _LAST_DRAW_S)


async def _close_connections(server: Server) -> None:
    """Stop listening, close each page's websocket with a close frame, then close the remaining connections."""
    server._http.stop()
    clients = list(server._tornado._clients)
    for connection in clients:
        connection._socket.close(1001, "the dashboard is stopped")
    for _ in range(round(_WEBSOCKET_CLOSE_S / _POLL_INTERVAL_S)):
        if not any(connection._session for connection in clients):
            break
        await asyncio.sleep(_POLL_INTERVAL_S)  # Bokeh has no notification for a page that disconnected
    await _stop(server)
    await server._http.close_all_connections()


async def _stop(server: Server) -> None:
    server.stop()
    # From Bokeh 3.10, `stop` only starts to end sessions, in threads. Wait: `_end_sessions` must not run concurrently.
    stopped = getattr(server, "wait_until_stopped", None)
    if stopped is not None:
        await asyncio.wait([asyncio.create_task(stopped())], timeout=_SESSIONS_END_TIMEOUT_S)


async def _end_sessions(context: ApplicationContext) -> None:
    """Discard all sessions now, instead of when Bokeh would, to free their callbacks and documents."""
    for session in list(context.sessions):
        for connection in list(session._subscribed_connections):
            session.unsubscribe(connection)
        await context._discard_session(session, lambda _: True)


_keys_by_port: dict[int, str] = {}
"""The keys of all dashboards that this process has served, by port."""

_running: list[tuple[SnapshotStream | Feed, DashboardServer]] = []
_running_lock = threading.RLock()


def start_in_thread(
    source: SnapshotStream | Feed,
    *,
    port: int = 0,
    address: str = "127.0.0.1",
    look_up_address: AddressLookup | None = None,
    read_only: bool = False,
) -> DashboardServer:
    """Serve the dashboard from a thread of this process.

    Args:
        source: The snapshots to show (see `snapshot_stream`), or a feed that other displays share; the feed stops with
            the server. If a dashboard of the same source runs, it is returned, unless another port is requested.
        port: The port to listen on; 0 for a free one.
        address: The address to listen on; loopback only.
        look_up_address: Finds the service that the page's buttons act on; None for read-only pages.
        read_only: Whether pages are read-only.

    Returns:
        The running server, with `url`, `port` and `stop()`.

    Raises:
        AlreadyExistsError: the port is taken.
        InvalidArgumentError: the address is not on loopback.
    """
    if address not in LOOPBACK:
        raise InvalidArgumentError(
            f"the dashboard listens on loopback only, not on {address!r}",
            did="nothing was started",
            hint="forward the port: ssh -L 5006:127.0.0.1:5006 that-machine",
        )
    with _running_lock:
        for known, server in _running:
            if known == source and server.running and port in {0, server.port}:
                return server
        read_only_reason = READ_ONLY_REQUESTED if read_only else ""
        feed = source if isinstance(source, Feed) else Feed(source)
        server = DashboardServer(
            feed, port=port, address=address, look_up_address=look_up_address, read_only_reason=read_only_reason
        ).start()
        _running.append((source, server))
        return server


def replay_in_thread(reader: RunReader, *, port: int = 0, address: str = "127.0.0.1") -> DashboardServer:
    """Serve the dashboard of a recorded run. Its pages are read-only, and each has its own playback position.

    Args:
        reader: The recorded run; the caller closes it after stopping the server.
        port: The port to listen on; 0 for a free one.
        address: The address to listen on; loopback only.
    """
    return DashboardServer(
        Feed(_no_snapshots), port=port, address=address, read_only_reason=IS_REPLAY, replay=reader
    ).start()


def _no_snapshots(_stop: threading.Event) -> Iterator[Snapshot]:
    return iter(())


def _forget(server: DashboardServer) -> None:
    with _running_lock:
        _running[:] = [pair for pair in _running if pair[1] is not server]
