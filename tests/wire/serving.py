"""Real servers with small handlers, and channels to them, that are surely ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from dsnb.errors import DsnbError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.grpc_errors import error_from_call
from dsnb.wire.methods import HELLO, Method
from dsnb.wire.security import Caller, Guard, Proof, call_metadata, request_digest
from dsnb.wire.server import GrpcServer, Handlers

TOKEN = "a-token-of-the-tests"


def address(server: GrpcServer) -> str:
    return f"127.0.0.1:{server.port}"


@contextmanager
def serving(handlers: Handlers, *, port: int = 0, name: str = "test", instance: str = "") -> Iterator[GrpcServer]:
    """A server on loopback for as long as the `with` block runs; of that instance, if callers know it by one."""
    server = GrpcServer(name, handlers, Guard(TOKEN, instance))
    server.start("127.0.0.1", port)
    try:
        yield server
    finally:
        server.stop(0)


@contextmanager
def channel_to(target: str, token: str = TOKEN) -> Iterator[Channel]:
    """A channel for as long as the `with` block runs."""
    channel = open_channel(target, token)
    try:
        yield channel
    finally:
        channel.close()


@contextmanager
def connected(handlers: Handlers) -> Iterator[Channel]:
    """A channel to a server of these handlers."""
    with serving(handlers) as server, channel_to(address(server)) as channel:
        yield channel


@contextmanager
def port_of_nobody() -> Iterator[int]:
    """A port that is held, and on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class BareCaller:
    """Calls a server by gRPC alone, so that a test can send what dsnb's own client would not.

    Args:
        target: The server.
        token: What it proves to know.

    Example:
        >>> with BareCaller(address(server)) as caller:
        ...     proof = caller.proof(FORGET, b"")
        ...     caller.send(FORGET, b"", shown_by_caller(proof))
    """

    def __init__(self, target: str, token: str = TOKEN) -> None:
        self.target = target
        self.token = token
        self.caller = Caller()
        self.channel: Any = grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)])
        self.instance = ""

    def __enter__(self) -> BareCaller:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def hello(self) -> str:
        """Say Hello; the instance that answers."""
        proof = self.caller.proof(self.token, HELLO.path, "", request_digest(b""))
        _, call = self.channel.unary_unary(HELLO.path).with_call(b"", metadata=call_metadata(proof), timeout=10)
        assert self.caller.accepts(proof, call.initial_metadata())
        self.instance = proof.instance
        return self.instance

    def proof(self, method: Method[Any, Any], request: bytes | None = None) -> Proof:
        """The proof of a call; with the request where that is a single one."""
        digest = () if request is None else (request_digest(request),)
        return self.caller.proof(self.token, method.path, self.instance or self.hello(), *digest)

    def send(self, method: Method[Any, Any], data: bytes | list[bytes], shown: Any) -> list[bytes]:
        """Make a call with these messages and metadata; its replies as they came.

        Raises:
            DsnbError: what the server said.
        """
        kind = "stream_stream" if isinstance(data, list) else "unary_stream"
        stub = getattr(self.channel, kind)(method.path)
        try:
            return list(stub(iter(data) if isinstance(data, list) else data, metadata=shown, timeout=20))
        except grpc.RpcError as failed:
            raise error_from_call(failed, self.target) from None


def refusal_of(caller: BareCaller, method: Method[Any, Any], data: bytes | list[bytes], shown: Any) -> DsnbError:
    """The error with which a call is refused."""
    try:
        replies = caller.send(method, data, shown)
    except DsnbError as error:
        return error
    raise AssertionError(f"{method.name} was answered with {replies}")
