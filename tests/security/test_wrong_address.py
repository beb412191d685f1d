"""A wrong address is said early, and refused at once where waiting cannot help."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, UnavailableError
from dsnb.wire.channel import CALL_TIMEOUT_S, Channel, open_channel
from dsnb.wire.messages import Empty
from dsnb.wire.methods import PING
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for
from tests.wire.serving import port_of_nobody

READ = """
import sys, dsnb
try:
    dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", sys.argv[1]))
except dsnb.errors.DsnbError as error:
    print("ENDED", type(error).__name__, error.what, flush=True)
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_wrong_address_is_said_while_it_is_still_tried() -> None:
    with (
        dsnb.start(workers=0, name="digits") as service,
        port_of_nobody() as port,
        PythonProcess(["-c", READ, f"127.0.0.1:{port}"]) as reader,
    ):
        line = wait_for(lambda: reader.stderr.rpartition("\n")[0], what="a line about the wait", timeout=30)
        assert reader.popen.poll() is None, "it was said when it was too late"
        assert line == (
            f"dsnb: no server answers at 127.0.0.1:{port} yet (connection refused); still trying "
            f"(services of yours here: digits ({service.target}))"
        )
        said = reader.wait_for_line("ENDED", timeout=CALL_TIMEOUT_S + 30)
        assert said == f"ENDED UnavailableError no server answers at 127.0.0.1:{port} (connection refused)"
        assert reader.wait_for_exit() == 3
        assert reader.stderr.count("\n") == 1, "it was said once"


@pytest.mark.slow
def test_a_worker_says_early_that_its_dispatcher_does_not_answer() -> None:
    with (
        port_of_nobody() as port,
        PythonProcess(["-m", "dsnb", "worker", "--dispatcher", f"127.0.0.1:{port}"]) as worker,
    ):
        wait_for(lambda: f"no server answers at 127.0.0.1:{port} yet" in worker.stderr, what="a line", timeout=30)
        assert worker.popen.poll() is None
        assert worker.wait_for_exit(timeout=60) == 1
        assert "start the dispatcher first, or check dispatcher_address" in worker.stderr


@pytest.mark.slow
def test_a_client_that_waits_for_a_service_that_comes_says_nothing_of_an_address_that_is_right() -> None:
    """The connection file names it: so the service is only busy."""
    with (
        dsnb.start(workers=1, name="digits") as service,
        PythonProcess(["-c", READ.replace("sys.exit(3)", "sys.exit(4)"), service.target]) as reader,
    ):
        assert reader.wait_for_exit() == 0
        assert reader.stderr == ""


@contextmanager
def another_program(kind: str) -> Iterator[str]:
    """The address of a program that is no service."""
    if kind == "a web server":
        web = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()
            web.server_close()
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    connection.recv(100)

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("kind", ["a web server", "a secure shell"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_another_program_is_told_from_a_service_that_is_to_come(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    with another_program(kind) as address:
        with pytest.raises(FailedPreconditionError, match=f"{address} is no dsnb service, but another program"):
            dsnb.connect(address, token="secret")
        with pytest.raises(FailedPreconditionError) as caught:
            dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", address))
        assert "services of yours here: none" in caught.value.hint
        assert caught.value.did == "nothing was sent to it"


def test_the_address_of_a_worker_is_told_from_that_of_its_service() -> None:
    with dsnb.start(workers=1, name="digits") as service:
        [worker] = service.status().workers
        with pytest.raises(FailedPreconditionError, match="does not know this call") as caught:
            dsnb.connect(worker.address, token=service.token)
        assert "a worker where a dispatcher is meant" in caught.value.hint


class Failing(grpc.RpcError):
    """A call that failed, as gRPC tells it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = lambda: code, lambda: details
        self.trailing_metadata = self.initial_metadata = tuple


def test_an_attempt_that_is_cut_short_does_not_hide_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def stub(channel: Channel, kind: str, path: str) -> Any:
        def with_call(data: bytes, timeout: float, **options: Any) -> Any:
            if timeout < 0.5:
                raise Failing(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            raise Failing(grpc.StatusCode.UNAVAILABLE, "DNS resolution failed: Domain name not found")

        return SimpleNamespace(with_call=with_call)

    monkeypatch.setattr(Channel, "stub", stub)
    channel = open_channel("no-such-host.invalid:5050", "secret")
    try:
        with pytest.raises(UnavailableError, match="there is no host of that name"):
            channel.call(PING, Empty(), timeout=0.7)
    finally:
        channel.close()


@pytest.mark.slow
def test_a_name_that_does_not_resolve_is_said_as_the_reason() -> None:
    with pytest.raises(UnavailableError, match="there is no host of that name"):
        dsnb.connect("no-such-host.invalid:5050", token="secret")
