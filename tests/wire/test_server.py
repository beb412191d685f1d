"""A server has its port for itself, listens on loopback alone, and neither hangs nor keeps anything when it stops."""

from __future__ import annotations

import gc
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Self

import grpc
import pytest

from dsnb.errors import (
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DsnbError,
    UnavailableError,
)
from dsnb.wire.messages import BlobPiece, BlobRequest, Empty, ForgetRequest, WorkerOrder, WorkerReport
from dsnb.wire.methods import FORGET, GET_BLOB, SESSION
from dsnb.wire.security import call_metadata
from dsnb.wire.server import GrpcServer
from tests.support.waiting import wait_for
from tests.wire.serving import TOKEN, BareCaller, address, channel_to, connected, port_of_nobody, refusal_of, serving


def answer(request: Any, context: grpc.ServicerContext) -> Empty:
    return Empty()


def test_a_port_that_is_left_out_is_chosen() -> None:
    with serving({FORGET: answer}) as one, serving({FORGET: answer}) as two:
        assert one.port > 0
        assert two.port > 0
        assert one.port != two.port


def test_a_second_server_on_a_port_is_refused_and_the_first_goes_on() -> None:
    """gRPC shares ports unless it is told not to, and the kernel would deal out connections between the two."""
    with serving({FORGET: answer}) as first:
        second = GrpcServer("worker", {FORGET: lambda request, context: pytest.fail("deal")}, TOKEN)
        with pytest.raises(AlreadyExistsError, match=f"worker cannot listen on {address(first)}") as caught:
            second.start("127.0.0.1", first.port)
        assert caught.value.did == "nothing was started"
        with channel_to(address(first)) as channel:
            for _ in range(20):
                assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()


def test_a_port_of_another_program_is_taken_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(AlreadyExistsError):
        GrpcServer("test", {FORGET: answer}, TOKEN).start("127.0.0.1", other.getsockname()[1])


def test_a_port_is_free_again_once_its_server_has_stopped() -> None:
    with serving({FORGET: answer}) as first:
        pass
    with serving({FORGET: answer}, port=first.port) as second, channel_to(address(second)) as channel:
        assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()


class Struck:
    """Ctrl-C at the n-th place where this thread, in code of dsnb or gRPC, would notice it; `at` is where it came."""

    def __init__(self, place: int) -> None:
        self._left = place
        self.at = ""

    def __enter__(self) -> Self:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and re.search("/(dsnb|grpc)/", frame.f_code.co_filename):
            self._left -= 1
            if not self._left:
                sys.setprofile(None)
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt


@pytest.mark.slow
def test_ctrl_c_at_any_place_of_its_start_leaves_no_server_behind() -> None:
    """One that had begun by half could neither run nor end, and its process waited for it for ever at its own end."""
    for place in range(1, 1000):
        server = GrpcServer("test", {FORGET: answer}, TOKEN)
        with suppress(KeyboardInterrupt), Struck(place) as struck:
            server.start("127.0.0.1", 0)
        if not struck.at:
            server.stop(0)
            break
        assert not server.port or refuses(server.port), struck.at
        del server
        gc.collect()
    assert 5 < place < 999


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_range_of_ports_stands_for_its_first_free_one() -> None:
    with port_of_nobody() as taken:
        servers = [GrpcServer("test", {FORGET: answer}, TOKEN) for _ in range(2)]
        try:
            for server in servers:
                server.start("127.0.0.1", f"{taken}-{min(65535, taken + 50)}")
            first, second = (server.port for server in servers)
            assert taken < first < second <= taken + 50
        finally:
            for server in servers:
                server.stop(0)


def test_a_range_without_a_free_port_is_an_error_that_names_it() -> None:
    server = GrpcServer("test", {FORGET: answer}, TOKEN)
    with (
        port_of_nobody() as taken,
        pytest.raises(AlreadyExistsError, match=f"127.0.0.1:{taken}-{taken}: the port is taken"),
    ):
        server.start("127.0.0.1", f"{taken}-{taken}")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_works_with_and_without_brackets(host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = GrpcServer("test", {FORGET: answer}, TOKEN)
    server.start(host, 0)
    try:
        with channel_to(f"[::1]:{server.port}") as channel:
            assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()
    finally:
        server.stop(0)


def test_short_calls_are_answered_beside_many_streams() -> None:
    """A pool of threads that is full of streams would answer nothing else."""
    over = threading.Event()

    def endless(request: BlobRequest, context: grpc.ServicerContext) -> Iterator[BlobPiece]:
        yield BlobPiece(data=b"begun")
        over.wait(60)

    try:
        with connected({GET_BLOB: endless, FORGET: answer}) as channel:
            streams = [channel.replies(GET_BLOB, BlobRequest()) for _ in range(60)]
            assert all(next(stream).data == b"begun" for stream in streams)
            for _ in range(10):
                assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()
            over.set()
            del streams
    finally:
        over.set()


def test_what_a_handler_did_not_expect_costs_only_its_own_call() -> None:
    def sometimes(request: ForgetRequest, context: grpc.ServicerContext) -> Empty:
        if request.job_name:
            raise ZeroDivisionError("by zero")
        return Empty()

    with connected({FORGET: sometimes}) as channel:
        began = time.monotonic()
        with pytest.raises(DsnbError, match="by zero"):
            channel.call(FORGET, ForgetRequest(job_name="x"), timeout=30)
        assert time.monotonic() - began < 5.0
        assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()


def test_a_message_that_is_damaged_is_an_error_and_no_hang() -> None:
    handlers = {FORGET: lambda request, context: pytest.fail("reached")}
    with serving(handlers) as server, BareCaller(address(server)) as caller:
        proof = caller.proof(FORGET, b"\xff\xff")
        error = refusal_of(caller, FORGET, b"\xff\xff", call_metadata(proof))
    assert isinstance(error, DataLossError)
    assert "ForgetRequest" in error.what


def test_stopping_ends_open_streams_and_tells_their_handlers() -> None:
    gone = threading.Event()

    def session(reports: Iterator[WorkerReport], context: grpc.ServicerContext) -> Iterator[WorkerOrder]:
        context.add_callback(gone.set)
        yield WorkerOrder(welcome=True)
        gone.wait(60)

    with serving({SESSION: session}) as server, channel_to(address(server)) as channel:
        open_end = threading.Event()

        def reports() -> Iterator[WorkerReport]:
            yield WorkerReport()
            open_end.wait(60)

        stream = channel.stream(SESSION, reports())
        assert next(stream).welcome
        began = time.monotonic()
        server.stop(0)
        assert time.monotonic() - began < 4.0
        assert gone.is_set()
        with pytest.raises((UnavailableError, CancelledError)):
            next(stream)
        open_end.set()


def test_a_call_that_runs_is_given_the_time_of_grace() -> None:
    begun, finish = threading.Event(), threading.Event()

    def slow(request: ForgetRequest, context: grpc.ServicerContext) -> Empty:
        begun.set()
        finish.wait(60)
        return Empty()

    replies: list[Empty] = []
    with serving({FORGET: slow}) as server, channel_to(address(server)) as channel:
        caller = threading.Thread(target=lambda: replies.append(channel.call(FORGET, ForgetRequest(), timeout=30)))
        caller.start()
        assert begun.wait(10)
        stopper = threading.Thread(target=server.stop, args=(20.0,))
        stopper.start()
        finish.set()
        caller.join(30)
        stopper.join(30)
        wait_for(lambda: not stopper.is_alive(), what="the server to have stopped")
    assert replies == [Empty()]


def test_stopping_twice_or_before_the_start_does_no_harm() -> None:
    server = GrpcServer("test", {FORGET: answer}, TOKEN)
    server.stop(0)
    with serving({FORGET: answer}) as other:
        other.stop(0)
