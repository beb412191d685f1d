"""How many workers the jobs of a service need, from two snapshots.

Each job needs as many workers as make what its readers would consume if they never waited. A worker's own rate is what
it produces while it works: what all workers of a job produce, divided by the share of the time that they work.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from dsnb.monitor.evidence import Evidence
from dsnb.monitor.rates import Rates, rates
from dsnb.monitor.snapshot import JobStatus, Snapshot
from dsnb.monitor.verdict import Verdict, verdicts

_DATA_LOSS_CAUSES = ("window", "loss")
"""Causes of verdicts on lost elements; each job may have one on its speed in addition."""
ACCEPTED_WAIT_SHARE = 0.05
"""Readers that wait for this share of their time, and no more, need no more workers."""


class JobDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What one job needs between two snapshots.

    Attributes:
        job: The name of the job.
        demand: Elements per second that its readers would consume if they never waited.
        consumed: Elements per second that they consume.
        worker_rate: Elements per second of one worker that never waits; 0 if unknown.
        wait_share: The share of its time that the reader that waits most spends waiting.
        verdict: What limits the job; None if it was not read long enough.
    """

    job: str
    demand: float
    consumed: float
    worker_rate: float
    wait_share: float
    verdict: Verdict | None = None

    @property
    def workers(self) -> float:
        """How many workers make the whole demand; 0 if the rate of one is unknown."""
        return self.demand / self.worker_rate if self.worker_rate else 0.0

    @property
    def waits(self) -> bool:
        """Whether a reader waits longer than is accepted."""
        return self.wait_share > ACCEPTED_WAIT_SHARE


def job_demands(before: Snapshot, after: Snapshot) -> list[JobDemand]:
    """What each job needs that was read throughout the time between two snapshots."""
    between = rates(before, after)
    if not between.span_s:
        return []
    causes: dict[str, Verdict] = {}
    for verdict in verdicts(before, after):
        if verdict.cause not in _DATA_LOSS_CAUSES:
            causes.setdefault(verdict.job, verdict)
    found = []
    for job in after.jobs:
        was = before.job(job.name)
        if was is not None and was.clients and job.clients and job.state == "running" and not job.paused_by:
            evidence = Evidence(job_before=was, job=job, snapshot=after, rates=between)
            found.append(_job_demand(evidence, causes.get(job.name)))
    return found


def _job_demand(evidence: Evidence, verdict: Verdict | None) -> JobDemand:
    shares = [evidence.trainer_rates(trainer).wait_share or 0.0 for trainer in evidence.job.trainers]
    working = evidence.busy * len(evidence.workers)
    return JobDemand(
        job=evidence.job.name,
        demand=_demand(evidence.job, evidence.rates),
        consumed=evidence.job_rates.consumed,
        worker_rate=evidence.job_rates.produced / working if working else 0.0,
        wait_share=max(shares, default=0.0),
        verdict=verdict,
    )


def _demand(job: JobStatus, between: Rates) -> float:
    """Elements per second that a job's readers would consume if they never waited.

    It is that of the fastest if they share elements, of the slowest for each consumer if they read rounds, else the
    sum.
    """
    demands = [one.demand for one in between.job(job.name).trainers.values() if one.demand is not None]
    if not demands:
        return 0.0
    if job.rounds is not None:
        return min(demands) * len(job.rounds.consumers)
    return max(demands) if job.cached else sum(demands)


def workers_needed(demands: Sequence[JobDemand]) -> int:
    """How many workers all jobs need together, so that no reader waits longer than is accepted."""
    return ceil((1 - ACCEPTED_WAIT_SHARE) * sum(one.workers for one in demands) - 1e-9)
