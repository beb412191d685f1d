"""A gRPC server with our habits: no shared ports, a token, errors as pages, threads on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import grpc

from dsnb.errors import AlreadyExistsError, DsnbError
from dsnb.limits import check_files
from dsnb.wire import forks
from dsnb.wire.addresses import address_of, loopback
from dsnb.wire.codec import decoder, encode
from dsnb.wire.methods import Method
from dsnb.wire.security import Guard
from dsnb.wire.status import abort, abort_unexpected
from dsnb.wire.threads import OnDemandExecutor

Request = TypeVar("Request")
Handlers = Mapping[Method[Any, Any], Callable[[Any, grpc.ServicerContext], Any]]

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server on a taken port starts, and the kernel deals out connections
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class GrpcServer:
    """Serves a table of methods on one port.

    Args:
        name: For threads and errors, as in "dispatcher".
        handlers: What answers each method; streaming ones are generators.
        token: What callers must show.
    """

    def __init__(self, name: str, handlers: Handlers, token: str) -> None:
        forks.uses_grpc()
        self._name = name
        self._executor = OnDemandExecutor(f"dsnb-{name}")
        # Any executor serves; the stubs know the standard library's only.
        self._server = grpc.server(
            self._executor,  # type: ignore[arg-type]
            options=_OPTIONS,
            interceptors=[Guard(token)],
        )
        for method, handler in handlers.items():
            generic = grpc.method_handlers_generic_handler(method.service, {method.name: _adapted(method, handler)})
            self._server.add_generic_rpc_handlers((generic,))
        self.port = 0
        self._beginning = threading.Lock()
        self._stopped = False

    def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            AlreadyExistsError: something listens there already.
        """
        loopback("host", host)
        try:
            # Ctrl-C may strike between any two lines of the main thread, and no other; gRPC waits for ever for the end
            # of a server that was half begun.
            self._executor.submit(self._begin, host, port).result()
        except BaseException:
            self.stop(0)
            raise

    def _begin(self, host: str, port: int) -> None:
        with self._beginning:
            if self._stopped:  # nobody waits for it any more
                return
            try:
                self.port = self._server.add_insecure_port(address_of(host, port))
            except RuntimeError as error:
                check_files()  # gRPC does not say why
                raise AlreadyExistsError(
                    f"the {self._name} cannot listen on {address_of(host, port)}: the port is taken or not permitted",
                    did="nothing was started",
                    hint="leave the port out (a free one is chosen), or stop what listens there",
                ) from error
            forks.listens(self.port)
            self._server.start()

    def stop(self, grace: float) -> None:
        """Take no more calls, wait `grace` seconds for those that run, then end them."""
        with self._beginning:
            self._stopped = True
        self._server.stop(grace).wait(grace + 5.0)
        self._executor.shutdown()


def until_broken(requests: Iterator[Request]) -> Iterator[Request]:
    """What a caller's stream sends, to its end or its break: gRPC raises a bare Exception when it breaks."""
    while True:
        try:
            request = next(requests)
        except Exception:  # noqa: BLE001 - StopIteration is among them
            return
        yield request


def _adapted(method: Method[Any, Any], handler: Callable[[Any, grpc.ServicerContext], Any]) -> Any:
    make = getattr(grpc, f"{method.kind}_rpc_method_handler")
    serialise = None if method.reply is bytes else encode
    guard = _guarded_stream if method.kind.endswith("stream") else _guarded
    return make(
        guard(handler, method.name), request_deserializer=decoder(method.request), response_serializer=serialise
    )


def _guarded(
    handler: Callable[[Any, grpc.ServicerContext], Any], name: str
) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return handler(request, context)
        except Exception as error:  # the caller must learn of whatever happened
            _give_up(context, error, name)
            raise

    return call


def _guarded_stream(
    handler: Callable[[Any, grpc.ServicerContext], Iterator[Any]], name: str
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from handler(request, context)
        except Exception as error:  # the caller must learn of whatever happened
            _give_up(context, error, name)
            raise

    return call


def _give_up(context: grpc.ServicerContext, error: Exception, name: str) -> None:
    """Tell the caller of an error; does nothing where the call is over, which gRPC tells handlers by exceptions."""
    if isinstance(error, DsnbError):
        abort(context, error)
    elif context.is_active():
        abort_unexpected(context, error, name)
