"""Calls end in time with an error of ours, connections are shared, and what is opened is closed."""

from __future__ import annotations

import ctypes
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dsnb.errors import DeadlineExceededError, DsnbError, InvalidArgumentError, NotFoundError, UnavailableError
from dsnb.wire.addresses import format_address, target_address
from dsnb.wire.channel import Channel, ChannelCache, open_channel, open_channels
from dsnb.wire.messages import BlobPiece, BlobRequest, Empty, ForgetRequest
from dsnb.wire.methods import FORGET, GET_BLOB, HELLO, PUT_BLOB, STATUS
from tests.security.between import Impostor
from tests.support.ports import unused_port
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for
from tests.wire.serving import TOKEN, address, channel_to, connected, port_of_nobody, serving


def answer(request: Any, context: grpc.ServicerContext) -> Empty:
    return Empty()


# ---- addresses


@pytest.mark.parametrize("target", ["127.0.0.1:5050", "worker-3.farm:65535", "[::1]:80"])
def test_a_target_may_leave_out_its_protocol(target: str) -> None:
    assert target_address(target) == target_address(f"grpc://{target}") == target


def test_localhost_is_the_address_that_services_listen_on() -> None:
    assert target_address("localhost:5050") == target_address("grpc://localhost:5050") == "127.0.0.1:5050"


@pytest.mark.parametrize(
    "target",
    ["", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:http", "grpc://", "grpc://host", "::1:80",
     "host:8²", "host:80/path", "host:٣"],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_name(target: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        target_address(target)
    assert repr(target) in str(caught.value)


def test_another_protocol_is_unknown() -> None:
    with pytest.raises(NotFoundError, match="http"):
        target_address("http://127.0.0.1:80")


@pytest.mark.parametrize(
    "host, joined", [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("[::1]", "[::1]:80"), ("h", "h:80")]
)
def test_an_ipv6_address_gets_brackets(host: str, joined: str) -> None:
    assert format_address(host, 80) == joined == target_address(joined)


# ---- calls


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_where_nobody_listens_a_call_ends_unavailable_in_the_time_that_was_given(host: str) -> None:
    with port_of_nobody() as port, channel_to(f"{host}:{port}") as channel:
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=f"{host}:{port}") as caught:
            channel.call(FORGET, ForgetRequest(), timeout=0.4)
        assert 0.3 < time.monotonic() - began < 3.0
    assert "0.4 seconds" in caught.value.did
    assert "dsnb status" in caught.value.hint


def test_a_server_that_takes_connections_and_says_nothing_is_unavailable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, channel_to(f"127.0.0.1:{mute.getsockname()[1]}") as channel:
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            channel.call(FORGET, ForgetRequest(), timeout=0.4)
        assert time.monotonic() - began < 3.0


def test_a_handler_that_hangs_does_not_hang_its_caller() -> None:
    over = threading.Event()

    def hang(request: Any, context: grpc.ServicerContext) -> Empty:
        over.wait(60)
        return Empty()

    try:
        with connected({FORGET: hang}) as channel:
            began = time.monotonic()
            with pytest.raises((UnavailableError, DeadlineExceededError), match=channel.address):
                channel.call(FORGET, ForgetRequest(), timeout=0.4)
            assert time.monotonic() - began < 3.0
            over.set()
    finally:
        over.set()


@pytest.mark.slow
def test_a_call_outlasts_a_cell_that_holds_the_interpreter() -> None:
    """The server lives in the held interpreter as well, and cannot answer before the call's time is over."""

    def hold_and_answer(request: ForgetRequest, context: grpc.ServicerContext) -> Empty:
        if not held:
            held.append(True)
            ctypes.PyDLL(None).sleep(3)  # unlike CDLL, it keeps the interpreter
        return Empty()

    held: list[bool] = []
    with connected({FORGET: hold_and_answer}) as channel:
        assert channel.call(FORGET, ForgetRequest(), timeout=1.5) == Empty()
    assert held


def test_a_call_waits_for_a_server_that_is_about_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    make = grpc.insecure_channel

    def make_and_watch(*args: Any, **options: Any) -> grpc.Channel:
        made = make(*args, **options)
        made.subscribe(states.append)
        return made

    monkeypatch.setattr(grpc, "insecure_channel", make_and_watch)
    port = unused_port()
    done: list[Empty] = []
    states: list[grpc.ChannelConnectivity] = []
    with channel_to(f"127.0.0.1:{port}") as channel:
        caller = threading.Thread(target=lambda: done.append(channel.call(FORGET, ForgetRequest(), timeout=30)))
        caller.start()
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        wait_for(lambda: failed in states, what="the call to find nobody there")
        with serving({FORGET: answer}, port=port):
            caller.join(30)
    assert done == [Empty()]


@pytest.mark.slow
def test_a_server_may_write_its_token_after_it_listens_however_long_it_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grace_s = 4.0
    known = {"token": ""}
    monkeypatch.setattr("dsnb.wire.channel._TOKEN_GRACE_S", grace_s)
    monkeypatch.setattr("dsnb.wire.discovery.token_for", lambda _: known["token"])
    port = unused_port()
    channel = open_channel(f"127.0.0.1:{port}", token=None)
    try:
        with pytest.raises(UnavailableError):
            channel.call(FORGET, ForgetRequest(), timeout=grace_s + 0.5)
        with serving({FORGET: answer}, port=port):
            with pytest.raises(UnavailableError):  # no refusal: its token may come yet
                channel.call(FORGET, ForgetRequest(), timeout=1.0)
            known["token"] = TOKEN
            assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()
    finally:
        channel.close()


def test_a_channel_finds_a_server_again_that_was_restarted() -> None:
    with serving({FORGET: answer}) as server, channel_to(address(server)) as channel:
        channel.call(FORGET, ForgetRequest(), timeout=10)
        server.stop(0)
        with serving({FORGET: answer}, port=server.port):
            assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()


def test_a_reply_may_be_larger_than_grpcs_own_limit() -> None:
    """4 MB unless it is told otherwise; the status of a service with very many jobs is more."""

    def status(request: Empty, context: grpc.ServicerContext) -> bytes:
        return b"x" * 6_000_000

    with connected({STATUS: status}) as channel:
        reply = channel.call(STATUS, Empty(), timeout=30)
    assert len(reply) == 6_000_000


def test_a_request_that_the_server_would_not_take_is_refused_before_it_is_sent() -> None:
    with connected({FORGET: lambda request, context: pytest.fail("reached")}) as channel:
        with pytest.raises(InvalidArgumentError, match=r"6,000,005 bytes, and a server takes 4,194,304") as caught:
            channel.call(FORGET, ForgetRequest(job_name="x" * 6_000_000), timeout=30)
        assert caught.value.did == "it was not sent"


def test_an_upload_sends_a_stream_and_gets_one_reply() -> None:
    got: list[bytes] = []

    def put(pieces: Iterator[BlobPiece], context: grpc.ServicerContext) -> Empty:
        got.extend(piece.data for piece in pieces)
        return Empty()

    with connected({PUT_BLOB: put}) as channel:
        pieces = [BlobPiece(data=bytes([number])) for number in range(3)]
        assert channel.upload(PUT_BLOB, lambda: iter(pieces), timeout=10) == Empty()
    assert got == [b"\0", b"\1", b"\2"]


@pytest.mark.slow
@pytest.mark.parametrize("proves", [True, False])
def test_a_transfer_to_a_server_that_hangs_is_given_up(proves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands: it may have taken the call before it hung, or not."""
    monkeypatch.setattr("dsnb.wire.channel._TRANSFER_STALL_S", 1.5)
    over = threading.Event()

    def hang(pieces: Any, context: grpc.ServicerContext) -> Empty:
        over.wait(60)
        return Empty()

    with connected({PUT_BLOB: hang, FORGET: lambda request, context: Empty()}) as channel:
        try:
            channel.call(FORGET, ForgetRequest(), timeout=30)  # its identity is known from now on
            if not proves:
                monkeypatch.setattr("dsnb.wire.server._Call.unary", lambda _call, _request, _context: over.wait(60))
            with pytest.raises(DeadlineExceededError, match=r"takes and sends nothing") as error:
                channel.upload(PUT_BLOB, lambda: iter([BlobPiece(data=b"x")]), timeout=0.3)
            assert "after 1.5 seconds" in error.value.did
        finally:
            over.set()


def test_dropping_replies_ends_them_at_the_server() -> None:
    ended = threading.Event()

    def endless(request: BlobRequest, context: grpc.ServicerContext) -> Iterator[BlobPiece]:
        context.add_callback(ended.set)
        while not ended.is_set():
            yield BlobPiece(data=b"x")

    with connected({GET_BLOB: endless}) as channel:
        coming = channel.replies(GET_BLOB, BlobRequest())
        assert next(coming).data == b"x"
        del coming
        assert ended.wait(10)


@pytest.mark.slow
def test_replies_that_do_not_come_in_time_are_an_error_of_ours() -> None:
    over = threading.Event()

    def silent(request: BlobRequest, context: grpc.ServicerContext) -> Iterator[BlobPiece]:
        context.add_callback(over.set)
        over.wait(60)
        yield from ()

    with connected({GET_BLOB: silent}) as channel, pytest.raises(DeadlineExceededError, match=channel.address):
        list(channel.replies(GET_BLOB, BlobRequest(), timeout=0.3))


# ---- sharing


def test_users_of_one_server_share_a_connection_and_the_last_one_closes_it() -> None:
    with serving({FORGET: answer}) as server:
        first = open_channel(address(server), TOKEN)
        second = open_channel(f"grpc://{address(server)}", TOKEN)
        assert first is second
        first.close()
        assert second.call(FORGET, ForgetRequest(), timeout=10) == Empty()
        second.close()
        with channel_to(address(server)) as third:
            assert third is not first
        with pytest.raises(UnavailableError, match="closed"):
            second.call(FORGET, ForgetRequest(), timeout=10)


def test_callers_with_different_tokens_share_nothing() -> None:
    with serving({FORGET: answer}) as server, channel_to(address(server)) as right:
        with channel_to(address(server), "wrong") as wrong:
            assert wrong is not right
            with pytest.raises(DsnbError, match="token"):
                wrong.call(FORGET, ForgetRequest(), timeout=10)
        assert right.call(FORGET, ForgetRequest(), timeout=10) == Empty()


def test_channels_may_be_opened_and_closed_from_any_thread() -> None:
    with serving({FORGET: answer}) as server:

        def use() -> list[Empty]:
            replies = []
            for _ in range(10):
                with channel_to(address(server)) as channel:
                    replies.append(channel.call(FORGET, ForgetRequest(), timeout=30))
            return replies

        assert run_in_threads([use] * 6) == [[Empty()] * 10] * 6
    assert open_channels() == []


def test_a_channel_that_is_collected_inside_open_channel_may_be_closed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector runs anywhere, and an iterator gives its channel back when it is collected."""
    make = grpc.insecure_channel

    def close_and_make(*args: Any, **options: Any) -> grpc.Channel:
        held.close()
        return make(*args, **options)

    with port_of_nobody() as port, port_of_nobody() as other_port:
        held: Channel = open_channel(f"127.0.0.1:{port}", TOKEN)
        monkeypatch.setattr(grpc, "insecure_channel", close_and_make)
        with channel_to(f"127.0.0.1:{other_port}") as opened:
            assert open_channels() == [opened]
    assert open_channels() == []


def test_a_kept_channel_is_the_next_users_too_until_another_one_is_kept_or_nobody_keeps_it() -> None:
    connections = ChannelCache()
    with serving({FORGET: answer}) as server, serving({FORGET: answer}) as other:
        with channel_to(address(server)) as first:
            connections.retain([first.key])
        with channel_to(address(server)) as second:
            assert second is first
            assert second.call(FORGET, ForgetRequest(), timeout=10) == Empty()
        connections.retain([(address(other), TOKEN, "")])
        assert [channel.key for channel in open_channels()] == [(address(other), TOKEN, "")]
        del connections
        assert open_channels() == []


def test_a_call_that_a_stopping_server_cuts_off_is_made_again_to_its_successor() -> None:
    """gRPC cancels what runs when a server stops: that is the server's end, and no answer."""
    entered, over = threading.Event(), threading.Event()

    def hang(request: Any, context: grpc.ServicerContext) -> Empty:
        entered.set()
        over.wait(60)
        return Empty()

    done: list[Empty] = []
    with serving({FORGET: hang}) as server, channel_to(address(server)) as channel:
        caller = threading.Thread(target=lambda: done.append(channel.call(FORGET, ForgetRequest(), timeout=30)))
        caller.start()
        assert entered.wait(30)
        stopping = threading.Thread(target=server.stop, args=(0,))
        stopping.start()
        over.set()
        stopping.join(30)
        with serving({FORGET: answer}, port=server.port):
            caller.join(30)
    assert done == [Empty()]


def test_what_a_server_says_of_its_trouble_is_told_when_it_lasts() -> None:
    def full(request: Any, context: grpc.ServicerContext) -> Empty:
        raise UnavailableError("the journal cannot be written", hint="make room")

    with connected({FORGET: full}) as channel, pytest.raises(UnavailableError, match="journal cannot") as error:
        channel.call(FORGET, ForgetRequest(), timeout=1.5)
    assert error.value.hint == "make room"


# ---- a server that is replaced by somebody else


@pytest.mark.slow
def test_nothing_beyond_the_first_message_is_sent_before_the_server_has_proven_itself() -> None:
    """The channel knows the server that was there; whoever has its port now gets a name, and no content."""

    def put(pieces: Iterator[BlobPiece], context: grpc.ServicerContext) -> Empty:
        list(pieces)
        return Empty()

    def pieces() -> Iterator[BlobPiece]:
        yield BlobPiece(digest="a-name", nbytes=20)
        for _ in range(3):
            yield BlobPiece(data=b"what-is-in-the-array")

    with serving({PUT_BLOB: put}) as server, channel_to(address(server)) as channel:
        assert channel.upload(PUT_BLOB, pieces, timeout=10) == Empty()
        server.stop(0)
        replies = {"PutBlob": [b""], "Hello": [b""]}
        with Impostor(server.port, lambda path: replies[path.rpartition("/")[2]]) as impostor:
            with pytest.raises(UnavailableError, match="could not prove that it is the expected server"):
                channel.upload(PUT_BLOB, pieces, timeout=3)
            assert b"a-name" in impostor.shown
            assert b"what-is-in" not in impostor.shown
            assert TOKEN.encode() not in impostor.shown
            assert impostor.paths[:2] == [PUT_BLOB.path, HELLO.path]
        with serving({PUT_BLOB: put}, port=server.port):
            assert channel.upload(PUT_BLOB, pieces, timeout=30) == Empty()


@pytest.mark.slow
def test_what_a_stranger_answers_is_dropped_whatever_it_is() -> None:
    with serving({FORGET: answer}) as server, channel_to(address(server)) as channel:
        channel.call(FORGET, ForgetRequest(), timeout=10)
        server.stop(0)

        def deny(path: str) -> list[bytes]:
            raise RuntimeError("of the stranger's")

        for replies in (deny, lambda path: [b""], lambda path: [b"\xff" * 100], lambda path: []):
            with Impostor(server.port, replies), pytest.raises(UnavailableError):
                channel.call(FORGET, ForgetRequest(), timeout=1)
        with serving({FORGET: answer}, port=server.port):
            assert channel.call(FORGET, ForgetRequest(), timeout=30) == Empty()


@pytest.mark.slow
def test_a_stream_whose_server_says_nothing_for_a_proof_is_given_up_by_who_cancels_it() -> None:
    handlers = {GET_BLOB: lambda request, context: iter([BlobPiece(data=b"x")])}
    with serving(handlers) as server, channel_to(address(server)) as channel:
        assert [piece.data for piece in channel.replies(GET_BLOB, BlobRequest())] == [b"x"]
        server.stop(0)
        over = threading.Event()

        def silent(path: str) -> list[bytes]:
            over.wait(60)
            return []

        with Impostor(server.port, silent, lambda shown: over.wait(60) or ()):
            stream = channel.stream(GET_BLOB, BlobRequest(), timeout=30)
            ended: list[Exception] = []

            def read() -> None:
                try:
                    next(stream)
                except DsnbError as error:
                    ended.append(error)

            reader = threading.Thread(target=read)
            reader.start()
            stream.cancel()
            reader.join(30)
            over.set()
            assert len(ended) == 1
