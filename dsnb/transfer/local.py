"""Transfer within one process: clients call the worker, and frames are passed by reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from dsnb.transfer.protocol import LinkStats, ReadHandle, Sink, TaskServer, Transfer
from dsnb.wire.messages import ReadRequest

LOCAL: Final = Transfer(name="local")

_lock = threading.Lock()
_workers: dict[str, TaskServer] = {}


class LocalEndpoint:
    """A worker of this process.

    Args:
        worker: The worker.
    """

    transfer = LOCAL

    def __init__(self, worker: TaskServer) -> None:
        self._worker = worker

    def open(self, request: ReadRequest, sink: Sink) -> ReadHandle:
        sink.accepted()
        return self._worker.open(request, sink, LinkStats(transfer=LOCAL.name, reason=request.why))


def offer(worker_uid: str, worker: TaskServer) -> None:
    """Register a worker of this process, so that clients in this process find it."""
    with _lock:
        _workers[worker_uid] = worker


def withdraw(worker_uid: str) -> None:
    """Unregister a worker; does nothing if it is not registered."""
    with _lock:
        _workers.pop(worker_uid, None)


def find(worker_uid: str) -> TaskServer | None:
    """The worker with that uid; None if it does not run in this process."""
    with _lock:
        return _workers.get(worker_uid)


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
