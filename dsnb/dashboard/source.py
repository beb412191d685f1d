"""Where a feed's snapshots come from: the stream that a service publishes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from dsnb.dashboard.controls import Reach, Requests
from dsnb.dashboard.feed import Source
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.watch import watch_snapshots
from dsnb.wire.discovery import locate

INTERVAL_S = 0.5


def source_for(service: str | None = None, token: str | None = None) -> Source:
    """The snapshots of one service.

    Args:
        service: Its name or address; the only one that runs if left out.
        token: Its token; found by the address if left out.

    Returns:
        What a `Feed` follows. The service is looked up anew each time, so one that came back elsewhere is found.
    """

    def watch(stop: threading.Event) -> Iterator[Snapshot]:
        target, secret = _reach(service, token)
        yield from watch_snapshots(target, secret, INTERVAL_S, stop)

    return watch


def reach_of(service: str | None = None, token: str | None = None) -> Reach:
    """Where a service is and its token, looked up anew for each request; the arguments are those of `source_for`."""
    return lambda: _reach(service, token)


_shared: dict[str, Requests] = {}
_shared_lock = threading.Lock()


def shared_requests(name: str, reach: Reach) -> Requests:
    """The process's requests of the service of that name: what is pressed in one tab shows in all."""
    with _shared_lock:
        return _shared.setdefault(name, Requests(reach))


def _reach(service: str | None, token: str | None) -> tuple[str, str | None]:
    """The target and token of a service, by name, address or as the only one there is."""
    found = locate(service)
    return found.target, token if token is not None else found.token or None
