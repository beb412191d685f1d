"""Real servers with small handlers, and channels to them, that are surely ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.server import GrpcServer, Handlers

TOKEN = "a-token-of-the-tests"


def address(server: GrpcServer) -> str:
    return f"127.0.0.1:{server.port}"


@contextmanager
def serving(handlers: Handlers, *, port: int = 0, name: str = "test") -> Iterator[GrpcServer]:
    """A server on loopback for as long as the `with` block runs."""
    server = GrpcServer(name, handlers, TOKEN)
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
