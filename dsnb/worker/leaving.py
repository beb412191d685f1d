"""A worker that is to go: it takes nothing new, finishes what it has, and stops."""

from __future__ import annotations

import threading
import time
from typing import Protocol

_POLL_INTERVAL_S = 0.05


class Drainable(Protocol):
    """What can finish what it has and stop."""

    @property
    def stopped(self) -> bool:
        """Whether it has stopped."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nobody needs it any more."""
        ...

    def drain(self) -> None:
        """Take nothing new."""

    def stop(self) -> None:
        """End, whatever there is."""


def stop_when_idle(worker: Drainable) -> None:
    """Have a worker stop, in a thread, when nobody needs it any more; harmless twice."""
    worker.drain()
    threading.Thread(target=_wait_and_stop, args=(worker,), name="dsnb-leave", daemon=True).start()


def _wait_and_stop(worker: Drainable) -> None:
    while not worker.stopped and not worker.idle:
        time.sleep(_POLL_INTERVAL_S)
    worker.stop()
