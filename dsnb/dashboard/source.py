"""Where a feed gets its snapshots: the stream that a service publishes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from dsnb.dashboard.control_requests import AddressLookup, RequestRunner
from dsnb.dashboard.feed import SnapshotStream
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.watch import watch_snapshots
from dsnb.wire.discovery import resolve

INTERVAL_S = 0.5


def snapshot_stream(service: str | None = None, token: str | None = None) -> SnapshotStream:
    """The snapshots of one service.

    Args:
        service: The service's name or address; None for the only one that runs.
        token: The service's token; None to look it up by address.

    Returns:
        A stream for a `Feed`. Each new stream looks the service up again, so that a service that moved is found.
    """

    def watch(stop: threading.Event) -> Iterator[Snapshot]:
        target, secret = _find_address(service, token)
        yield from watch_snapshots(target, secret, INTERVAL_S, stop)

    return watch


def address_lookup(service: str | None = None, token: str | None = None) -> AddressLookup:
    """A function that looks up a service's address and token; the arguments are those of `snapshot_stream`."""
    return lambda: _find_address(service, token)


_shared: dict[str, RequestRunner] = {}
_shared_lock = threading.Lock()


def shared_request_runner(name: str, look_up_address: AddressLookup) -> RequestRunner:
    """The process's only request runner for the service of that name, so that all tabs show the same requests."""
    with _shared_lock:
        return _shared.setdefault(name, RequestRunner(look_up_address))


def _find_address(service: str | None, token: str | None) -> tuple[str, str | None]:
    """The target and token of a service, given by name or address, or the only one that runs."""
    found = resolve(service)
    return found.target, token if token is not None else found.token or None
