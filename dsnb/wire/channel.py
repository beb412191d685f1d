"""Channels to a server: shared within the process, calls with deadlines, errors of ours."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

import grpc

from dsnb.errors import CancelledError, DsnbError, UnavailableError
from dsnb.limits import files_open, nearly_out_of_files
from dsnb.wire import forks
from dsnb.wire.addresses import split_target
from dsnb.wire.codec import decoder, encode
from dsnb.wire.methods import Method
from dsnb.wire.security import credentials
from dsnb.wire.status import error_from

Request = TypeVar("Request")
Reply = TypeVar("Reply")

CALL_TIMEOUT_S = 10.0
"""How long a call is tried before it ends in an UnavailableError."""

_HELD_S = 0.5
"""By how much a deadline is missed only if no Python could run when it passed."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A server that hangs without closing (stopped, or its host gone) is found out even by a call that only listens.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.client_idle_timeout_ms", 10_000),  # a channel without calls, see `Connections`
    ("grpc.enable_retries", 0),  # retrying is decided here, where it is known what may be said twice
)


class Channel:
    """One shared connection to a server. Made by `open_channel`; each user closes what it opened."""

    def __init__(self, address: str, token: str) -> None:
        forks.calls(address)
        self.address = address
        self._credentials = credentials(token)
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._key = (address, token)
        self._users = 1

    def call(self, method: Method[Request, Reply], request: Request, timeout: float = CALL_TIMEOUT_S) -> Reply:
        """Make a unary call, again and again while the server cannot be reached.

        Raises:
            UnavailableError: nobody answered within `timeout` seconds.
            DsnbError: what the server raised.
        """
        stub = self._stub(method)
        deadline = time.monotonic() + timeout
        told: DsnbError | None = None
        while True:
            left = max(0.001, deadline - time.monotonic())
            try:
                return stub(request, timeout=left, metadata=self._credentials, wait_for_ready=True)  # type: ignore[no-any-return]
            except grpc.RpcError as error:
                stated = error_from(error, self.address)
                passing = isinstance(stated, UnavailableError | CancelledError)  # a server that stops cancels its calls
                if passing and stated.hint:  # the server's own words are better than ours
                    told = stated
                timed_out = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if time.monotonic() - deadline > _HELD_S and (passing or timed_out):
                    # Something held this interpreter, and perhaps the server in it: nobody has had that time.
                    deadline = time.monotonic() + left
                    continue
                out_of_time = time.monotonic() >= deadline - 0.01
                if passing and not out_of_time:
                    time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))
                    continue
                if passing or (out_of_time and timed_out):
                    raise told or self._unreachable(timeout) from None
                raise stated from stated.__cause__
            except ValueError as error:  # "Cannot invoke RPC on closed channel!"
                raise UnavailableError(f"the connection to {self.address} was closed") from error

    def stream(self, method: Method[Request, Reply], requests: Any, timeout: float | None = None) -> Any:
        """Start a streaming call: iterate it for replies, `cancel` it to end it. Its errors are gRPC's."""
        return self._stub(method)(requests, timeout=timeout, metadata=self._credentials)

    def upload(self, method: Method[Request, Reply], requests: Iterator[Request], timeout: float) -> Reply:
        """Make a call that sends a stream and gets one reply."""
        try:
            return self._stub(method)(requests, timeout=timeout, metadata=self._credentials)  # type: ignore[no-any-return]
        except grpc.RpcError as error:
            stated = error_from(error, self.address)
            raise stated from stated.__cause__

    def replies(
        self, method: Method[Request, Reply], request: Request, timeout: float | None = None
    ) -> Generator[Reply, None, None]:
        """Make a call that gets a stream of replies, with errors of ours; dropping the iterator cancels it."""
        call = self.stream(method, request, timeout)
        try:
            yield from call
        except grpc.RpcError as error:
            stated = error_from(error, self.address)
            raise stated from stated.__cause__
        finally:
            call.cancel()

    def close(self) -> None:
        """Give this channel back; the last user closes the connection."""
        if forks.cut_off():
            return
        with _lock:
            self._users -= 1
            if self._users:
                return
            _channels.pop(self._key, None)
        self._channel.close()

    def _stub(self, method: Method[Request, Reply]) -> Any:
        forks.check_grpc()
        make = getattr(self._channel, method.kind)
        deserialise = None if method.reply is bytes else decoder(method.reply)
        return make(method.path, request_serializer=encode, response_deserializer=deserialise)

    def _unreachable(self, timeout: float) -> UnavailableError:
        return UnavailableError(
            f"nobody answers at {self.address}",
            did=f"tried for {timeout:g} seconds",
            hint=f"{_hint_of_files()}check the address; `dsnb status` lists the services of this user; does the "
            "service run, and does no cell hold its interpreter?",
        )


def _hint_of_files() -> str:
    return f"{files_open()}: a connection may need more; " if nearly_out_of_files() else ""


_lock = threading.RLock()  # an iterator that is collected inside open_channel gives its channel back
_channels: dict[tuple[str, str], Channel] = {}


def open_channel(target: str, token: str) -> Channel:
    """The process's channel to a server, made if there is none.

    Raises:
        FailedPreconditionError: the process was forked from one that had channels or servers.
    """
    address = split_target(target)
    forks.uses_grpc()
    with _lock:
        channel = _channels.get((address, token))
        if channel is not None:
            channel._users += 1
            return channel
        channel = _channels[address, token] = Channel(address, token)
        return channel


class Connections:
    """Keeps channels open between two uses, for as long as it lives: to connect takes longer than most calls.

    A kept channel that nobody calls through holds a socket for a while only, by an option of gRPC's.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Channel] = {}
        weakref.finalize(self, _give_back, self._kept)

    def keep(self, targets: Iterable[str], token: str) -> None:
        """Keep the channels to these servers, and no others any longer."""
        wanted = {(split_target(target), token) for target in targets}
        with _lock:
            for key in wanted - self._kept.keys():
                self._kept[key] = open_channel(*key)
            for key in self._kept.keys() - wanted:
                self._kept.pop(key).close()


def _give_back(kept: dict[tuple[str, str], Channel]) -> None:
    while kept:
        kept.popitem()[1].close()
