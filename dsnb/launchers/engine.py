"""What the launchers of engines share: importing an engine, its error texts, and the addresses of its nodes."""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Iterable
from typing import Any

from dsnb.arguments import integer, short_repr, text
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.wire.addresses import is_loopback

_TEXT_LENGTH = 600
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)", re.IGNORECASE)


def connect_engine(module: str, extra: str) -> Any:
    """Import an engine.

    Raises:
        FailedPreconditionError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise FailedPreconditionError(
            f"{module} cannot be imported ({error})", did="nothing was started", hint=f"pip install 'dsnb[{extra}]'"
        ) from None


def engine_text(error: BaseException) -> str:
    """An engine's error on one line, at most 600 characters."""
    return " ".join(str(error).split())[:_TEXT_LENGTH] or type(error).__name__


def check_reachable(engine: str, addresses: Iterable[str], host: str) -> None:
    """Refuse an engine with nodes on other hosts if the service listens on loopback.

    Args:
        engine: The name of the engine.
        addresses: The IP addresses or names of its nodes.
        host: The host on which the service is going to listen.

    Raises:
        FailedPreconditionError: nodes on other hosts could not reach the service.
    """
    others = sorted({address for address in addresses if not _is_own(address)})
    if others and is_loopback(host):
        raise FailedPreconditionError(
            f"{engine} has nodes on other hosts ({', '.join(others)}), and the service would listen on {host} only",
            did="nothing was started",
            hint='pass host="auto": dsnb then listens on an address that other hosts reach, with TLS',
        )


def _is_own(address: str) -> bool:
    """Whether this host has an address: only then can a socket be bound to it."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def resource_bytes(name: str, value: Any) -> int:
    """Check an argument that must be a number of bytes, or a text such as "4GiB"; returns the bytes."""
    if not isinstance(value, str):
        return int(integer(1, hint='pass bytes, as in 4 * 2**30 or "4GiB"')(name, value))
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise InvalidArgumentError(f"`{name}` is {short_repr(value)}", hint='pass bytes, as in 4 * 2**30 or "4GiB"')
    return int(float(match[1]) * _UNITS[match[2].upper()])


def string_table(name: str, value: Any) -> dict[str, str]:
    """Check an argument that must be a dict from str to str; returns a copy."""
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"`{name}` is {short_repr(value)}", hint='pass a dict, as in {"pool": "cpu"}')
    return {text(name, key): text(name, one) for key, one in value.items()}
