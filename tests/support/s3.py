"""A server that speaks S3, for a test: on a free port, in memory, surely ended."""

from __future__ import annotations

import signal
import socket
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.requires import require_module
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "recordings"


class S3Server:
    """One server with one bucket; a restart empties it.

    Attributes:
        url: Where recordings go.
        env: What a process needs to find the server.
    """

    def __init__(self) -> None:
        for module in ("moto", "s3fs"):
            require_module(module)
        self._port = unused_port()
        self.url = f"s3://{BUCKET}/cache"
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "2",
        }
        self._process: PythonProcess | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = PythonProcess(["-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)])
        wait_for(self._answers, what=f"S3 on port {self._port}", timeout=60)
        with self.client() as client:
            client.create_bucket(Bucket=BUCKET)

    def _answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self._port)) == 0

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A connection to look and to do damage with."""
        found = import_module("boto3").client(
            "s3",
            endpoint_url=self.env["AWS_ENDPOINT_URL"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        try:
            yield found
        finally:
            found.close()

    def kill(self) -> None:
        """End it at once, with all that it had."""
        if self._process is not None:
            with self._process:
                self._process = None

    def suspend(self, *, wake: bool = False) -> None:
        """Let it not answer, or answer again."""
        assert self._process is not None
        self._process.popen.send_signal(signal.SIGCONT if wake else signal.SIGSTOP)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
