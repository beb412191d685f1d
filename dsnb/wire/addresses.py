"""Targets and addresses, as text."""

from __future__ import annotations

from dsnb.errors import InvalidArgumentError, NotFoundError


def split_target(target: str) -> str:
    """The "host:port" of a target, whose "grpc://" may be left out; localhost is 127.0.0.1.

    What else "localhost" may mean ([::1]) can be another user's server, and must not be shown a token.

    Raises:
        NotFoundError: for another protocol (as in the tf.data service).
        InvalidArgumentError: for a missing port.
    """
    protocol, found, rest = target.rpartition("://")
    if found and protocol != "grpc":
        raise NotFoundError(
            f"the protocol {protocol!r} of {target!r} is unknown", hint='use "grpc://host:port" or just "host:port"'
        )
    host, colon, port = rest.rpartition(":")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not colon or not host or bare_ipv6 or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidArgumentError(f"{target!r} is not an address", hint='use "host:port", as in "127.0.0.1:5050"')
    return f"127.0.0.1:{port}" if host == "localhost" else rest


def address_of(host: str, port: int | str) -> str:
    """The "host:port" of a host and a port; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
