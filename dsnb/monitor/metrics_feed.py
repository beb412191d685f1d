"""Metrics of one service over time: each text continues the counters of the one before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dsnb.monitor.demand import job_demands, workers_needed
from dsnb.monitor.metrics import CounterHistory, follow, metrics_text, without_decreases
from dsnb.monitor.rates import same_run
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import MIN_SPAN_S, Verdict, verdicts

VERDICT_SPAN_S = 5.0
"""How often the verdicts are made again, in seconds: often enough for an alert, and seldom enough to cost little."""


class MetricsFeed:
    """Makes metrics of a service's snapshots; it remembers what a single snapshot does not have.

    Counters do not decrease when a task ends or a job is forgotten. Verdicts compare the snapshots of two calls.
    May be used from any thread.

    Args:
        fetch_snapshot: Returns the present snapshot.
        max_age_s: A text that is not older than this is returned again, which limits the cost of frequent calls.
        verdict_span_s: The least time between two snapshots that the verdicts compare, at least a second.
    """

    def __init__(
        self,
        fetch_snapshot: Callable[[], Snapshot],
        *,
        max_age_s: float = 0.0,
        verdict_span_s: float = VERDICT_SPAN_S,
    ) -> None:
        self._fetch_snapshot, self._max_age_s = fetch_snapshot, max_age_s
        self._verdict_span_s = max(MIN_SPAN_S, verdict_span_s)
        self._lock = threading.Lock()
        self._counters: CounterHistory | None = None
        self._compared: Snapshot | None = None
        self._verdicts: tuple[Verdict, ...] = ()
        self._workers_wanted: int | None = None
        self._text = ""
        self._made_at = float("-inf")

    def text(self) -> str:
        """The present metrics.

        Raises:
            Exception: what fetching the snapshot raised.
        """
        with self._lock:
            if time.monotonic() - self._made_at > self._max_age_s:
                snapshot = self._fetch_snapshot()
                self._text = self._make_text(snapshot)
                self._made_at = time.monotonic()
            return self._text

    def _make_text(self, snapshot: Snapshot) -> str:
        self._counters = follow(self._counters, snapshot)
        self._update_verdicts(snapshot)
        return metrics_text(
            without_decreases(self._counters, snapshot), self._verdicts, self._workers_wanted_in(snapshot)
        )

    def _workers_wanted_in(self, snapshot: Snapshot) -> int | None:
        """What autoscaling decided, if it is on; else what the last comparison of two snapshots found."""
        return snapshot.autoscale.wanted if snapshot.autoscale is not None else self._workers_wanted

    def _update_verdicts(self, snapshot: Snapshot) -> None:
        """Compare with the snapshot that was compared last, once that is old enough; until then the verdicts stay."""
        before = self._compared
        if before is None or not same_run(before, snapshot):
            self._compared, self._verdicts, self._workers_wanted = snapshot, (), None
        elif snapshot.time - before.time >= self._verdict_span_s:
            self._workers_wanted = workers_needed(job_demands(before, snapshot))
            self._compared, self._verdicts = snapshot, verdicts(before, snapshot)
