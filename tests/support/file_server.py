"""An HTTP server of the files in a folder, with ranges; it can be slow, refuse ranges, or fail.

Importing this module starts fsspec's thread, which lives as long as the process and is no leak of a test.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import fsspec_loop  # noqa: F401 - for its effect


class FileServer:
    """Serves the files in a folder until it is closed.

    Args:
        folder: The folder.
        delay_s: Seconds that each request takes before it is answered.
        ranges: Whether it answers requests for ranges with ranges; otherwise with the whole file.
        keep_alive: Whether a connection serves several requests, as those of object stores do. Closing then does not
            wait for the threads of connections that clients keep open.

    Attributes:
        requests: Method, name and range of each request.
        failures: How many of the next requests for data to answer with an error of the server.
        most_at_once: The largest number of requests that were under way at one time.
    """

    def __init__(self, folder: Path, *, delay_s: float = 0.0, ranges: bool = True, keep_alive: bool = False) -> None:
        self.folder = folder
        self.delay_s = delay_s
        self.ranges = ranges
        self.requests: list[tuple[str, str, str]] = []
        self.failures = 0
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        served = self

        class Handler(_Handler):
            server_of_files = served
            protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = keep_alive  # if not, `server_close` waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="file-server")
        self._thread.start()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request as under way."""
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """Connections that may wait to be accepted. With the default of 5, the kernel drops some of 40 that come at once,
    and their clients try again a second later."""


class _Handler(BaseHTTPRequestHandler):
    server_of_files: FileServer
    disable_nagle_algorithm = True
    """Otherwise the end of an answer waits until the client has acknowledged its beginning."""

    def do_HEAD(self) -> None:
        with self.server_of_files.counted():
            self._answer(with_data=False)

    def do_GET(self) -> None:
        with self.server_of_files.counted():
            self._answer(with_data=True)

    def _answer(self, *, with_data: bool) -> None:
        served = self.server_of_files
        name = self.path.partition("?")[0].lstrip("/")
        wanted = self.headers.get("Range", "")
        served.requests.append((self.command, name, wanted))
        time.sleep(served.delay_s)
        path = served.folder / name
        if not path.is_file():
            self.send_error(404)
            return
        if with_data and served.failures:
            served.failures -= 1
            self.send_error(503)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted) if served.ranges else None
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            start, end = (int(found[1]), min(int(found[2]) + 1, state.st_size)) if found else (0, state.st_size)
            count = max(0, end - start)
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {start}-{start + count - 1}/{state.st_size}")
            self.send_header("Content-Length", str(count))
            self.send_header("ETag", f'"{state.st_mtime_ns}"')
            self.end_headers()
            if with_data and count:
                self.connection.sendfile(file, start, count)  # without copies, which take processor time of the reader

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing."""
