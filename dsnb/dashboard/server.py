"""The dashboard's own web server, in a thread with an event loop of its own: for a cell and for the command line.

A Jupyter kernel's loop is busy while a cell runs, and Panel's comms freeze with it; a thread of its own stays live.
Bokeh's server is started here by hand, for `pn.serve(threaded=True)` reports a taken port only in its thread, and is
closed to the last socket, which `Server.stop` alone does not do.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import threading
import uuid
from collections.abc import Iterator
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
"""A page whose browser is slow to open its websocket must still find its session; Bokeh's 15 s are short."""

_WEBSOCKET_CLOSE_S, _POLL_INTERVAL_S = 1.0, 0.01

_SESSIONS_END_TIMEOUT_S = 5.0
"""Well within the deadline of `stop`: whatever a page does by then is cancelled."""

_COMPRESSION = 3
"""Each tick's markup resembles the one before: a light compression leaves a tenth of it."""


class DashboardServer:
    """A dashboard in a thread of this process, made by `start_in_thread`.

    Attributes:
        address: Where it listens.
        port: The port that it listens on.
        feed: What its pages are fed from.
        policy: Who may see its pages, and who may control the service from them.
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
        # The same as before on this port, so that pages that are open go on when the dashboard is started again.
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
        """The page's address for a browser on this machine; without its key nothing is shown."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/?key={self.policy.key}"

    @property
    def running(self) -> bool:
        """Whether it still answers."""
        return self._thread.is_alive()

    def start(self) -> DashboardServer:
        """Begin to listen, and return when pages are served.

        Raises:
            AlreadyExistsError: the port is taken.
            DeadlineExceededError: the server did not come up in time.
        """
        self._thread.start()
        if not self._ready.wait(START_DEADLINE_S):
            self.stop()
            raise DeadlineExceededError(f"the dashboard did not start within {START_DEADLINE_S:g} s")
        if self._failure is not None:
            self._thread.join(STOP_DEADLINE_S)
            raise self._start_error(self._failure) from self._failure
        return self

    def stop(self) -> None:
        """Close all pages, sockets and threads; the second call does nothing."""
        self.feed.stop()
        if self._requests is not None:
            self._requests.stop()
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            loop.add_callback(loop.stop)
            self._thread.join(STOP_DEADLINE_S)
        _forget(self)

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is stopped from elsewhere."""
        self._thread.join(timeout)

    def _run(self) -> None:
        loop = self._loop = AsyncIOLoop()
        loop.asyncio_loop.set_exception_handler(_ignore_closed_socket)
        try:
            self._listen(loop)
        except Exception as failure:  # noqa: BLE001 - it belongs to whoever called `start`, not to this thread
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
        assert server.port is not None  # it is None only on a Unix socket
        self.port = server.port
        _keys_by_port[self.port] = self.policy.key
        forks.register_port(self.port)
        # The port is known only now; a page of another origin must not get at the numbers.
        server._tornado.websocket_origins.update(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def _allow_origin(self, host: str) -> None:
        """Let the websocket through that a page will open that came through a tunnel or proxy, with its key.

        Only now, with somebody there to look, the feed begins: a service that nobody watches makes less of its status.
        """
        if not self._is_replay:
            self.feed.start()
        if self._server is not None and host:
            # An origin without a port has that of its scheme, and we do not learn the scheme.
            names = [host] if ":" in host else [f"{host}:80", f"{host}:443", host]
            self._server._tornado.websocket_origins.update(names)

    async def _close(self) -> None:
        server = self._server
        if server is not None:
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
                hint="leave `port` out (0 takes a free one), or give another",
            )
        return DsnbError(f"the dashboard did not start: {failure}", did="nothing is left of it")


def _ignore_closed_socket(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Let nobody hear of a page that was closed while it was written to: that is what pages do."""
    if not isinstance(context.get("exception"), WebSocketClosedError | StreamClosedError):
        loop.default_exception_handler(context)


def _check_port_is_free(address: str, port: int) -> None:
    """Raise OSError if the port is taken: Tornado would too, but leaves its socket to the collector."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family):
        pass


async def _close_connections(server: Server) -> None:
    """Listen no longer, say goodbye on each page's websocket, and then close what is still open."""
    server._http.stop()
    clients = list(server._tornado._clients)
    for connection in clients:
        connection._socket.close(1001, "the dashboard is stopped")
    for _ in range(round(_WEBSOCKET_CLOSE_S / _POLL_INTERVAL_S)):
        if not any(connection._session for connection in clients):
            break
        await asyncio.sleep(_POLL_INTERVAL_S)  # Bokeh tells nobody when a page has hung up
    await _stop(server)
    await server._http.close_all_connections()


async def _stop(server: Server) -> None:
    server.stop()
    # From Bokeh 3.10 on that only begins to end the sessions, in threads; they must not be ended twice at a time.
    stopped = getattr(server, "wait_until_stopped", None)
    if stopped is not None:
        await asyncio.wait([asyncio.create_task(stopped())], timeout=_SESSIONS_END_TIMEOUT_S)


async def _end_sessions(context: ApplicationContext) -> None:
    """What Bokeh does with sessions in their time, now: their callbacks and documents go."""
    for session in list(context.sessions):
        for connection in list(session._subscribed_connections):
            session.unsubscribe(connection)
        await context._discard_session(session, lambda _: True)


_keys_by_port: dict[int, str] = {}
"""The keys of the dashboards that this process has served, by port."""

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
        source: Where its snapshots come from (see `snapshot_stream`), or a feed that others look at too; it ends with the
            server. While a dashboard of the same source runs, that one is given back, unless another port is asked for.
        port: The port to listen on; 0 takes a free one.
        address: Where to listen; loopback only.
        look_up_address: Where to ask for what is done on its pages; None if they may only look.
        read_only: Whether its pages may only look.

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
    """Serve the dashboard of a recorded run; its pages may only look, and each has a place of its own in it.

    Args:
        reader: The run; the caller closes it when the server is stopped.
        port: The port to listen on; 0 takes a free one.
        address: Where to listen; loopback only.
    """
    return DashboardServer(
        Feed(_no_snapshots), port=port, address=address, read_only_reason=IS_REPLAY, replay=reader
    ).start()


def _no_snapshots(_stop: threading.Event) -> Iterator[Snapshot]:
    return iter(())


def _forget(server: DashboardServer) -> None:
    with _running_lock:
        _running[:] = [pair for pair in _running if pair[1] is not server]
