"""The HTTP server of metrics: what it answers, to whom, and that it stays small."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from dsnb.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.monitor import metrics_server
from dsnb.monitor.metrics import CONTENT_TYPE
from dsnb.monitor.metrics_server import MetricsServer
from dsnb.monitor.snapshot import Snapshot
from tests.dashboard.snapshots import job, snapshot
from tests.support.waiting import wait_for


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with MetricsServer(lambda: snapshot(jobs=(job("übung"),))) as started:
        yield started


def port_of(server: MetricsServer) -> int:
    return int(server.url.split(":")[2].partition("/")[0])


def request(server: MetricsServer, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    """The status, the media type and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()
    finally:
        connection.close()


def silent(server: MetricsServer) -> socket.socket:
    """A connection that sends nothing."""
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_metrics_are_served_as_text() -> None:
    with MetricsServer(lambda: snapshot(jobs=(job("übung"),))) as server:
        assert server.url == f"http://127.0.0.1:{port_of(server)}/metrics"
        status, media, text = request(server)
    assert (status, media) == (200, CONTENT_TYPE)
    assert 'dsnb_job_epoch{service="default",job_name="übung"} 0\n' in text


def test_a_query_is_ignored(server: MetricsServer) -> None:
    assert request(server, "/metrics?format=prometheus")[0] == 200


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/../etc/passwd"])
def test_any_other_path_is_not_found(server: MetricsServer, path: str) -> None:
    assert request(server, path) == (404, "text/plain; charset=utf-8", "the metrics are at /metrics\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "PATCH"])
def test_any_other_method_is_refused(server: MetricsServer, method: str) -> None:
    assert request(server, method=method)[0] == 501


def test_an_address_that_this_machine_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"metrics_host: '203\.0\.113\.9' is not an address") as caught:
        MetricsServer(snapshot, host="203.0.113.9")
    assert "0.0.0.0" in caught.value.hint


def test_it_listens_on_loopback_only(server: MetricsServer) -> None:
    host, port = server.url.removeprefix("http://").removesuffix("/metrics").split(":")
    assert host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=10)


def test_a_service_that_does_not_answer_is_told_to_the_scraper() -> None:
    def fetch() -> Snapshot:
        raise UnavailableError("the dispatcher stops")

    with MetricsServer(fetch) as server:
        status, _, text = request(server)
    assert status == 503
    assert text == "the service does not answer: the dispatcher stops\n"


def test_a_bug_is_told_to_the_scraper_and_the_server_goes_on() -> None:
    answers: Iterator[Exception | Snapshot] = iter([ZeroDivisionError("by zero"), snapshot()])

    def fetch() -> Snapshot:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with MetricsServer(fetch) as server:
        assert request(server)[::2] == (500, "this is a bug of dsnb: ZeroDivisionError('by zero')\n")
        assert request(server)[0] == 200


def test_requests_at_the_same_time_ask_the_service_once() -> None:
    calls: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def fetch() -> Snapshot:
        calls.append(1)
        begun.set()
        assert go_on.wait(30)
        return snapshot()

    found: list[int] = []
    with MetricsServer(fetch, max_age_s=3600) as server:
        threads = [threading.Thread(target=lambda: found.append(request(server)[0])) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        go_on.set()
        for thread in threads:
            thread.join()
    assert (found, len(calls)) == ([200] * 4, 1)


def test_silent_clients_are_shut_down_and_their_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_TIMEOUT_S", 0.5)
    with MetricsServer(snapshot) as server, ExitStack() as stack:
        count = metrics_server.MAX_CONNECTIONS
        first = [stack.enter_context(silent(server)) for _ in range(count)]
        assert is_closed(stack.enter_context(silent(server))), "one too many is closed at once"
        assert all(is_closed(connection) for connection in first)
        wait_for(lambda: not server.connections, what="the threads of silent clients to end")
        assert request(server)[0] == 200


def test_a_client_that_sends_its_request_too_slowly_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_TIMEOUT_S", 0.5)
    with MetricsServer(snapshot) as server, silent(server) as slow:

        def drip() -> bool:
            try:
                slow.sendall(b"G")
            except OSError:
                return True
            return False

        wait_for(drip, what="the server to give up", every=0.1)


def test_stopping_closes_connections_that_are_open(server: MetricsServer) -> None:
    with silent(server) as connection:
        wait_for(lambda: server.connections, what="the connection")
        server.stop()
        assert is_closed(connection)
    with pytest.raises(ConnectionRefusedError):
        silent(server)


def test_stopping_twice_does_nothing(server: MetricsServer) -> None:
    server.stop()
    server.stop()


def test_a_taken_port_is_told_with_advice(server: MetricsServer) -> None:
    with pytest.raises(AlreadyExistsError, match=f"metrics cannot be served on port {port_of(server)}") as caught:
        MetricsServer(snapshot, port_of(server))
    assert caught.value.hint == "choose another port, or 0 for a free one"


@pytest.mark.parametrize("port", [-1, 65536])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`metrics_port` is {port}"):
        MetricsServer(snapshot, port)


def test_a_port_that_the_system_reserves_is_told_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("socketserver.TCPServer.server_bind", bind)
    with pytest.raises(FailedPreconditionError, match="the system does not allow this user") as caught:
        MetricsServer(snapshot, 80)
    assert caught.value.hint == "choose a port from 1024 to 65535, or 0 for a free one"
