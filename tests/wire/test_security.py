"""Nobody calls a server without its token, or with another version of the protocol; whatever kind of call it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dsnb.errors import (
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from dsnb.wire.codec import encode
from dsnb.wire.messages import BlobPiece, BlobRequest, Empty, ForgetRequest, WorkerOrder, WorkerReport
from dsnb.wire.methods import FORGET, GET_BLOB, PUT_BLOB, SESSION, Method
from dsnb.wire.security import PROTOCOL_VERSION, credentials, new_token, read_token_file
from dsnb.wire.server import GrpcServer
from dsnb.wire.status import error_from
from tests.wire.serving import TOKEN, address, channel_to, serving

METHODS: dict[Method[Any, Any], Any] = {
    FORGET: ForgetRequest(),
    PUT_BLOB: BlobPiece(),
    GET_BLOB: BlobRequest(),
    SESSION: WorkerReport(),
}


@pytest.fixture
def reached() -> list[str]:
    """The names of the methods whose handler ran."""
    return []


@pytest.fixture
def server(reached: list[str]) -> Iterator[GrpcServer]:
    def streamed(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        reached.append("stream")
        yield BlobPiece() if isinstance(request, BlobRequest) else WorkerOrder()

    def plain(request: Any, context: grpc.ServicerContext) -> Empty:
        reached.append("plain")
        return Empty()

    with serving({FORGET: plain, PUT_BLOB: plain, GET_BLOB: streamed, SESSION: streamed}) as server:
        yield server


def call(server: GrpcServer, method: Method[Any, Any], metadata: tuple[tuple[str, str], ...]) -> Any:
    """Call with these metadata and no help of ours."""
    with grpc.insecure_channel(address(server)) as channel:
        stub = getattr(channel, method.kind)(method.path, request_serializer=encode)
        request = iter([METHODS[method]]) if method.kind.startswith("stream") else METHODS[method]
        try:
            reply = stub(request, metadata=metadata, timeout=10)
            return list(reply) if method.kind.endswith("stream") else reply
        except grpc.RpcError as failed:
            raise error_from(failed, address(server)) from None


VERSION = ("dsnb-version", PROTOCOL_VERSION)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_the_right_token_opens_every_kind_of_call(server: GrpcServer, method: Any, reached: list[str]) -> None:
    call(server, method, credentials(TOKEN))
    assert len(reached) == 1


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
@pytest.mark.parametrize(
    "metadata, error, text",
    [
        ((), PermissionDeniedError, "none was given"),
        ((VERSION,), PermissionDeniedError, "none was given"),
        ((("dsnb-token", ""), VERSION), PermissionDeniedError, "none was given"),
        ((("dsnb-token", "wrong"), VERSION), PermissionDeniedError, "the token is wrong"),
        ((("dsnb-token", TOKEN[:-1]), VERSION), PermissionDeniedError, "the token is wrong"),
        ((("dsnb-token", TOKEN + "x"), VERSION), PermissionDeniedError, "the token is wrong"),
        ((("dsnb-token", TOKEN),), FailedPreconditionError, "version None"),
        ((("dsnb-token", TOKEN), ("dsnb-version", "0")), FailedPreconditionError, "version 0"),
        ((("dsnb-token", "wrong"), ("dsnb-version", "0")), PermissionDeniedError, "the token is wrong"),
    ],
    ids=["nothing", "no token", "empty", "wrong", "too short", "too long", "no version", "version 0", "wrong and 0"],
)
def test_other_callers_are_refused_before_any_handler(
    server: GrpcServer, method: Any, metadata: Any, error: type[DsnbError], text: str, reached: list[str]
) -> None:
    with pytest.raises(error, match=text) as caught:
        call(server, method, metadata)
    assert caught.value.hint
    assert reached == []
    assert TOKEN not in str(caught.value)


def test_a_wrong_token_is_told_at_once_and_says_what_to_try(server: GrpcServer) -> None:
    with channel_to(address(server), "wrong") as channel, pytest.raises(PermissionDeniedError) as caught:
        channel.call(FORGET, ForgetRequest(), timeout=60)
    for way in ("connect(token=...)", "DSNB_TOKEN", "--token-file", "svc.token"):
        assert way in caught.value.hint


@pytest.mark.parametrize("token", ["schlüssel", "two\nlines", "tab\t", "\x00"], ids=ascii)
def test_a_token_that_cannot_be_sent_is_told_apart_from_a_server_that_is_away(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be sent") as caught, channel_to("127.0.0.1:1", token):
        pass
    assert token not in str(caught.value)


def test_tokens_cannot_be_guessed_and_can_be_sent() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32
    for token in tokens:
        assert credentials(token)


def test_a_token_file_may_end_in_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    assert read_token_file(path) == "abc"


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing-here"):
        read_token_file(tmp_path / "nothing-here")
