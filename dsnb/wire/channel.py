"""gRPC channels to dsnb servers: shared within the process, with deadlines, retries and dsnb's own errors.

An open connection says nothing about the server's identity: gRPC reconnects on its own, and the next call reaches
whichever process owns the port by then. The server therefore authenticates itself in every call (`wire/security`), and
replies without a valid proof are dropped.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc

from dsnb.errors import (
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
)
from dsnb.system_limits import nearly_out_of_files, open_files_text, start_thread
from dsnb.wire import discovery, forks
from dsnb.wire.addresses import host_of, is_loopback, target_address
from dsnb.wire.certificates import TLS_NAME, channel_credentials
from dsnb.wire.codec import decode, encode
from dsnb.wire.grpc_errors import ERROR_METADATA_KEY, error_from_call, tls_refusal
from dsnb.wire.methods import HELLO, MAX_MESSAGE_BYTES, Method, call_failpoint
from dsnb.wire.security import TAG_BYTES, Caller, Proof, call_metadata, check_token, request_digest

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Result = TypeVar("Result")

CALL_TIMEOUT_S = 10.0
"""Seconds for which a call is retried before it raises `UnavailableError`."""

_STALL_S = 0.5
"""Seconds past a deadline after which the process must have been stalled: no Python code could run on time."""
_EARLY_S = 0.01
"""How much too early gRPC may notice a deadline, in seconds."""
_RETRY_DELAY_S = 0.05
_HELLO_TIMEOUT_S = 1.0
"""Timeout of the first Hello in seconds; it doubles after each Hello that times out."""
_ANNOUNCE_AFTER_S = 1.0
"""Seconds without an answer before a line on stderr says so: a wrong address must not look like a slow start."""
_TOKEN_GRACE_S = 2.0
"""Seconds for which a looked-up token may be missing or wrong: a dispatcher listens before it writes its file."""
_TRANSFER_STALL_S = 60.0
"""Seconds for which a transfer in pieces may stand still: a cell may hold the server's GIL for half a minute."""
_REFUSAL_TIMEOUT_S = 1.0
"""Seconds to wait for the reason when a call starts without the server's proof."""

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),  # messages of a read have at most 5 MB
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Detects a server that hangs without closing (stopped, or its host gone), even in a call that only receives.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.client_idle_timeout_ms", 10_000),  # closes the socket of a channel without calls, see `ChannelCache`
    ("grpc.enable_retries", 0),  # `_with_retries` decides: it knows which calls are safe to repeat
)

_CONNECT_MS = 5_000
"""How long an attempt to connect to another host, or with TLS, may take: it needs several round trips."""


def _options(address: str, *, encrypted: bool) -> list[tuple[str, Any]]:
    """The options of a channel, for `grpc`."""
    options: dict[str, Any] = dict(_OPTIONS)
    if encrypted or not is_loopback(host_of(address)):
        options["grpc.min_reconnect_backoff_ms"] = _CONNECT_MS  # gRPC's time-out of an attempt, whatever its name says
    if encrypted:
        options["grpc.ssl_target_name_override"] = TLS_NAME
    return list(options.items())


ChannelKey = tuple[str, str | None, str]
"""Address, token and instance of a channel; see `open_channel`."""


@dataclass(frozen=True, slots=True)  # no Struct: that shows the token to the library rich
class ServerIdentity:
    """A server that has authenticated itself, or whose instance id came from the dispatcher."""

    token: str = field(repr=False)
    instance: str


class Channel:
    """One shared connection to a server. Made by `open_channel`; every user must call `close` once. Thread-safe."""

    def __init__(self, key: ChannelKey) -> None:
        self.key = key
        self.address, self._given_token, self._instance = key
        forks.register_peer(self.address)
        self._channel: grpc.Channel | None = None
        self._certificate = ""
        self.users = 1
        """How many users have this channel and have not closed it; changed under the module's lock."""
        self.caller = Caller()
        self._identity = (
            ServerIdentity(self._given_token, self._instance) if self._given_token and self._instance else None
        )
        self._hello_lock = threading.Lock()
        self._hello_timeout_s = _HELLO_TIMEOUT_S
        self._unanswered_since: float | None = None
        self._refused_since: float | None = None
        self._reason = ""
        self._announced = False
        self.token = ""
        """The token with which the server last authenticated itself; empty until then."""
        self._connect(self._given_token or "")

    def call(self, method: Method[Request, Reply], request: Request, timeout: float = CALL_TIMEOUT_S) -> Reply:
        """Make a unary call, with retries while the server cannot be reached.

        Raises:
            UnavailableError: the service did not answer within `timeout` seconds.
            DsnbError: the error that the server raised.
        """
        data = _within_limit(encode(request), method)
        with call_failpoint(method.path):
            return self._with_retries(lambda left: self._attempt_unary(method, data, left), timeout)

    def upload(
        self,
        method: Method[Request, Reply],
        requests: Callable[[], Iterator[Request]],
        timeout: float = CALL_TIMEOUT_S,
    ) -> Reply:
        """Make a call that sends a stream and gets one reply, with retries while the server cannot be reached.

        Args:
            method: The call.
            requests: Returns a fresh iterator of the messages to send, for each attempt.
            timeout: Seconds within which the server must answer; the upload itself may take longer.
        """
        with call_failpoint(method.path):
            [reply] = self._with_retries(lambda left: self._attempt_stream(method, requests(), left), timeout)
        return reply

    def fetch(
        self, method: Method[Request, Reply], request: Request, timeout: float = CALL_TIMEOUT_S
    ) -> tuple[Reply, ...]:
        """Make a call that gets a stream of replies, and return them all; retries and timeout as in `upload`."""
        return self._with_retries(lambda left: self._attempt_stream(method, request, left), timeout)

    def stream(
        self,
        method: Method[Request, Reply],
        requests: Any,
        timeout: float | None = None,
        *,
        wait: float = 2 * _HELLO_TIMEOUT_S,
        on_proof: Callable[[], object] | None = None,
    ) -> Stream[Reply]:
        """Start a streaming call.

        Args:
            method: The call.
            requests: An iterator of requests, or the single request of a call that sends no stream.
            timeout: Seconds within which the call must end; None for no limit.
            wait: Seconds that the initial Hello may take if the server's identity is not known yet.
            on_proof: Called before the first reply is returned, as soon as the server has taken the call and proven who
                it is.

        Raises:
            UnavailableError: the server cannot be reached; the call is not retried.
        """
        known = self._identify(wait)
        return Stream(self, method, requests, timeout, known, on_proof)

    def replies(
        self, method: Method[Request, Reply], request: Request, timeout: float | None = None
    ) -> Generator[Reply, None, None]:
        """Make a call that gets a stream of replies; closing the generator cancels the call."""
        call = self.stream(method, request, timeout)
        try:
            yield from call
        finally:
            call.cancel()

    def close(self) -> None:
        """Release this channel; the last user's call closes the connection."""
        if forks.in_forked_child():  # the connection is the parent's
            return
        with _lock:
            self.users -= 1
            if self.users:
                return
            _channels.pop(self.key, None)
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # ---- attempts

    def _with_retries(self, attempt: Callable[[float], Result], timeout: float) -> Result:
        deadline = time.monotonic() + timeout
        server_error: DsnbError | None = None
        while True:
            left = max(0.001, deadline - time.monotonic())
            try:
                return attempt(left)
            except DsnbError as stated:
                passing = isinstance(stated, UnavailableError | CancelledError)  # a stopping server cancels its calls
                if passing and not self.users:
                    raise
                if passing and stated.hint:  # more specific than `_unreachable_error`
                    server_error = stated
                timed_out = isinstance(stated, DeadlineExceededError) and not stated.hint  # else it is final
                if time.monotonic() - deadline > _STALL_S and (passing or timed_out):
                    # The deadline is noticed too late: this process was stalled, perhaps with the server in it. The
                    # stall must not count as the server's time, so the deadline moves by the time that was left.
                    deadline = time.monotonic() + left
                    continue
                out_of_time = time.monotonic() >= deadline - _EARLY_S
                if passing and not out_of_time:
                    time.sleep(min(_RETRY_DELAY_S, max(0.0, deadline - time.monotonic())))
                    continue
                if passing or (out_of_time and timed_out):
                    raise server_error or self._unreachable_error(timeout) from None
                raise

    def _attempt_unary(self, method: Method[Request, Reply], data: bytes, left: float) -> Reply:
        deadline = time.monotonic() + left
        known = self._identify(left)
        proof = self.proof(known, method, data)
        try:
            reply, call = self.stub(method.kind, method.path).with_call(
                data,
                timeout=max(0.001, deadline - time.monotonic()),
                metadata=call_metadata(proof),
                wait_for_ready=not self._certificate,  # with TLS, a refused certificate must be an error at once
            )
        except ValueError as error:
            raise self.closed_error() from error
        except grpc.RpcError as error:
            if time.monotonic() >= deadline - _EARLY_S and _lacks_proof(error):
                raise DeadlineExceededError(f"the answer of {self.address} came too late") from None
            stated = self.call_error(error, known, proof)
            raise stated from stated.__cause__
        if not self.caller.accepts(proof, call.initial_metadata()):
            raise self.forget_identity(known)
        self.token = known.token
        return _decode_reply(method, proof.signer(to_server=False).check(reply))

    def _attempt_stream(self, method: Method[Any, Reply], requests: Any, left: float) -> tuple[Reply, ...]:
        return tuple(self.transfer(method, requests, left))

    def transfer(
        self, method: Method[Request, Reply], requests: Any, wait: float = 2 * _HELLO_TIMEOUT_S
    ) -> Generator[Reply, None, None]:
        """Make a call that moves data in pieces; closing the generator cancels the call. Arguments as in `stream`.

        Raises:
            UnavailableError: the server cannot be reached; the call is not retried.
            DeadlineExceededError: nothing has moved for `_TRANSFER_STALL_S`.
        """
        moved_at, over = time.monotonic(), threading.Event()

        def moving(messages: Iterable[Any]) -> Iterator[Any]:
            nonlocal moved_at
            for message in messages:
                moved_at = time.monotonic()
                yield message

        def watch() -> None:
            while time.monotonic() - moved_at < _TRANSFER_STALL_S:
                if over.wait(_TRANSFER_STALL_S / 60):
                    return
            over.set()
            call.cancel()

        sent = moving(requests) if method.kind.startswith("stream") else requests
        call = self.stream(method, sent, wait=wait)
        watching = threading.Thread(target=watch, name="dsnb-transfer", daemon=True)
        try:
            start_thread(watching)
            yield from moving(call)
        except CancelledError:
            if not over.is_set():
                raise
            raise self._stalled_error() from None
        finally:
            over.set()
            call.cancel()
            if watching.is_alive():  # otherwise the system started no more threads
                watching.join()

    def stub(self, kind: str, path: str) -> Any:
        """What calls one method of the server, without authentication; `kind` is one of gRPC's four kinds."""
        forks.check_grpc()
        channel = self._channel
        if not self.users or channel is None:
            raise self.closed_error()
        return getattr(channel, kind)(path)

    def _connect(self, token: str) -> None:
        """Open the connection, with TLS if the service of this token has a certificate; anew if that has changed."""
        certificate = discovery.certificate_for(token) if token else ""
        options = _options(self.address, encrypted=bool(certificate))
        with _lock:
            if not self.users or (self._channel is not None and certificate == self._certificate):
                return
            old, self._certificate = self._channel, certificate
            self._channel = (
                grpc.secure_channel(self.address, channel_credentials(certificate), options=options)
                if certificate
                else grpc.insecure_channel(self.address, options=options)
            )
        if old is not None:
            old.close()

    def closed_error(self) -> UnavailableError:
        """The error for a call on a channel that all users have closed; gRPC raises a ValueError."""
        return UnavailableError(f"the connection to {self.address} was closed")

    def proof(self, identity: ServerIdentity, method: Method[Any, Any], request: bytes | None = None) -> Proof:
        """The proof of a new call; with `request` if the call sends a single one."""
        digest = () if request is None else (request_digest(request),)
        return self.caller.proof(identity.token, method.path, identity.instance, *digest)

    # ---- the server's identity

    def _identify(self, wait: float) -> ServerIdentity:
        """The server's identity; sends a Hello if it is not known yet.

        Raises:
            UnavailableError: the server cannot be reached, or does not authenticate itself.
            PermissionDeniedError: the server rejects the token.
            FailedPreconditionError: the address belongs to another program, or to another version of dsnb.
        """
        known = self._identity
        if known is not None:
            return known
        forks.check_grpc()
        if not self._hello_lock.acquire(timeout=wait):
            raise UnavailableError(f"no server has answered at {self.address} yet")
        try:
            if self._identity is None:
                self._identity = self._hello(wait)
                self._hello_timeout_s, self._unanswered_since, self._refused_since = _HELLO_TIMEOUT_S, None, None
                self._reason = ""
            return self._identity
        finally:
            self._hello_lock.release()

    def _hello(self, wait: float) -> ServerIdentity:
        # Looked up again for each attempt: the service may just have started, or restarted with another token.
        token = self._given_token if self._given_token is not None else discovery.token_for(self.address)
        self._connect(token)
        proof = self.caller.proof(token, HELLO.path, "", request_digest(b"")) if token else None
        self._unanswered_since = self._unanswered_since or time.monotonic()
        try:
            stub = self.stub(HELLO.kind, HELLO.path)
            with call_failpoint(HELLO.path):
                most = min(wait, self._hello_timeout_s)
                reply, call = stub.with_call(b"", timeout=most, metadata=call_metadata(proof))
        except ValueError as error:
            raise self.closed_error() from error
        except grpc.RpcError as error:
            waited = time.monotonic() - self._unanswered_since
            raise self._hello_error(error, waited, cut_short=wait < self._hello_timeout_s) from None
        if proof is None or not self.caller.accepts(proof, call.initial_metadata()):
            raise self._unproven_error("")
        proof.signer(to_server=False).check(reply)
        self.token = token
        return ServerIdentity(token, proof.instance)

    def _hello_error(self, error: Any, waited: float, *, cut_short: bool) -> DsnbError:
        """The error for a Hello that failed.

        Args:
            error: What gRPC raised.
            waited: Seconds without a successful Hello.
            cut_short: Whether this one had less time than usual, because the caller's time was nearly over.
        """
        stated = error_from_call(error, self.address)
        refused = self._tls_refusal(error, stated)
        if refused is not None or not _is_transport_error(error, stated):
            stated = refused or stated
            if self.token and not refused:  # another server answers at the address of the one that was authenticated
                return self._unproven_error(stated.what)
            self._refused_since = self._refused_since or time.monotonic()
            if self._given_token is not None or time.monotonic() - self._refused_since > _TOKEN_GRACE_S:
                return stated
            return UnavailableError(stated.what, did=stated.did, hint=stated.hint)
        self._refused_since = None
        if isinstance(stated, DeadlineExceededError):
            self._hello_timeout_s *= 2  # the server may be slow
        details = str(error.details())
        # Keep the earlier reason if this Hello only timed out because it had less time than usual.
        if not (cut_short and self._reason and isinstance(stated, DeadlineExceededError)):
            self._reason = next((words for sign, words in _REASON_TEXTS.items() if sign in details), "no answer")
        if not self.token:
            if _ANOTHER_PROGRAM in details:
                return self._other_program_error()
            self._announce_wait(waited)
        return UnavailableError(f"no server answers at {self.address} ({self._reason})")

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
        if discovery.connection_at(self.address) is None:  # else the address is right and the service is busy
            # Not `warnings.warn`: a filter may turn that into an error, and a client may start before its service.
            text = (
                f"dsnb: no server answers at {self.address} yet ({self._reason}); still trying ({_services_hint()})\n"
            )
            sys.stderr.write(text)
            sys.stderr.flush()

    def call_error(self, error: Any, identity: ServerIdentity, proof: Proof) -> DsnbError:
        """The error of a failed call, if it comes from the connection or the proven server; else `_unproven_error`."""
        stated = error_from_call(error, self.address)
        refused = self._tls_refusal(error, stated)
        if refused is not None:
            self.forget_identity(identity)
            return refused if self._given_token and not self._instance else UnavailableError(refused.what)
        proven = self.caller.accepts(proof, error.initial_metadata())
        if proven:
            self.token = identity.token
        return stated if proven or _is_transport_error(error, stated) else self.forget_identity(identity, stated.what)

    def _tls_refusal(self, error: Any, stated: DsnbError) -> PermissionDeniedError | None:
        """Why this end and the server cannot agree on TLS or on the certificate; None if that is not the cause."""
        if not _is_transport_error(error, stated):
            return None
        return tls_refusal(str(error.details()), self.address, encrypted=bool(self._certificate))

    def forget_identity(self, identity: ServerIdentity, server_message: str = "") -> UnavailableError:
        """Forget the identity of a server that failed to prove it; the next call then sends a Hello."""
        if self._identity is identity and not self._instance:
            self._identity = None
        return self._unproven_error(server_message)

    def _unproven_error(self, server_message: str) -> UnavailableError:
        says = f"; it says: {server_message}" if server_message else ""
        return UnavailableError(
            f"the process that answers at {self.address} could not prove that it is the expected server{says}",
            did="its answer was dropped",
            hint="the server has ended and another program has its port, or it was started again with another token",
        )

    def _stalled_error(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"the server at {self.address} takes and sends nothing",
            did=f"the transfer was given up after {_TRANSFER_STALL_S:g} seconds",
            hint="does a long-running cell block it, or is its process suspended? Try again when it answers",
        )

    def _unreachable_error(self, timeout: float) -> UnavailableError:
        reason = f" ({self._reason})" if self._reason else ""
        return UnavailableError(
            f"no server answers at {self.address}{reason}",
            did=f"tried for {timeout:g} seconds",
            hint=f"{_files_hint()}check the address; `dsnb status` lists the services of this user. Is the "
            "service running, or does a long-running cell block it?",
        )


def _lacks_proof(error: Any) -> bool:
    """Whether the start of an answer is missing: gRPC stops receiving at the deadline, and may have only its end."""
    return not error.initial_metadata()


def _files_hint() -> str:
    return f"{open_files_text()}: a connection may need more; " if nearly_out_of_files() else ""


class Stream(Generic[Reply]):
    """A streaming call in progress. One thread iterates over its replies; any thread may `cancel` it.

    Until the server has authenticated itself, only the first request is sent, and no reply is returned. Errors are
    `DsnbError`s.
    """

    def __init__(
        self,
        channel: Channel,
        method: Method[Any, Reply],
        requests: Any,
        timeout: float | None,
        identity: ServerIdentity,
        on_proof: Callable[[], object] | None = None,
    ) -> None:
        streams = method.kind.startswith("stream")
        data = None if streams else _within_limit(encode(requests), method)
        self._channel = channel
        self._method = method
        self._identity = identity
        self._on_proof = on_proof
        self._proof = channel.proof(identity, method, data)
        self._signer = None if method.bulk else self._proof.signer(to_server=False)
        self._settled = threading.Event()
        self._proven = False
        # A single reply is also read as a stream: only then gRPC gives access to the initial metadata before it.
        stub = channel.stub("stream_stream" if streams else "unary_stream", method.path)
        try:
            self._call = stub(
                self._signed_requests(iter(requests)) if data is None else data,
                timeout=timeout,
                metadata=call_metadata(self._proof),
            )
        except ValueError as error:
            raise channel.closed_error() from error

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        try:
            if not self._proven:
                self._prove()
            data = next(self._call)
        except grpc.RpcError as error:
            self._settled.set()
            stated = self._channel.call_error(error, self._identity, self._proof)
            raise stated from stated.__cause__
        except BaseException:  # StopIteration too
            self._settled.set()
            raise
        try:
            return _decode_reply(self._method, data if self._signer is None else self._signer.check(data))
        except DataLossError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End the call, if it has not ended yet."""
        self._settled.set()
        self._call.cancel()

    def _prove(self) -> None:
        """Wait for the server's proof; raises the call's error if it has none."""
        if self._channel.caller.accepts(self._proof, self._call.initial_metadata()):
            self._channel.token = self._identity.token
            self._proven = True
            self._settled.set()
            if self._on_proof is not None:
                self._on_proof()
            return
        # Without a proof the call was probably refused: the reason is in the trailing metadata, at the end of the call.
        with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
            self._call.exception(timeout=_REFUSAL_TIMEOUT_S)
        if self._call.done():
            next(self._call, None)  # raises the reason
        self.cancel()
        raise self._channel.forget_identity(self._identity)

    def _signed_requests(self, requests: Iterator[Any]) -> Iterator[bytes]:
        """Sign requests for sending. Runs in a gRPC thread."""
        signer = self._proof.signer(to_server=True)
        for number, request in enumerate(requests):
            if number:  # the first request is needed to start the call; later ones wait for the server's proof
                self._settled.wait()
                if not self._proven:
                    return
            yield signer.sign(_within_limit(encode(request), self._method))


def _within_limit(data: bytes, method: Method[Any, Any]) -> bytes:
    """Return the encoded request unchanged if a server accepts its size.

    Raises:
        InvalidArgumentError: the request is too large.
    """
    if len(data) + TAG_BYTES > MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(
            f"a {method.name} request has {len(data):,} bytes, and a server takes {MAX_MESSAGE_BYTES:,}",
            did="it was not sent",
            hint="keep names, positions and specifications small; large data go into the pipeline's elements",
        )
    return data


def _decode_reply(method: Method[Any, Reply], data: bytes) -> Reply:
    return data if method.reply is bytes else decode(method.reply, data)  # type: ignore[return-value]  # Reply is bytes


def _is_transport_error(error: Any, decoded: DsnbError) -> bool:
    """Whether an error may come from the connection rather than from the server."""
    if any(key == ERROR_METADATA_KEY for key, _ in error.trailing_metadata() or ()):
        return False
    return isinstance(decoded, UnavailableError | CancelledError | DeadlineExceededError)


_REASON_TEXTS = {
    "Connection refused": "connection refused",
    "Domain name not found": "there is no host of that name",
    "Socket closed": "the connection is closed at once",
}
"""Parts of gRPC's error details, and the reason to report for each."""
_ANOTHER_PROGRAM = "Failed parsing HTTP/2"


def _services_hint() -> str:
    """A list of this user's running services, for error hints."""
    try:
        found = discovery.running()
    except OSError:
        found = []
    return "services of yours here: " + (", ".join(f"{c.name} ({c.target})" for c in found) or "none")


_lock = threading.RLock()  # reentrant: an iterator garbage-collected inside open_channel closes its channel
_channels: dict[ChannelKey, Channel] = {}


def open_channel(target: str, token: str | None, instance: str = "") -> Channel:
    """Return this process's channel to a server; opens one if there is none.

    Args:
        target: The server's address, as "host:port" or "grpc://host:port".
        token: The token that the server must prove to know; None to look it up by address before each Hello.
        instance: The server's expected instance id; empty to accept any server that knows the token.

    Raises:
        InvalidArgumentError: the token is empty.
        FailedPreconditionError: the process was forked from one that had channels or servers.
    """
    given = None if token is None else check_token(token, "the token")
    return _acquire_channel((target_address(target), given, instance))


def open_channels() -> list[Channel]:
    """The channels of this process that are open now."""
    with _lock:
        return list(_channels.values())


def _acquire_channel(key: ChannelKey) -> Channel:
    forks.prepare_for_grpc()
    with _lock:
        channel = _channels.get(key)
        if channel is not None:
            channel.users += 1
            return channel
        channel = _channels[key] = Channel(key)
        return channel


class ChannelCache:
    """Keeps channels open between uses as long as this object lives, because connecting takes longer than most calls.

    An idle channel releases its socket after a while (`grpc.client_idle_timeout_ms`).
    """

    def __init__(self) -> None:
        self._channels: dict[ChannelKey, Channel] = {}
        weakref.finalize(self, _close_all, self._channels)

    def retain(self, keys: Iterable[ChannelKey]) -> None:
        """Keep exactly the channels with these keys open; close the others."""
        wanted = set(keys)
        with _lock:
            for key in wanted - self._channels.keys():
                self._channels[key] = _acquire_channel(key)
            for key in self._channels.keys() - wanted:
                self._channels.pop(key).close()


def _close_all(kept: dict[ChannelKey, Channel]) -> None:
    while kept:
        kept.popitem()[1].close()
