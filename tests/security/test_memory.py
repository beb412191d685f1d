"""Whoever does not know the token cannot have a server keep much: not by large messages, not by many of anything.

One message of a stranger could have it grow by up to 2,163 MB.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

import dsnb
from dsnb.wire.methods import HELLO
from dsnb.wire.security import Caller, call_metadata, request_digest
from tests.security.between import Relay
from tests.support.dispatchers import RestartableDispatcher
from tests.support.processes import PythonProcess
from tests.support.reading import run_in_threads
from tests.support.workers import address_of, worker_process

MIB = 1 << 20
ALLOWED_THREADS = 100
"""By how many threads a server may grow. gRPC starts more when the machine is busy; thousands of calls and connections
must not have a thread each."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def figure_of(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


class Watched:
    """What a process grows by at the most, while the `with` block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._figures()
        self.bytes = self.threads = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        self._look()

    def _figures(self) -> tuple[int, int]:
        return figure_of(self._pid, "VmRSS") * 1024, figure_of(self._pid, "Threads")

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self._look()

    def _look(self) -> None:
        now = self._figures()
        self.bytes = max(self.bytes, now[0] - self._before[0])
        self.threads = max(self.threads, now[1] - self._before[1])

    def check(self, allowed: int = 32 * MIB) -> None:
        told = f"it grew by {self.bytes / MIB:.1f} MiB and {self.threads} threads"
        assert self.bytes <= allowed, told
        assert self.threads <= ALLOWED_THREADS, told


@pytest.fixture(scope="module")
def dispatcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableDispatcher]:
    with RestartableDispatcher(tmp_path_factory.mktemp("memory") / "work") as dispatcher:
        yield dispatcher


@pytest.fixture(scope="module")
def worker(dispatcher: RestartableDispatcher) -> Iterator[PythonProcess]:
    with worker_process(dispatcher.target, dispatcher.token) as worker:
        yield worker


@pytest.fixture(params=["dispatcher", "worker"])
def server(request: pytest.FixtureRequest, dispatcher: RestartableDispatcher, worker: PythonProcess) -> tuple[str, int]:
    """The address and the process of a server that is attacked."""
    if request.param == "worker":
        return address_of(worker), worker.pid
    return dispatcher.target.removeprefix("grpc://"), dispatcher.pid


METHODS = ["/dsnb.v1.Dispatcher/Register", "/dsnb.v1.Dispatcher/Status", "/dsnb.v1.Worker/Read", "/unknown/Method"]


def proofs(token: str) -> list[Any]:
    """What strangers may show: nothing, a token of the first version, and proofs made with wrong tokens."""
    caller = Caller()
    guessed = caller.proof("guessed", METHODS[0], "0" * 16, request_digest(b""))
    hello = caller.proof("guessed", HELLO.path, "", request_digest(b""))
    long = (("dsnb-version", "2"), ("dsnb-proof-bin", b"x" * 3000))
    return [
        (),
        (("dsnb-token", token[:-1]), ("dsnb-version", "1")),
        call_metadata(guessed),
        call_metadata(hello),
        long,
    ]


@contextmanager
def channel_of_its_own(address: str) -> Iterator[Any]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        yield channel


def send_one(address: str, method: str, data: bytes, shown: Any) -> None:
    with channel_of_its_own(address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(method)(data, metadata=shown, timeout=60)


@pytest.mark.slow
def test_a_large_message_of_a_stranger_is_not_read(server: tuple[str, int]) -> None:
    address, pid = server
    data = bytes(128 * MIB)
    ways = [(method, ()) for method in METHODS] + [(METHODS[0], shown) for shown in proofs("x" * 32)]
    for method, shown in ways:
        with Watched(pid) as watched:
            send_one(address, method, data, shown)
        watched.check()


@pytest.mark.slow
def test_many_connections_with_large_messages_at_once_are_not_read(server: tuple[str, int]) -> None:
    address, pid = server
    data = bytes(32 * MIB)
    with Watched(pid) as watched:
        run_in_threads([lambda: send_one(address, METHODS[0], data, ())] * 24)
    watched.check()


@pytest.mark.slow
def test_streams_without_an_end_are_not_read(server: tuple[str, int]) -> None:
    address, pid = server

    def pour(method: str) -> Callable[[], None]:
        def run() -> None:
            with channel_of_its_own(address) as channel:
                pieces = (bytes(MIB) for _ in range(60))
                with pytest.raises(grpc.RpcError):
                    list(channel.stream_stream(method)(pieces, metadata=proofs("x")[3], timeout=60))

        return run

    with Watched(pid) as watched:
        run_in_threads([pour(method) for method in METHODS * 6])
    watched.check()


@pytest.mark.slow
def test_thousands_of_calls_leave_no_memory_and_no_threads(server: tuple[str, int]) -> None:
    address, pid = server
    shown = [("dsnb-version", "2"), ("dsnb-proof-bin", b"x" * 700), ("filler", "y" * 700)]

    def call() -> None:
        with channel_of_its_own(address) as channel:
            stub = channel.unary_unary(METHODS[0])
            pending = [stub.future(b"z" * 60_000, metadata=shown, timeout=60) for _ in range(300)]
            assert all(each.exception() is not None for each in pending)

    with Watched(pid) as watched:
        run_in_threads([call] * 8)
    watched.check(64 * MIB)  # gRPC's own, for calls that wait; their number is bounded, whoever makes them


@pytest.mark.slow
def test_connections_that_say_little_or_nothing_cost_little(server: tuple[str, int]) -> None:
    """Half an HTTP/2 preface, a whole one, headers that never end, and data without a call."""
    address, pid = server
    host, _, port = address.rpartition(":")
    unfinished = bytes.fromhex("00400001000000000100") + b"\0" * 60_000  # HEADERS without END_HEADERS
    beginnings = [b"", PREFACE[:10], PREFACE, PREFACE + unfinished, PREFACE + b"\xff" * 60_000]
    with Watched(pid) as watched, ExitStack() as held:
        for number in range(200):
            connection = held.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection.settimeout(0.2)
            with suppress(OSError):
                connection.sendall(beginnings[number % len(beginnings)])
                connection.recv(1)
    watched.check()


@pytest.mark.slow
def test_hellos_that_were_recorded_leave_nothing_however_often_they_are_said(
    dispatcher: RestartableDispatcher,
) -> None:
    """They are the only calls that are answered again; a recorder has some, and makes none."""
    target = dispatcher.target.removeprefix("grpc://")
    with Relay(target) as relay:
        dsnb.connect(relay.address, dispatcher.token).status()
        path, shown, messages = next(call for call in relay.calls if call[0].endswith("Hello"))

    def say() -> None:
        with channel_of_its_own(target) as channel:
            for _ in range(1000):
                channel.unary_unary(path)(messages[0], metadata=shown, timeout=60)

    with Watched(dispatcher.pid) as watched:
        run_in_threads([say] * 4)
    watched.check()


@pytest.mark.slow
def test_who_knows_the_token_is_served_meanwhile(dispatcher: RestartableDispatcher, worker: PythonProcess) -> None:
    over = threading.Event()
    target = dispatcher.target.removeprefix("grpc://")

    def attack() -> bool:
        data = bytes(20 * MIB)
        while not over.is_set():
            send_one(target, METHODS[0], data, ())
        return True

    def read() -> bool:
        try:
            service = dsnb.connect(dispatcher.target, dispatcher.token)
            for _ in range(5):
                numbers = dsnb.Dataset.range(1000).apply(dsnb.distribute("distributed_epoch", service))
                assert sorted(int(x) for x in numbers) == list(range(1000))
        finally:
            over.set()
        return True

    assert all(run_in_threads([read, *[attack] * 4]))
