"""Where a feed's snapshots come from: the stream that a service publishes."""

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
        service: Its name or address; the only one that runs if left out.
        token: Its token; found by the address if left out.

    Returns:
        What a `Feed` follows. The service is looked up anew each time, so one that came back elsewhere is found.
    """

    def watch(stop: threading.Event) -> Iterator[Snapshot]:
        target, secret = _find_address(service, token)
        yield from watch_snapshots(target, secret, INTERVAL_S, stop)

    return watch


def address_lookup(service: str | None = None, token: str | None = None) -> AddressLookup:
    """Where a service is and its token, looked up anew for each request; the arguments are those of `snapshot_stream`."""
    return lambda: _find_address(service, token)


_shared: dict[str, RequestRunner] = {}
_shared_lock = threading.Lock()


def shared_request_runner(name: str, look_up_address: AddressLookup) -> RequestRunner:
    """The process's requests of the service of that name: what is pressed in one tab shows in all."""
    with _shared_lock:
        return _shared.setdefault(name, RequestRunner(look_up_address))


def _find_address(service: str | None, token: str | None) -> tuple[str, str | None]:
    """The target and token of a service, by name, address or as the only one there is."""
    found = resolve(service)
    return found.target, token if token is not None else found.token or None
