"""Hand-over inside one process: the worker's own endpoint is used, and frames pass by reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dsnb.wire.transfer.protocol import Endpoint

_lock = threading.Lock()
_endpoints: dict[str, Endpoint] = {}


def offer(worker_uid: str, endpoint: Endpoint) -> None:
    """Make a worker of this process known to its readers here."""
    with _lock:
        _endpoints[worker_uid] = endpoint


def withdraw(worker_uid: str) -> None:
    """Take a worker back; one that is not known is no error."""
    with _lock:
        _endpoints.pop(worker_uid, None)


def find(worker_uid: str) -> Endpoint | None:
    """The worker of that uid if it lives in this process."""
    with _lock:
        return _endpoints.get(worker_uid)


# ---- big captured arrays

_stores: dict[str, Callable[[str], Any]] = {}


def offer_blobs(address: str, get: Callable[[str], Any]) -> None:
    """Let workers of this process read a dispatcher's blobs in place."""
    with _lock:
        _stores[address] = get


def withdraw_blobs(address: str) -> None:
    """Take a dispatcher's blobs back."""
    with _lock:
        _stores.pop(address, None)


def find_blobs(address: str) -> Callable[[str], Any] | None:
    """What reads the blobs of the dispatcher at that address, if it lives in this process."""
    with _lock:
        return _stores.get(address)
