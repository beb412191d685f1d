"""Transfer within one process: clients use the worker's own endpoint, and frames are passed by reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dsnb.transfer.protocol import Endpoint

_lock = threading.Lock()
_endpoints: dict[str, Endpoint] = {}


def offer(worker_uid: str, endpoint: Endpoint) -> None:
    """Register a worker of this process, so that clients in this process find it."""
    with _lock:
        _endpoints[worker_uid] = endpoint


def withdraw(worker_uid: str) -> None:
    """Unregister a worker; does nothing if it is not registered."""
    with _lock:
        _endpoints.pop(worker_uid, None)


def find(worker_uid: str) -> Endpoint | None:
    """The endpoint of the worker with that uid; None if it does not run in this process."""
    with _lock:
        return _endpoints.get(worker_uid)


# ---- big captured arrays

_stores: dict[str, Callable[[str], Any]] = {}


def offer_blobs(address: str, get: Callable[[str], Any]) -> None:
    """Register a dispatcher of this process: workers here get its blobs from `get`, by digest, without a copy."""
    with _lock:
        _stores[address] = get


def withdraw_blobs(address: str) -> None:
    """Unregister a dispatcher's blobs; does nothing if they are not registered."""
    with _lock:
        _stores.pop(address, None)


def find_blobs(address: str) -> Callable[[str], Any] | None:
    """The function that returns a dispatcher's blobs by digest; None if it does not run in this process."""
    with _lock:
        return _stores.get(address)
