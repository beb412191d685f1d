"""A real Redis server for a test: on a free port, with files of its own, surely ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.ports import unused_port
from tests.support.requires import require
from tests.support.waiting import wait_for


class RedisServer:
    """One server; it can be killed and started again on the same port.

    Args:
        folder: Where it keeps its files.
        settings: More options, as in `("--maxmemory", "5mb")`.
    """

    def __init__(self, folder: Path, *settings: str, password: str = "") -> None:
        self._folder = folder
        self._settings = [*settings, *(["--requirepass", password] if password else [])]
        self._password = password
        self.port = unused_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [require("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([*command, "--save", "", *self._settings], stdout=log, stderr=log)
        wait_for(self._answers, what=f"Redis on port {self.port}", timeout=30)

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except Exception:  # noqa: BLE001 - not there, or still loading
                return False

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A connection to look with."""
        import redis

        found = redis.Redis(host="127.0.0.1", port=self.port, password=self._password or None)
        try:
            yield found
        finally:
            found.close()
            found.connection_pool.disconnect()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
