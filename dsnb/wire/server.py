"""A gRPC server: unshared ports, authenticated calls, structured errors, threads on demand.

gRPC asks `_Router` for the handler of each call, on its polling thread and before it reads any message. A caller whose
metadata do not prove that it knows the token is refused there. Such a caller costs no memory beyond the flow-control
window of its connection, and a thread only for the moment in which the refusal is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import grpc

from dsnb.errors import AlreadyExistsError, DsnbError, FailedPreconditionError
from dsnb.system_limits import check_files
from dsnb.wire import forks
from dsnb.wire.addresses import format_address, port_numbers
from dsnb.wire.certificates import server_credentials
from dsnb.wire.codec import decode, encode
from dsnb.wire.grpc_errors import abort, abort_unexpected
from dsnb.wire.messages import Empty
from dsnb.wire.methods import HELLO, MAX_MESSAGE_BYTES, Method, answer_failpoint
from dsnb.wire.security import Guard, Metadata, Proof, Refusal, altered_message_error, request_digest
from dsnb.wire.threads import OnDemandExecutor

Request = TypeVar("Request")
Handler = Callable[[Any, grpc.ServicerContext], Any]
Handlers = Mapping[Method[Any, Any], Handler]

_OPTIONS = (
    (
        "grpc.so_reuseport",
        0,
    ),  # else a second server can bind the port too, and the kernel splits the connections
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # Bounds on the memory that unauthenticated callers can use: pending calls, each with its metadata and the start of
    # a message. Calls beyond the limit are rejected, and clients retry them. Larger messages are still possible: the
    # rest is requested once the message is read. BDP probes are off because they would let a caller enlarge the
    # flow-control windows just by sending much.
    ("grpc.max_metadata_size", 2 << 10),
    ("grpc.absolute_max_metadata_size", 4 << 10),
    ("grpc.server.max_pending_requests", 256),
    ("grpc.server.max_pending_requests_hard_limit", 512),
    ("grpc.http2.lookahead_bytes", 16 << 10),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


_LOCAL_PEERS: Final = ("ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]", "unix:")

_MAX_REFUSALS: Final = 32
"""Refusals sent at the same time. Each uses a thread for a moment; further ones are rejected without a reason."""


class GrpcServer:
    """Serves a table of methods on one port.

    Args:
        name: Used in thread names and errors, as in "dispatcher".
        handlers: The function that answers each method; streaming ones are generators.
        token: The token that callers must prove to know, or the guard that checks their proofs.
    """

    def __init__(self, name: str, handlers: Handlers, token: str | Guard) -> None:
        forks.prepare_for_grpc()
        self._name = name
        self._executor = OnDemandExecutor(f"dsnb-{name}")
        # Any executor works; the type stubs accept the standard library's only.
        self._server = grpc.server(
            self._executor,  # type: ignore[arg-type]
            options=_OPTIONS,
        )
        guard = token if isinstance(token, Guard) else Guard(token)
        self._server.add_generic_rpc_handlers((_Router(handlers, guard),))
        self.port = 0
        self._start_lock = threading.Lock()
        self._stopped = False

    def start(self, host: str, ports: int | str, certificate: str = "") -> None:
        """Listen on an address; `self.port` is the port that was chosen.

        Args:
            host: The address.
            ports: A port, 0 for a free one, or a range as in "5100-5200", whose first free port is taken.
            certificate: The certificate that callers must present too, with its key; empty for plain connections.

        Raises:
            AlreadyExistsError: the port is taken, or not permitted.
        """
        try:
            # On another thread: KeyboardInterrupt can occur between any two lines of the main thread only, and gRPC
            # would wait for ever for the end of a server that was only half started.
            self._executor.submit(self._bind_and_start, host, ports, certificate).result()
        except BaseException:
            self.stop(0)
            raise

    def _bind_and_start(self, host: str, ports: int | str, certificate: str) -> None:
        with self._start_lock:
            if self._stopped:  # the caller of `start` was interrupted
                return
            bound = (self._bind(format_address(host, port), certificate) for port in port_numbers(ports))
            self.port = next(filter(None, bound), 0)
            if not self.port:
                check_files()  # raises if open files ran out; gRPC reports no reason
                raise AlreadyExistsError(
                    f"the {self._name} cannot listen on {format_address(host, ports)}: "
                    "the port is taken or not permitted",
                    did="nothing was started",
                    hint="leave the port out (a free one is chosen), or stop what listens there",
                )
            forks.register_port(self.port)
            self._server.start()

    def _bind(self, address: str, certificate: str) -> int:
        """Bind a port; returns its number, 0 if it is taken or not permitted."""
        try:
            if certificate:
                return self._server.add_secure_port(address, server_credentials(certificate))
            return self._server.add_insecure_port(address)
        except RuntimeError:
            return 0

    def stop(self, grace: float) -> None:
        """Accept no more calls, wait `grace` seconds for the running ones, then cancel those."""
        with self._start_lock:
            self._stopped = True
        self._server.stop(grace).wait(grace + 5.0)
        self._executor.shutdown()


def until_broken(requests: Iterator[Request]) -> Iterator[Request]:
    """Iterate over a caller's stream until it ends or breaks; gRPC raises a bare Exception when it breaks."""
    while True:
        try:
            request = next(requests)
        except Exception:  # noqa: BLE001 - StopIteration too
            return
        yield request


def is_local_peer(peer: str) -> bool:
    """Whether a caller is on this host, by what `ServicerContext.peer` returns."""
    return peer.startswith(_LOCAL_PEERS)


class _Router(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Finds the handler of each call; refuses calls whose metadata do not prove that the caller knows the token."""

    def __init__(self, handlers: Handlers, guard: Guard) -> None:
        self._guard = guard
        self._handlers = {method.path: (method, handler) for method, handler in handlers.items()}
        if guard.hello_path:
            self._handlers[guard.hello_path] = HELLO, lambda _request, _context: Empty()
        self._refusal_slots = threading.BoundedSemaphore(_MAX_REFUSALS)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method
        found = self._handlers.get(path)
        try:
            proof, answer = self._guard.admit(path, dict(handler_call_details.invocation_metadata))
            if found is None:
                raise Refusal(_unknown_call_error(path), answer)
        except Refusal as refusal:
            return self._refuse(refusal) if found is not None or refusal.initial_metadata else None
        method, handler = found
        make = getattr(grpc, f"{method.kind}_rpc_method_handler")
        call = _Call(method, handler, proof, answer)
        made: grpc.RpcMethodHandler[Any, Any] = make(call.stream if method.kind.endswith("stream") else call.unary)
        return made

    def _refuse(self, refusal: Refusal) -> grpc.RpcMethodHandler[Any, Any] | None:
        if not self._refusal_slots.acquire(blocking=False):
            return None  # gRPC answers UNIMPLEMENTED, without a thread

        def refuse(_requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            try:
                if refusal.initial_metadata:
                    context.send_initial_metadata(refusal.initial_metadata)
                abort(context, refusal.error)
            finally:
                self._refusal_slots.release()
            raise AssertionError

        # Always stream_unary, whatever the method's kind: gRPC then reads no request message before it runs `refuse`.
        return grpc.stream_unary_rpc_method_handler(refuse)


class _Call:
    """One admitted call: decodes and checks its requests, runs the handler, encodes and signs its replies."""

    def __init__(self, method: Method[Any, Any], handler: Handler, proof: Proof, answer: Metadata) -> None:
        self._method = method
        self._handler = handler
        self._proof = proof
        self._answer = answer
        self._signer = None if method.bulk else proof.signer(to_server=False)

    def unary(self, request: Any, context: grpc.ServicerContext) -> bytes:
        """Handle a call that has one reply."""
        try:
            context.send_initial_metadata(self._answer)
            with answer_failpoint(self._method.path):
                return self._encode_reply(self._handler(self._decode_request(request), context))
        except Exception as error:  # any error must reach the caller
            _abort_call(context, error, self._method.name)
            raise

    def stream(self, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Handle a call that has a stream of replies."""
        try:
            context.send_initial_metadata(self._answer)
            for reply in self._handler(self._decode_request(request), context):
                yield self._encode_reply(reply)
        except Exception as error:  # any error must reach the caller
            _abort_call(context, error, self._method.name)
            raise

    def _decode_request(self, request: Any) -> Any:
        """The request, or the iterator of requests, for the handler."""
        if self._method.kind.startswith("stream"):
            signer = self._proof.signer(to_server=True)
            return (decode(self._method.request, signer.check(each)) for each in request)
        if request_digest(request) != self._proof.digest:
            raise altered_message_error()
        return decode(self._method.request, request)

    def _encode_reply(self, reply: Any) -> bytes:
        data: bytes = reply if self._method.reply is bytes else encode(reply)
        return data if self._signer is None else self._signer.sign(data)


def _unknown_call_error(path: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"the server does not know this call, {path.rpartition('/')[2][:40]}",
        did="nothing was changed",
        hint="it is a worker where a dispatcher is meant, or another version of dsnb: check the address, or upgrade",
    )


def _abort_call(context: grpc.ServicerContext, error: Exception, name: str) -> None:
    """Send an error to the caller. Does nothing if the call is over, which gRPC reports to handlers as an exception."""
    if isinstance(error, DsnbError):
        abort(context, error)
    elif context.is_active():
        abort_unexpected(context, error, name)
