"""Measures what the jobs of a worker use of its processors, and paces those that exceed their shares.

The decisions are made in `processor_shares`; this file reads threads and processors, and keeps the paces.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Protocol
from weakref import WeakValueDictionary

from msgspec.structs import replace

from dsnb.processes import idle_ns
from dsnb.wire.messages import TaskOrder
from dsnb.worker.host import LatencyProbe, thread_times
from dsnb.worker.processor_shares import MIN_INTERVAL_S, JobPace, JobUse, ProcessorShares

TASK_THREAD_PREFIX = "dsnb-task-"
"""How the names of a task's threads begin, before its id and, for all but the producer, a hyphen."""
_PROBES = 4


class PacedTask(Protocol):
    """What is needed of a task."""

    order: TaskOrder

    @property
    def producing(self) -> bool:
        """Whether its pipeline runs, or is held back."""
        ...

    @property
    def produced(self) -> int:
        """How many elements it has produced."""
        ...

    @property
    def held_back_ns(self) -> int:
        """For how long its pace held it back."""
        ...


class FairShares:
    """The paces of a worker's jobs. `pace` may be called by any thread, `update` by one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: WeakValueDictionary[str, JobPace] = WeakValueDictionary()  # kept alive by the tasks
        self._core = ProcessorShares()
        self._probe = LatencyProbe()
        self._measured_at: float | None = None
        self._totals: dict[str, JobUse] = {}
        """What each job has used since the measurements began."""
        self._threads: dict[int, tuple[int, int]] = {}
        """How long each thread had run and waited at the last update, by its id."""
        self._idle_ns = self._late_ns = 0

    def pace(self, job: str) -> JobPace:
        """The pace of a job, which all of its tasks share."""
        with self._lock:
            return self._paces.setdefault(job, JobPace())

    def update(self, tasks: Iterable[PacedTask], now: float) -> None:
        """Measure what was used since the last update, and set the paces. Does nothing if that was a moment ago.

        Args:
            tasks: All tasks of the worker.
            now: Seconds of a monotonic clock.
        """
        if self._measured_at is not None and now - self._measured_at < MIN_INTERVAL_S:
            return
        producing = [task for task in tasks if task.producing]
        if len({task.order.job_name for task in producing}) < 2:
            self._stop_measuring(now)
            return
        previous, began = self._totals, self._measured_at
        idle_before, late_before = self._idle_ns, self._late_ns
        self._measure(producing, now)
        if began is None:
            return  # the next update knows what was used since this one
        uses = {job: _difference(total, previous.get(job, total)) for job, total in self._totals.items()}
        seconds = now - began
        rates = self._core.update(
            uses,
            seconds,
            idle=(self._idle_ns - idle_before) / 1e9 / seconds,
            gil_wait=(self._late_ns - late_before) / 1e9 / _PROBES / sys.getswitchinterval(),
        )
        self._set_paces(rates, now)

    def _stop_measuring(self, now: float) -> None:
        if self._measured_at is not None:
            self._core, self._measured_at, self._totals, self._threads = ProcessorShares(), None, {}, {}
        self._set_paces({}, now)

    def _set_paces(self, rates: Mapping[str, float | None], now: float) -> None:
        with self._lock:
            for job, pace in self._paces.items():
                pace.change(rates.get(job), now)

    def _measure(self, tasks: list[PacedTask], now: float) -> None:
        """Bring the totals up to date."""
        jobs = {f"{TASK_THREAD_PREFIX}{task.order.task_id}": task.order.job_name for task in tasks}
        used = self._used_by_job(jobs, int(1e9 * (now - (self._measured_at or now))))
        totals: dict[str, JobUse] = {}
        for task in tasks:
            job = task.order.job_name
            total = totals.get(job) or JobUse(
                weight=task.order.weight or 1.0, ran_ns=used[job][0], wanted_ns=used[job][1]
            )
            totals[job] = replace(
                total,
                elements=total.elements + task.produced,
                held_back_ns=total.held_back_ns + task.held_back_ns,
            )
        for _ in range(_PROBES):
            self._probe.measure()
        self._totals, self._measured_at = totals, now
        self._idle_ns, self._late_ns = idle_ns(), self._probe.late_ns

    def _used_by_job(self, jobs: Mapping[str, str], interval_ns: int) -> dict[str, list[int]]:
        """How long the threads of each job ran since the measurements began, and would have run without waiting.

        Args:
            jobs: The job of each task, by the name of its producer's thread.
            interval_ns: The time since the last update.
        """
        before = {job: (total.ran_ns, total.wanted_ns) for job, total in self._totals.items()}
        used = {job: [*before.get(job, (0, 0))] for job in jobs.values()}
        threads: dict[int, tuple[int, int]] = {}
        for thread in threading.enumerate():
            job = jobs.get("-".join(thread.name.split("-", 3)[:3]))
            times = thread_times(thread.native_id) if job is not None and thread.native_id is not None else None
            if job is None or times is None or thread.native_id is None:
                continue
            threads[thread.native_id] = times
            known = self._threads.get(thread.native_id, (0, 0))
            ran, queued = times[0] - known[0], times[1] - known[1]
            used[job][0] += ran
            used[job][1] += int(ran * interval_ns / max(interval_ns - queued, ran, 1))
        self._threads = threads
        return used


def _difference(after: JobUse, before: JobUse) -> JobUse:
    """What was used between two totals. Counts of tasks that are gone since are missing in `after`."""
    return JobUse(
        weight=after.weight,
        ran_ns=after.ran_ns - before.ran_ns,
        wanted_ns=after.wanted_ns - before.wanted_ns,
        held_back_ns=max(0, after.held_back_ns - before.held_back_ns),
        elements=max(0, after.elements - before.elements),
    )
