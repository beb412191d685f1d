"""A worker that is to go: it takes nothing new, finishes what it has, and stops."""

from __future__ import annotations

import threading
import time
from typing import Protocol

_LOOK_S = 0.05


class Leaver(Protocol):
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


def leave_when_idle(worker: Leaver) -> None:
    """Have a worker stop, in a thread, when nobody needs it any more; harmless twice."""
    worker.drain()
    threading.Thread(target=_see_off, args=(worker,), name="dsnb-leave", daemon=True).start()


def _see_off(worker: Leaver) -> None:
    while not worker.stopped and not worker.idle:
        time.sleep(_LOOK_S)
    worker.stop()
