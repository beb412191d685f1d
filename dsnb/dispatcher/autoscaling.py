"""`Autoscaling`: a thread that gives the autoscaler a snapshot every two seconds and carries out its decisions."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from dsnb.dispatcher.autoscaler import INTERVAL_S, Autoscaler, Decision
from dsnb.dispatcher.worker_pool import WorkerPool
from dsnb.errors import DsnbError
from dsnb.monitor.snapshot import AutoscaleStatus

if TYPE_CHECKING:
    from dsnb.dispatcher.service import Dispatcher

_JOIN_S = 1.0
"""Enough for a thread that only decides; one that starts workers may take minutes, and ends after that."""


class Autoscaling:
    """Chooses the number of workers of one service until it is stopped.

    Args:
        dispatcher: The service; its snapshots are used, and the decisions become its events.
        pool: Starts and stops the workers.
        minimum: The least number of workers.
        maximum: The greatest number of workers.
    """

    def __init__(self, dispatcher: Dispatcher, pool: WorkerPool, minimum: int, maximum: int) -> None:
        self._dispatcher = dispatcher
        self._pool = pool
        self._autoscaler = Autoscaler(minimum, maximum)
        self._stopped = threading.Event()
        self._announced: dict[str, str] = {}
        """The last text of each level since the last success."""
        self._thread = threading.Thread(target=self._run, name="dsnb-autoscaling", daemon=True)
        self._thread.start()

    @property
    def status(self) -> AutoscaleStatus:
        """The limits, what the jobs need, and the last decision."""
        auto = self._autoscaler
        return AutoscaleStatus(minimum=auto.minimum, maximum=auto.maximum, wanted=auto.wanted, reason=auto.reason)

    def stop(self) -> None:
        """Make no further decisions. Workers that a decision is starting are still started. Does not wait."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the end of a decision that was being made at the time of `stop`, but not for workers."""
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            try:
                decision = self._autoscaler.decide(
                    time.monotonic(),
                    self._dispatcher.status(),
                    size=self._pool.size,
                    capacity=self._pool.capacity(),
                )
                if decision is not None and not self._stopped.is_set():
                    self._carry_out(decision)
                self._announced.clear()
            except DsnbError as error:  # a worker could not be started, or the engine is gone: decided again later
                self._announce(f"autoscaling failed: {error.what}", "warning")
            except Exception as bug:  # noqa: BLE001 - a bug of dsnb must not end autoscaling without a word
                self._dispatcher.report_bug(bug, "autoscaling")

    def _carry_out(self, decision: Decision) -> None:
        self._announce(decision.text, "info")
        if decision.workers is not None:
            self._pool.scale(decision.workers)

    def _announce(self, text: str, level: str) -> None:
        """Add to the events what is new. A failure that lasts would otherwise push out all other events."""
        if self._announced.get(level) != text:
            self._announced[level] = text
            self._dispatcher.announce(text, level)
