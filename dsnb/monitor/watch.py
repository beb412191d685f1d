"""Watching a service from another process or thread: single snapshots, and a stream of them that can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from dsnb.monitor.receipt import Receipt
from dsnb.monitor.snapshot import Snapshot
from dsnb.wire.channel import open_channel
from dsnb.wire.codec import decode
from dsnb.wire.messages import Empty, ReceiptRequest, WatchRequest
from dsnb.wire.methods import RECEIPT, STATUS, WATCH
from dsnb.wire.stopped_services import refuse_stopped


def fetch_snapshot(target: str, token: str | None, timeout: float = 5.0) -> Snapshot:
    """Get a snapshot of the service.

    Raises:
        UnavailableError: the service does not answer.
        PermissionDeniedError: the token is missing or wrong.
    """
    refuse_stopped(target)
    channel = open_channel(target, token)
    try:
        return decode(Snapshot, channel.call(STATUS, Empty(), timeout=timeout))
    finally:
        channel.close()


def fetch_receipt(target: str, token: str | None, job_name: str, epoch: int = 0, timeout: float = 5.0) -> Receipt:
    """Get the receipt of an epoch of a job, counted from 1; 0 for the newest.

    Raises:
        NotFoundError: there is no such job or epoch.
        UnavailableError: the service does not answer.
        PermissionDeniedError: the token is missing or wrong.
    """
    refuse_stopped(target)
    channel = open_channel(target, token)
    try:
        return decode(Receipt, channel.call(RECEIPT, ReceiptRequest(job_name=job_name, epoch=epoch), timeout=timeout))
    finally:
        channel.close()


def watch_snapshots(target: str, token: str | None, interval_s: float, stop: threading.Event) -> Iterator[Snapshot]:
    """Yield a snapshot about every `interval_s` seconds, until `stop` is set or the iterator is dropped.

    Raises:
        UnavailableError: the connection broke, or the service does not answer.
        PermissionDeniedError: the token is missing or wrong.
    """
    channel = open_channel(target, token)
    replies = channel.replies(WATCH, WatchRequest(interval_ms=int(1000 * interval_s)))
    try:
        for data in replies:
            if stop.is_set():
                return
            yield decode(Snapshot, data)
    finally:
        replies.close()
        channel.close()
