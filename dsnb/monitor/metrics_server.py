"""An HTTP server that serves metrics to a scraper such as Prometheus: GET /metrics, and nothing else.

Theory of operation. Each connection carries one request and has a thread of its own, at most `MAX_CONNECTIONS` at a
time; further connections are closed without an answer. A connection that is still open after `CONNECTION_TIMEOUT_S`
is shut down, so slow or silent clients cannot keep the threads. Frequent requests get the same text for `MAX_AGE_S`,
so that the work for the service is bounded too. There is no token, because scrapers cannot create dsnb's proofs; so
the server listens on loopback unless another address is asked for.
"""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self

from dsnb.arguments import port as port_rule
from dsnb.errors import AlreadyExistsError, DsnbError, FailedPreconditionError, InvalidArgumentError
from dsnb.monitor.metrics import CONTENT_TYPE
from dsnb.monitor.metrics_feed import MetricsFeed
from dsnb.monitor.snapshot import Snapshot
from dsnb.wire.threads import OnDemandExecutor

MAX_CONNECTIONS = 8
CONNECTION_TIMEOUT_S = 10.0
MAX_AGE_S = 0.1
_POLL_INTERVAL_S = 0.1
"""How often the server looks for connections that are open for too long, and whether it is stopped."""


class MetricsServer:
    """Serves metrics at `url` until it is stopped.

    Args:
        fetch_snapshot: Returns the service's present snapshot; called for each request, from any thread.
        port: The port to listen on; 0 for a free one.
        host: The address to listen on: an IPv4 address of this machine, or `0.0.0.0` for all of them.
        max_age_s: For how many seconds a text is served again.

    Raises:
        InvalidArgumentError: the port is not between 0 and 65535, or the host is no address of this machine.
        AlreadyExistsError: the port is taken.
        FailedPreconditionError: the system does not allow to listen on the port.
    """

    def __init__(
        self,
        fetch_snapshot: Callable[[], Snapshot],
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        self._server = _listen(MetricsFeed(fetch_snapshot, max_age_s=max_age_s), host, port_rule("metrics_port", port))
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="dsnb-metrics", daemon=True
        )
        self._thread.start()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._server.connections

    def stop(self) -> None:
        """Stop listening, close all connections, and wait until their threads have ended."""
        self._server.shutdown()
        self._thread.join()
        self._server.shut_down_connections(opened_before=float("inf"))
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _listen(feed: MetricsFeed, host: str, port: int) -> _Server:
    try:
        return _Server(feed, host, port)
    except PermissionError as error:
        raise FailedPreconditionError(
            f"the system does not allow this user to serve metrics on port {port}",
            did="no metrics are served",
            hint="choose a port from 1024 to 65535, or 0 for a free one",
        ) from error
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise InvalidArgumentError(
                f"metrics_host: {host!r} is not an address of this machine",
                did="no metrics are served",
                hint="pass 0.0.0.0 for all addresses of this machine, or 127.0.0.1 for this machine only",
            ) from error
        raise AlreadyExistsError(
            f"metrics cannot be served on port {port} ({error.strerror})",
            did="no metrics are served",
            hint="choose another port, or 0 for a free one",
        ) from error


class _Server(socketserver.TCPServer):
    allow_reuse_address = True

    def __init__(self, feed: MetricsFeed, host: str, port: int) -> None:
        self.feed = feed
        self._opened_at: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._executor = OnDemandExecutor("dsnb-metrics-request", shutdown_s=CONNECTION_TIMEOUT_S)
        super().__init__((host, port), _Handler)

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._opened_at)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            accepted = len(self._opened_at) < MAX_CONNECTIONS
            if accepted:
                self._opened_at[request] = time.monotonic()
        if accepted:
            self._executor.submit(self._serve, request, client_address)
        else:
            self.shutdown_request(request)

    def _serve(self, request: Any, client_address: Any) -> None:
        with suppress(Exception):  # the client has closed the connection, or it was shut down
            self.finish_request(request, client_address)
        self.shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self._executor.shutdown()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._opened_at.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        self.shut_down_connections(opened_before=time.monotonic() - CONNECTION_TIMEOUT_S)

    def shut_down_connections(self, opened_before: float) -> None:
        """Shut down the connections that were opened before that time; their threads then end."""
        with self._lock:
            for connection, opened_at in self._opened_at.items():
                if opened_at < opened_before:
                    with suppress(OSError):  # the client has closed it meanwhile
                        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CONNECTION_TIMEOUT_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._reply(HTTPStatus.NOT_FOUND, "the metrics are at /metrics\n")
            return
        try:
            text = self.server.feed.text()
        except DsnbError as error:
            self._reply(HTTPStatus.SERVICE_UNAVAILABLE, f"the service does not answer: {error}\n")
        except Exception as bug:  # noqa: BLE001 - the scraper gets it; the dispatcher continues
            self._reply(HTTPStatus.INTERNAL_SERVER_ERROR, f"this is a bug of dsnb: {bug!r}\n")
        else:
            self._reply(HTTPStatus.OK, text, CONTENT_TYPE)

    def _reply(self, status: HTTPStatus, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "dsnb"

    def log_message(self, *args: Any) -> None:
        """Print nothing: a scraper calls every few seconds."""
