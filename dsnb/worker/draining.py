"""Removes a worker gracefully: it accepts no new work, finishes what it has, and stops."""

from __future__ import annotations

import threading
import time
from typing import Protocol

_POLL_INTERVAL_S = 0.05


class Drainable(Protocol):
    """A worker that can finish its work and stop."""

    @property
    def stopped(self) -> bool:
        """Whether the worker has stopped."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the worker has no work left."""
        ...

    def drain(self) -> None:
        """Accept no new work from now on."""

    def stop(self) -> None:
        """Stop at once, whatever work is left."""


def stop_when_idle(worker: Drainable) -> None:
    """Drain a worker, and stop it from a new thread once it is idle. A second call is harmless."""
    worker.drain()
    threading.Thread(target=_wait_and_stop, args=(worker,), name="dsnb-leave", daemon=True).start()


def _wait_and_stop(worker: Drainable) -> None:
    while not worker.stopped and not worker.idle:
        time.sleep(_POLL_INTERVAL_S)
    worker.stop()
