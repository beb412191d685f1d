"""An error's class and its three parts reach the caller, whatever kind of call it was and however long they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from dsnb import errors
from dsnb.code.tracebacks import RemoteTraceback
from dsnb.errors import DsnbError, FailedPreconditionError
from dsnb.wire.channel import Channel
from dsnb.wire.grpc_errors import error_from_call
from dsnb.wire.messages import BlobPiece, BlobRequest, Empty, ForgetRequest, WorkerReport
from dsnb.wire.methods import CONFIRM_END, FORGET, GET_BLOB, PUT_BLOB, SESSION
from tests.wire.serving import connected

TRAVELLING = [
    errors.InvalidArgumentError,
    errors.NotFoundError,
    errors.AlreadyExistsError,
    errors.FailedPreconditionError,
    errors.UnimplementedError,
    errors.PermissionDeniedError,
    errors.ResourceExhaustedError,
    errors.DeadlineExceededError,
    errors.CancelledError,
    errors.DataLossError,
    errors.UserCodeError,
    errors.DsnbError,
]


def unary(channel: Channel) -> Any:
    return channel.call(FORGET, ForgetRequest(job_name="j"), timeout=10)


def upload(channel: Channel) -> Any:
    return channel.upload(PUT_BLOB, lambda: iter([BlobPiece(data=b"x")]), timeout=10)


def replies(channel: Channel) -> Any:
    return list(channel.replies(GET_BLOB, BlobRequest(digest="d"), timeout=10))


def stream(channel: Channel) -> Any:
    try:
        return list(channel.stream(SESSION, iter([WorkerReport()]), timeout=10))
    except grpc.RpcError as failed:
        error = error_from_call(failed, channel.address)
        raise error from error.__cause__


CALLS: list[Callable[[Channel], Any]] = [unary, upload, replies, stream]


def refusing(error: Exception) -> dict[Any, Any]:
    """Handlers of all four kinds that raise."""

    def refuse(request: Any, context: grpc.ServicerContext) -> Any:
        raise error

    def refuse_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from refuse(request, context)

    return {FORGET: refuse, PUT_BLOB: refuse, GET_BLOB: refuse_stream, SESSION: refuse_stream}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cls", TRAVELLING)
def test_class_and_parts_of_an_error_travel(cls: type[DsnbError], call: Callable[[Channel], Any]) -> None:
    sent = cls("no job 'ü'\nhere", did="nothing", hint='try "x"')
    with connected(refusing(sent)) as channel, pytest.raises(DsnbError) as caught:
        call(channel)
    assert type(caught.value) is cls
    assert (caught.value.what, caught.value.did, caught.value.hint) == (sent.what, sent.did, sent.hint)


def test_an_error_behind_some_replies_travels_too() -> None:
    def some(request: BlobRequest, context: grpc.ServicerContext) -> Iterator[BlobPiece]:
        yield BlobPiece(data=b"1")
        raise errors.DataLossError("the disk is gone")

    with connected({GET_BLOB: some}) as channel:
        coming = channel.replies(GET_BLOB, BlobRequest(), timeout=10)
        assert next(coming).data == b"1"
        with pytest.raises(errors.DataLossError, match="the disk is gone"):
            next(coming)


def test_a_class_of_its_own_arrives_as_the_one_it_stands_under() -> None:
    class TooManyError(errors.ResourceExhaustedError):
        pass

    with connected(refusing(TooManyError("full"))) as channel, pytest.raises(errors.ResourceExhaustedError) as caught:
        unary(channel)
    assert type(caught.value) is errors.ResourceExhaustedError


@pytest.mark.parametrize("text", ["x", "ü", "\n", '"', "\U0001f600", "\udcff"], ids=ascii)
@pytest.mark.parametrize("call", [unary, replies])
def test_an_error_of_any_length_and_text_arrives(text: str, call: Callable[[Channel], Any]) -> None:
    """gRPC drops a call whose metadata are too large, and would put its own error in the place of ours."""
    sent = errors.NotFoundError(f"begins {text * 50_000}", did=text * 50_000, hint=text * 50_000)
    with connected(refusing(sent)) as channel, pytest.raises(errors.NotFoundError) as caught:
        call(channel)
    assert caught.value.what.startswith("begins")
    assert "bytes more" in caught.value.what
    assert caught.value.did
    assert caught.value.hint


@pytest.mark.parametrize("call", CALLS)
def test_an_unexpected_exception_of_a_handler_is_told_as_a_bug_with_its_traceback(
    call: Callable[[Channel], Any],
) -> None:
    """And no hang: the caller learns of it at once."""
    with (
        connected(refusing(KeyError("oops"))) as channel,
        pytest.raises(DsnbError, match=r"KeyError: 'oops'") as caught,
    ):
        call(channel)
    assert type(caught.value) is DsnbError
    assert "this is a bug of dsnb" in caught.value.hint
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in refuse" in str(caught.value.__cause__)
    assert str(caught.value.__cause__).rstrip().endswith("KeyError: 'oops'")


def test_the_end_of_a_long_traceback_arrives() -> None:
    """It says what happened; gRPC has room for a few thousand bytes."""
    with connected(refusing(ValueError("x" * 10_000 + "end"))) as channel, pytest.raises(DsnbError) as caught:
        unary(channel)
    assert "bytes before)" in str(caught.value.__cause__)
    assert str(caught.value.__cause__).rstrip().endswith("end")


def test_a_server_that_does_not_know_the_call_is_another_program() -> None:
    handlers = {FORGET: lambda request, context: Empty()}
    unknown = pytest.raises(FailedPreconditionError, match="does not know this call")
    with connected(handlers) as channel, unknown as caught:
        channel.call(CONFIRM_END, CONFIRM_END.request(), timeout=10)
    assert "ConfirmEnd" in str(caught.value)
