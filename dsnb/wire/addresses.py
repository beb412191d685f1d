"""Parses and checks targets ("grpc://host:port") and addresses ("host:port")."""

from __future__ import annotations

import ipaddress
from typing import Any

from dsnb.arguments import short_repr, text
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.wire.security import check_token


def target_address(target: str, name: str = "") -> str:
    """The "host:port" of a target, whose "grpc://" is optional. "localhost" becomes 127.0.0.1.

    "localhost" can also mean [::1], where another user's server may listen, which must not receive proofs.

    Args:
        target: The target.
        name: The name of the user's argument, for errors.

    Raises:
        NotFoundError: the target has another protocol (the tf.data service raises this error too).
        InvalidArgumentError: the target has no port, several "://", or is not an address.
    """
    given = f"`{name}`: {target!r}" if name else repr(target)
    *protocols, rest = target.split("://")
    if len(protocols) > 1:
        raise InvalidArgumentError(f'{given} has several "://"', hint='use "grpc://host:port" or just "host:port"')
    if protocols and protocols[0] != "grpc":
        raise NotFoundError(
            f"the protocol {protocols[0]!r} of {given} is unknown", hint='use "grpc://host:port" or just "host:port"'
        )
    host, colon, port = rest.rpartition(":")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not colon or not host or bare_ipv6 or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidArgumentError(f"{given} is not an address", hint='use "host:port", as in "127.0.0.1:5050"')
    return f"127.0.0.1:{port}" if host == "localhost" else rest


def format_address(host: str, port: int | str) -> str:
    """Join a host and a port to "host:port"; an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def target(name: str, value: Any) -> str:
    """Check an argument that must be "host:port" or "grpc://host:port"; returns it unchanged."""
    given = text(name, value)
    target_address(given, name)
    return given


def loopback(name: str, value: Any) -> str:
    """Check an argument that must be a loopback address to listen on; returns it.

    Raises:
        InvalidArgumentError: the value is not an IP address.
        FailedPreconditionError: other hosts could connect to the address.
    """
    host = text(name, value)
    try:
        inside = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        raise InvalidArgumentError(
            f"`{name}`: {short_repr(host)} is not an IP address", hint='use "127.0.0.1"'
        ) from None
    if not inside:
        raise FailedPreconditionError(
            f"`{name}`: dsnb does not listen on {host}: anyone who can call a service can run code on its workers",
            did="nothing was started",
            hint="use 127.0.0.1 and a tunnel (ssh -L); listening beyond loopback comes with TLS, not there yet",
        )
    return host


def token(name: str, value: Any) -> str:
    """Check an argument that must be a token; returns it stripped. Errors never contain the token."""
    return check_token(value, f"`{name}`")
