"""Channels to a server: shared within the process, calls with deadlines, errors of ours.

A connection alone proves nothing: gRPC reconnects by itself, and the next call goes to whatever process has the port by
then. So the server proves itself in each call (`wire/security`), and answers without a proof are dropped.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from typing import Any, Generic, TypeVar

import grpc

from dsnb.dataclass import dataclass
from dsnb.errors import (
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from dsnb.system_limits import nearly_out_of_files, open_files_text
from dsnb.wire import discovery, forks
from dsnb.wire.addresses import target_address
from dsnb.wire.codec import decode, encode
from dsnb.wire.grpc_errors import ERROR_METADATA_KEY, error_from_call
from dsnb.wire.methods import HELLO, MAX_MESSAGE_BYTES, Method
from dsnb.wire.security import TAG_BYTES, Caller, Proof, call_metadata, check_token, request_digest

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Result = TypeVar("Result")

CALL_TIMEOUT_S = 10.0
"""How long a call is tried before it ends in an UnavailableError."""

_STALL_S = 0.5
"""By how much a deadline is missed only if no Python could run when it passed."""
_RETRY_DELAY_S = 0.05
_HELLO_TIMEOUT_S = 1.0
"""How long the first Hello may take; each further one twice as long as the one before."""
_ANNOUNCE_AFTER_S = 1.0
"""How long nobody may answer before a line says so: a wrong address should not look like a slow start."""
_TOKEN_GRACE_S = 2.0
"""How long a token that is looked up may be missing or wrong: a dispatcher listens before its file is there."""
_TRANSFER_TIMEOUT_S = 600.0
"""How long what goes in pieces may take on its way."""
_REFUSAL_TIMEOUT_S = 1.0
"""How long a call that began without a proof has to say why."""

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),  # a read's message has 5 MB at the most
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A server that hangs without closing (stopped, or its host gone) is found out even by a call that only listens.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.client_idle_timeout_ms", 10_000),  # a channel without calls, see `ChannelCache`
    ("grpc.enable_retries", 0),  # retrying is decided here, where it is known what may be said twice
)

ChannelKey = tuple[str, str | None, str]
"""Address, token and instance of a channel; see `open_channel`."""


@dataclass(frozen=True, slots=True)
class _ServerIdentity:
    """A server that has proven itself, or whose instance the dispatcher told."""

    token: str = field(repr=False)
    instance: str


class Channel:
    """One shared connection to a server. Made by `open_channel`; each user closes what it opened. Thread-safe."""

    def __init__(self, key: ChannelKey) -> None:
        self.key = key
        self.address, self._given_token, self._instance = key
        forks.register_peer(self.address)
        self._channel = grpc.insecure_channel(self.address, options=_OPTIONS)
        self._users = 1
        self._caller = Caller()
        self._identity = (
            _ServerIdentity(self._given_token, self._instance) if self._given_token and self._instance else None
        )
        self._hello_lock = threading.Lock()
        self._hello_timeout_s = _HELLO_TIMEOUT_S
        self._unanswered_since: float | None = None
        self._reason = ""
        self._announced = False
        self.token = ""
        """The token with which the server proved itself last; empty before."""

    def call(self, method: Method[Request, Reply], request: Request, timeout: float = CALL_TIMEOUT_S) -> Reply:
        """Make a unary call, again and again while the server cannot be reached.

        Raises:
            UnavailableError: the service did not answer within `timeout` seconds.
            DsnbError: what the server raised.
        """
        data = _within_limit(encode(request), method)
        return self._with_retries(lambda left: self._attempt_unary(method, data, left), timeout)

    def upload(
        self,
        method: Method[Request, Reply],
        requests: Callable[[], Iterator[Request]],
        timeout: float = CALL_TIMEOUT_S,
    ) -> Reply:
        """Make a call that sends a stream and gets one reply, again and again while the server cannot be reached.

        Args:
            method: The call.
            requests: Makes what is sent, anew for each attempt.
            timeout: Seconds until somebody must have answered; what is sent then may take as long as it takes.
        """
        [reply] = self._with_retries(lambda left: self._attempt_stream(method, requests(), left), timeout)
        return reply

    def fetch(
        self, method: Method[Request, Reply], request: Request, timeout: float = CALL_TIMEOUT_S
    ) -> tuple[Reply, ...]:
        """Make a call that gets a stream of replies, and return them all; tried and timed as `upload`."""
        return self._with_retries(lambda left: self._attempt_stream(method, request, left), timeout)

    def stream(
        self,
        method: Method[Request, Reply],
        requests: Any,
        timeout: float | None = None,
        *,
        wait: float = 2 * _HELLO_TIMEOUT_S,
    ) -> Stream[Reply]:
        """Start a streaming call.

        Args:
            method: The call.
            requests: What is sent: an iterator, or the one request of a call that sends no stream.
            timeout: Seconds until the call must be over; None for none.
            wait: Seconds that it may take to get the server's identity, where that is not known.

        Raises:
            UnavailableError: the server cannot be reached; it is not tried again.
        """
        known = self._identify(wait)
        return Stream(self, method, requests, timeout, known)

    def replies(
        self, method: Method[Request, Reply], request: Request, timeout: float | None = None
    ) -> Generator[Reply, None, None]:
        """Make a call that gets a stream of replies; dropping the iterator cancels it."""
        call = self.stream(method, request, timeout)
        try:
            yield from call
        finally:
            call.cancel()

    def close(self) -> None:
        """Give this channel back; the last user closes the connection."""
        if forks.in_forked_child():
            return
        with _lock:
            self._users -= 1
            if self._users:
                return
            _channels.pop(self.key, None)
        self._channel.close()

    # ---- attempts

    def _with_retries(self, attempt: Callable[[float], Result], timeout: float) -> Result:
        deadline = time.monotonic() + timeout
        server_error: DsnbError | None = None
        while True:
            left = max(0.001, deadline - time.monotonic())
            try:
                return attempt(left)
            except DsnbError as stated:
                passing = isinstance(stated, UnavailableError | CancelledError)  # a server that stops cancels its calls
                if passing and not self._users:
                    raise
                if passing and stated.hint:  # the server's own words are better than ours
                    server_error = stated
                timed_out = isinstance(stated, DeadlineExceededError)
                if time.monotonic() - deadline > _STALL_S and (passing or timed_out):
                    # Something held this interpreter, and perhaps the server in it: nobody has had that time.
                    deadline = time.monotonic() + left
                    continue
                out_of_time = time.monotonic() >= deadline - 0.01
                if passing and not out_of_time:
                    time.sleep(min(_RETRY_DELAY_S, max(0.0, deadline - time.monotonic())))
                    continue
                if passing or (out_of_time and timed_out):
                    raise server_error or self._unreachable_error(timeout) from None
                raise

    def _attempt_unary(self, method: Method[Request, Reply], data: bytes, left: float) -> Reply:
        deadline = time.monotonic() + left
        known = self._identify(left)
        proof = self._proof(known, method, data)
        try:
            reply, call = self._stub(method.kind, method.path).with_call(
                data,
                timeout=max(0.001, deadline - time.monotonic()),
                metadata=call_metadata(proof),
                wait_for_ready=True,
            )
        except ValueError as error:
            raise self._closed_error() from error
        except grpc.RpcError as error:
            stated = self._call_error(error, known, proof)
            raise stated from stated.__cause__
        if not self._caller.accepts(proof, call.initial_metadata()):
            raise self._forget_identity(known)
        self.token = known.token
        return _decode_reply(method, proof.signer(to_server=False).check(reply))

    def _attempt_stream(self, method: Method[Any, Reply], requests: Any, left: float) -> tuple[Reply, ...]:
        call = self.stream(method, requests, _TRANSFER_TIMEOUT_S, wait=left)
        try:
            return tuple(call)
        finally:
            call.cancel()

    def _stub(self, kind: str, path: str) -> Any:
        forks.check_grpc()
        if not self._users:
            raise self._closed_error()
        return getattr(self._channel, kind)(path)

    def _closed_error(self) -> UnavailableError:
        """The error for a call on a channel that all users have closed; gRPC raises a ValueError."""
        return UnavailableError(f"the connection to {self.address} was closed")

    def _proof(self, identity: _ServerIdentity, method: Method[Any, Any], request: bytes | None = None) -> Proof:
        digest = () if request is None else (request_digest(request),)
        return self._caller.proof(identity.token, method.path, identity.instance, *digest)

    # ---- whom it talks to

    def _identify(self, wait: float) -> _ServerIdentity:
        """The server's identity, asked for with a Hello if it is not known.

        Raises:
            UnavailableError: it cannot be reached, or does not prove itself.
            PermissionDeniedError: it does not take the token.
            FailedPreconditionError: it is another program, or another version of dsnb.
        """
        known = self._identity
        if known is not None:
            return known
        forks.check_grpc()
        if not self._hello_lock.acquire(timeout=wait):
            raise UnavailableError(f"nobody has answered at {self.address} yet")
        try:
            if self._identity is None:
                self._identity = self._hello(wait)
                self._hello_timeout_s, self._unanswered_since = _HELLO_TIMEOUT_S, None
            return self._identity
        finally:
            self._hello_lock.release()

    def _hello(self, wait: float) -> _ServerIdentity:
        # The token is looked up for each attempt: the service may only just have begun, or begun anew with another.
        token = self._given_token if self._given_token is not None else discovery.token_for(self.address)
        proof = self._caller.proof(token, HELLO.path, "", request_digest(b"")) if token else None
        self._unanswered_since = self._unanswered_since or time.monotonic()
        try:
            stub = self._stub(HELLO.kind, HELLO.path)
            reply, call = stub.with_call(b"", timeout=min(wait, self._hello_timeout_s), metadata=call_metadata(proof))
        except ValueError as error:
            raise self._closed_error() from error
        except grpc.RpcError as error:
            raise self._hello_error(error, time.monotonic() - self._unanswered_since) from None
        if proof is None or not self._caller.accepts(proof, call.initial_metadata()):
            raise self._unproven_error("")
        proof.signer(to_server=False).check(reply)
        self.token = token
        return _ServerIdentity(token, proof.instance)

    def _hello_error(self, error: Any, waited: float) -> DsnbError:
        """What a Hello was answered with, or why it was not."""
        stated = error_from_call(error, self.address)
        if not _is_transport_error(error, stated):
            if self.token:  # somebody is in the place of the one that had proven itself
                return self._unproven_error(stated.what)
            if self._given_token is not None or waited > _TOKEN_GRACE_S:
                return stated
            return UnavailableError(stated.what, did=stated.did, hint=stated.hint)
        if isinstance(stated, DeadlineExceededError):
            self._hello_timeout_s *= 2  # it may be slow
        details = str(error.details())
        self._reason = next((words for sign, words in _REASON_TEXTS.items() if sign in details), "no answer")
        if not self.token:
            if _ANOTHER_PROGRAM in details:
                return self._other_program_error()
            self._announce_wait(waited)
        return UnavailableError(f"nobody answers at {self.address} ({self._reason})")

    def _other_program_error(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"what listens at {self.address} is no dsnb service, but another program",
            did="nothing was sent to it",
            hint=f"check the address; {_services_hint()}",
        )

    def _announce_wait(self, waited: float) -> None:
        if waited <= _ANNOUNCE_AFTER_S or self._announced or sys.stderr is None:
            return
        self._announced = True
        if discovery.connection_at(self.address) is None:  # else the address is right, and the service is busy
            # No warning: that could be an error, and a client may well start before its service.
            text = f"dsnb: nobody answers at {self.address} yet ({self._reason}); still trying ({_services_hint()})\n"
            sys.stderr.write(text)
            sys.stderr.flush()

    def _call_error(self, error: Any, identity: _ServerIdentity, proof: Proof) -> DsnbError:
        """The error that a failed call stands for, if it is the server that says so."""
        stated = error_from_call(error, self.address)
        proven = self._caller.accepts(proof, error.initial_metadata())
        if proven:
            self.token = identity.token
        return stated if proven or _is_transport_error(error, stated) else self._forget_identity(identity, stated.what)

    def _forget_identity(self, identity: _ServerIdentity, server_message: str = "") -> UnavailableError:
        """Forget the identity of a server that did not prove it: another instance may answer, to a Hello."""
        if self._identity is identity and not self._instance:
            self._identity = None
        return self._unproven_error(server_message)

    def _unproven_error(self, server_message: str) -> UnavailableError:
        says = f"; it says: {server_message}" if server_message else ""
        return UnavailableError(
            f"what answers at {self.address} does not prove that it is the server that is meant{says}",
            did="its answer was dropped",
            hint="the server has ended and another program has its port, or it was started again with another token",
        )

    def _unreachable_error(self, timeout: float) -> UnavailableError:
        reason = f" ({self._reason})" if self._reason else ""
        return UnavailableError(
            f"nobody answers at {self.address}{reason}",
            did=f"tried for {timeout:g} seconds",
            hint=f"{_files_hint()}check the address; `dsnb status` lists the services of this user; does the "
            "service run, and does no cell hold its interpreter?",
        )


def _files_hint() -> str:
    return f"{open_files_text()}: a connection may need more; " if nearly_out_of_files() else ""


class Stream(Generic[Reply]):
    """A streaming call under way: iterate it for replies, in one thread; `cancel` ends it, from any.

    Nothing but the first message leaves before the server has proven itself, and nothing that comes before is given
    out. Its errors are ours.
    """

    def __init__(
        self,
        channel: Channel,
        method: Method[Any, Reply],
        requests: Any,
        timeout: float | None,
        identity: _ServerIdentity,
    ) -> None:
        streams = method.kind.startswith("stream")
        data = None if streams else _within_limit(encode(requests), method)
        self._channel = channel
        self._method = method
        self._identity = identity
        self._proof = channel._proof(identity, method, data)
        self._signer = None if method.bulk else self._proof.signer(to_server=False)
        self._settled = threading.Event()
        self._proven = False
        # To gRPC one reply is a stream too; as such it can be had together with the metadata before it.
        stub = channel._stub("stream_stream" if streams else "unary_stream", method.path)
        try:
            self._call = stub(
                self._signed_requests(iter(requests)) if data is None else data,
                timeout=timeout,
                metadata=call_metadata(self._proof),
            )
        except ValueError as error:
            raise channel._closed_error() from error

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        try:
            if not self._proven:
                self._prove()
            data = next(self._call)
        except grpc.RpcError as error:
            self._settled.set()
            stated = self._channel._call_error(error, self._identity, self._proof)
            raise stated from stated.__cause__
        except BaseException:  # the end, among them
            self._settled.set()
            raise
        try:
            return _decode_reply(self._method, data if self._signer is None else self._signer.check(data))
        except DataLossError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End it, if it has not ended."""
        self._settled.set()
        self._call.cancel()

    def _prove(self) -> None:
        """Wait until the server has proven itself."""
        if self._channel._caller.accepts(self._proof, self._call.initial_metadata()):
            self._channel.token = self._identity.token
            self._proven = True
            self._settled.set()
            return
        with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
            self._call.exception(timeout=_REFUSAL_TIMEOUT_S)
        if self._call.done():
            next(self._call, None)  # raises why it failed
        self.cancel()
        raise self._channel._forget_identity(self._identity)

    def _signed_requests(self, requests: Iterator[Any]) -> Iterator[bytes]:
        """The messages as they leave, in a thread of gRPC's."""
        signer = self._proof.signer(to_server=True)
        for number, request in enumerate(requests):
            if number:
                self._settled.wait()
                if not self._proven:
                    return
            yield signer.sign(_within_limit(encode(request), self._method))


def _within_limit(data: bytes, method: Method[Any, Any]) -> bytes:
    """A request, if the server takes one of its size.

    Raises:
        InvalidArgumentError: it does not.
    """
    if len(data) + TAG_BYTES > MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(
            f"a {method.name} request has {len(data):,} bytes, and a server takes {MAX_MESSAGE_BYTES:,}",
            did="it was not sent",
            hint="keep names, positions and specifications small; large data go into the pipeline's elements",
        )
    return data


def _decode_reply(method: Method[Any, Reply], data: bytes) -> Reply:
    return data if method.reply is bytes else decode(method.reply, data)  # type: ignore[return-value]  # then it is bytes


def _is_transport_error(error: Any, decoded: DsnbError) -> bool:
    """Whether an error may come from the connection: it tells nothing of the server but that it was not heard."""
    if any(key == ERROR_METADATA_KEY for key, _ in error.trailing_metadata() or ()):
        return False
    return isinstance(decoded, UnavailableError | CancelledError | DeadlineExceededError)


_REASON_TEXTS = {
    "Connection refused": "connection refused",
    "Domain name not found": "there is no host of that name",
    "Socket closed": "the connection is closed at once",
}
"""What gRPC says, and what it means."""
_ANOTHER_PROGRAM = "Failed parsing HTTP/2"


def _services_hint() -> str:
    """Which services could be meant."""
    try:
        found = discovery.running()
    except OSError:
        found = []
    return "services of yours here: " + (", ".join(f"{c.name} ({c.target})" for c in found) or "none")


_lock = threading.RLock()  # an iterator that is collected inside open_channel gives its channel back
_channels: dict[ChannelKey, Channel] = {}


def open_channel(target: str, token: str | None, instance: str = "") -> Channel:
    """The process's channel to a server, made if there is none.

    Args:
        target: Where it listens.
        token: What it is to prove to know; None to look it up by the address at each attempt to get to know it.
        instance: The instance that it is to be; empty for whichever proves to know the token.

    Raises:
        InvalidArgumentError: the token is empty.
        FailedPreconditionError: the process was forked from one that had channels or servers.
    """
    given = None if token is None else check_token(token, "the token")
    return _acquire_channel((target_address(target), given, instance))


def _acquire_channel(key: ChannelKey) -> Channel:
    forks.prepare_for_grpc()
    with _lock:
        channel = _channels.get(key)
        if channel is not None:
            channel._users += 1
            return channel
        channel = _channels[key] = Channel(key)
        return channel


class ChannelCache:
    """Keeps channels open between two uses, for as long as it lives: to connect takes longer than most calls.

    A kept channel that nobody calls through holds a socket for a while only, by an option of gRPC's.
    """

    def __init__(self) -> None:
        self._channels: dict[ChannelKey, Channel] = {}
        weakref.finalize(self, _close_all, self._channels)

    def retain(self, keys: Iterable[ChannelKey]) -> None:
        """Keep the channels with these keys, and no others any longer."""
        wanted = set(keys)
        with _lock:
            for key in wanted - self._channels.keys():
                self._channels[key] = _acquire_channel(key)
            for key in self._channels.keys() - wanted:
                self._channels.pop(key).close()


def _close_all(kept: dict[ChannelKey, Channel]) -> None:
    while kept:
        kept.popitem()[1].close()
