"""Remembers the services that were stopped in this process, so that calls to them fail at once, not by a timeout."""

from __future__ import annotations

import socket
import threading
from typing import Final

from dsnb.errors import UnavailableError
from dsnb.wire.addresses import target_address

_MAX_ENTRIES: Final = 100
_CONNECT_S: Final = 0.5

_lock = threading.Lock()
_stopped: dict[str, str] = {}
"""The names of stopped services by address, the newest last."""


def note_stopped(target: str, name: str) -> None:
    """Record that a service was stopped in this process for good."""
    with _lock:
        _stopped.pop(target_address(target), None)
        _stopped[target_address(target)] = name
        while len(_stopped) > _MAX_ENTRIES:
            del _stopped[next(iter(_stopped))]


def note_started(target: str) -> None:
    """Record that a service listens at an address again, the same one or another."""
    with _lock:
        _stopped.pop(target_address(target), None)


def refuse_stopped(target: str) -> None:
    """Refuse to call a service that was stopped in this process, unless something listens at its address again.

    Raises:
        UnavailableError: the service was stopped.
    """
    address = target_address(target)
    with _lock:
        name = _stopped.get(address)
    if name is None:
        return
    if _is_listening(address):  # another service has the port now
        note_started(target)
        return
    raise UnavailableError(
        f"the service {name!r} at {address} was stopped in this process",
        did="nothing was asked of it",
        hint="start it again (svc = dsnb.start()), and distribute datasets to the new one",
    )


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True
