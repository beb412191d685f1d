"""Programs that stand where a service is expected: one that pretends to be it, and one that passes calls on."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import grpc

from tests.support.proxy import Proxy

Shown = list[tuple[str, Any]]
"""What a caller shows."""


class Recorder(Proxy):
    """A TCP connection that is listened in on: passes bytes on, and keeps them."""

    def __init__(self, upstream: str) -> None:
        self.heard = bytearray()
        super().__init__()
        host, _, port = upstream.rpartition(":")
        self.upstream = (host, int(port))

    def _on_data(self, data: bytes) -> None:
        self.heard += data


class Place:
    """A gRPC server on a given port that takes every call, whatever its method."""

    def __init__(self, port: int = 0) -> None:
        self._server = grpc.server(_Threads(), options=[("grpc.so_reuseport", 0)])  # type: ignore[arg-type]
        self._server.add_generic_rpc_handlers((_All(self._take),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.paths: list[str] = []
        self.shown = bytearray()
        """All metadata and messages that callers sent, each after the other."""
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.stop(0).wait(10)

    def _take(self, path: str, shown: Shown, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.paths.append(path)
        for key, value in shown:
            self.shown += key.encode() + (value if isinstance(value, bytes) else value.encode())
        yield from self.answer(path, shown, requests, context)

    def answer(self, path: str, shown: Shown, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        raise NotImplementedError


class Impostor(Place):
    """Answers each call as if it were the service.

    Args:
        port: Of the service that is gone.
        replies: Gives the messages to answer a method with; the stream stays open after them.
        metadata: Gives the initial metadata to answer with, from what the caller showed.
    """

    def __init__(
        self,
        port: int,
        replies: Callable[[str], list[bytes]],
        metadata: Callable[[Shown], Any] = lambda shown: (),
    ) -> None:
        self._replies = replies
        self._metadata = metadata
        super().__init__(port)

    def answer(self, path: str, shown: Shown, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        came = threading.Event()
        threading.Thread(target=self._listen, args=(requests, came), daemon=True).start()
        came.wait(5.0)  # it is patient, and takes what a caller sends before it has seen a proof
        context.send_initial_metadata(self._metadata(shown))
        yield from self._replies(path)
        if path.endswith(("Session", "Follow", "Read", "Watch")):
            over = threading.Event()
            context.add_callback(over.set)
            over.wait(60)

    def _listen(self, requests: Iterator[bytes], came: threading.Event) -> None:
        with suppress(Exception):
            for request in requests:
                self.shown += request
                came.set()


class Relay(Place):
    """Passes each call on to a service, and may change what comes back.

    Args:
        upstream: Where the service is.
        port: Where it is expected.
        change: Gets the method's name, the number of a reply and the reply, and gives what the caller gets.
        change_request: The same for requests.
    """

    def __init__(
        self,
        upstream: str,
        port: int = 0,
        change: Callable[[str, int, bytes], bytes] = lambda name, number, data: data,
        change_request: Callable[[str, int, bytes], bytes] = lambda name, number, data: data,
    ) -> None:
        self.calls: list[tuple[str, Shown, list[bytes]]] = []
        """Path, metadata and messages of each call, to be made again."""
        self._change, self._change_request = change, change_request
        self._channel: Any = grpc.insecure_channel(upstream, options=[("grpc.use_local_subchannel_pool", 1)])
        super().__init__(port)

    def close(self) -> None:
        super().close()
        self._channel.close()

    def answer(self, path: str, shown: Shown, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        sent: list[bytes] = []
        self.calls.append((path, shown, sent))
        name = path.rpartition("/")[2]

        def passed_on() -> Iterator[bytes]:
            with suppress(Exception):
                for number, request in enumerate(requests):
                    sent.append(request)
                    self.shown += request
                    yield self._change_request(name, number, request)

        call = self._channel.stream_stream(path)(passed_on(), metadata=shown)
        context.add_callback(call.cancel)
        try:
            context.send_initial_metadata(_ours(call.initial_metadata()))
            for number, reply in enumerate(call):
                self.shown += reply
                yield self._change(name, number, reply)
        except grpc.RpcError as error:
            context.set_trailing_metadata(_ours(error.trailing_metadata()))  # type: ignore[attr-defined]
            context.abort(error.code(), error.details())  # type: ignore[attr-defined]


def _ours(metadata: Any) -> Shown:
    return [(key, value) for key, value in metadata or () if key.startswith("dsnb")]


class _All(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, take: Callable[..., Iterator[bytes]]) -> None:
        self._take = take

    def service(self, details: Any) -> Any:
        shown = _ours(details.invocation_metadata)

        def handle(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            return self._take(details.method, shown, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)


class _Threads:
    """A thread for each call, so that streams that stay open keep no other waiting."""

    def submit(self, function: Any, *arguments: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments))
            except Exception as error:  # noqa: BLE001 - for who waits
                future.set_exception(error)

        threading.Thread(target=run, name="test-between", daemon=True).start()
        return future


def traces_of(token: str, heard: bytes | bytearray) -> list[str]:
    """In which forms a token can be found in what was recorded."""
    plain = token.encode()
    forms = {"plain": plain, "reversed": plain[::-1], "hex": plain.hex().encode(), "UTF-16": token.encode("utf-16-le")}
    for shift in range(3):  # wherever it stands in what was encoded
        encoded = base64.b64encode(b"x" * shift + plain + b"x" * 3)
        forms[f"base64 from {shift}"] = encoded[4:-8]
    found = [name for name, form in forms.items() if form in heard or form.upper() in heard]
    return found + [f"its half {half!r}" for half in (plain[:12], plain[12:]) if half in heard and not found]
