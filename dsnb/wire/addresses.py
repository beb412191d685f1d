"""Parses, checks and finds targets ("grpc://host:port"), addresses ("host:port"), hosts and ports."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from dsnb.arguments import port, short_repr, text
from dsnb.errors import InvalidArgumentError, NotFoundError
from dsnb.wire.security import check_token

AUTO: Final = "auto"
"""As a host to listen on: the address of this machine on the route to the dispatcher, or else on the default route."""
_ANY_OTHER_MACHINE: Final = "192.0.2.1:9"  # an address for documentation (RFC 5737): no machine has it


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


def listen_host(name: str, value: Any) -> str:
    """Check an argument that must be an address to listen on: an IP address, "localhost" or "auto"; returns it.

    Raises:
        InvalidArgumentError: the value is something else.
    """
    host = text(name, value)
    try:
        if host not in {"localhost", AUTO}:
            ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise InvalidArgumentError(
            f"`{name}`: {short_repr(host)} is not an IP address",
            hint='use "127.0.0.1" for this machine only, or "auto" for the address that other machines reach',
        ) from None
    return host


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host: an IP address, or a name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether listening on a host means to listen on all addresses of this machine."""
    return host.strip("[]") in {"0.0.0.0", "::"}  # noqa: S104 - a comparison


def host_of(address: str) -> str:
    """The host of an address "host:port", without brackets."""
    return address.rpartition(":")[0].strip("[]")


def routing_host(toward: str = "") -> str:
    """The address of this machine from which packets to another machine leave.

    Args:
        toward: The other machine's "host:port"; by default, any machine outside: the address of the default route.

    Returns:
        An IP address; loopback if there is no route or no host of that name.

    Example:
        >>> routing_host("127.0.0.1:5050")
        '127.0.0.1'
    """
    for family, kind, _, _, there in _resolved(toward or _ANY_OTHER_MACHINE):
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(there)  # of a datagram socket: chooses the route, and sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def _resolved(address: str) -> list[Any]:
    try:
        return socket.getaddrinfo(host_of(address), address.rpartition(":")[2], type=socket.SOCK_DGRAM)
    except OSError:
        return []


def reachable_host(host: str, toward: str = "") -> str:
    """The address at which other machines reach a server that listens on `host`.

    Args:
        host: What `listen_host` returned: an IP address, "localhost" or "auto".
        toward: The address of a machine that needs to reach it; empty for the address of the default route.
    """
    return routing_host(toward) if host == AUTO or is_wildcard(host) else host


def advertised_address(name: str, value: Any) -> str:
    """Check an address that others use: "host:port", where the port may be "%port%"; returns it."""
    given = text(name, value)
    target_address(given.replace("%port%", "1"), name)
    return given


def ports(name: str, value: Any) -> int | str:
    """Check an argument that must be a port, 0 for a free one, or a range of ports to choose from.

    Args:
        name: The name of the user's argument.
        value: A number, a `range`, or text such as "5100-5200".

    Returns:
        The number, or the range as "first-last".

    Raises:
        InvalidArgumentError: the value is something else.
    """
    if isinstance(value, range):
        first, last = value.start, value.stop - 1
        if value.step != 1:
            raise _ports_error(name, value)
    elif isinstance(value, str):
        begin, _, end = value.partition("-")
        if not (begin.isascii() and begin.isdigit() and end.isascii() and end.isdigit()):
            raise _ports_error(name, value)
        first, last = int(begin), int(end)
    else:
        number: int = port(name, value)
        return number
    if not 0 < first <= last < 65536:
        raise _ports_error(name, value)
    return f"{first}-{last}"


def _ports_error(name: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`{name}`: {short_repr(value)} is not a range of ports",
        hint='pass a port, 0 for a free one, range(5100, 5201), or "5100-5200"',
    )


def port_numbers(given: int | str) -> Sequence[int]:
    """The ports that a value of `ports` stands for, to be tried in this order.

    Example:
        >>> list(port_numbers("5100-5102")), list(port_numbers(0))
        ([5100, 5101, 5102], [0])
    """
    if isinstance(given, int):
        return (given,)
    first, _, last = given.partition("-")
    return range(int(first), int(last) + 1)


def token(name: str, value: Any) -> str:
    """Check an argument that must be a token; returns it stripped. Errors never contain the token."""
    return check_token(value, f"`{name}`")
