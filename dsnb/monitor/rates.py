"""Rates, waiting shares and demand in the time between two snapshots.

Pure functions. Counters only grow, so a rate is a counter's increase divided by the time between the snapshots on the
dispatcher's own clock. A counter that decreased (because a task started again or a trainer joined again) is counted
from zero. Snapshots of two different runs of a service have no rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from dsnb.monitor.formatting import format_rate
from dsnb.monitor.snapshot import JobStatus, Snapshot, TaskStatus, TrainerStatus, WorkerStatus
from dsnb.wire.messages import StageReport

MAX_WAIT_SHARE = 0.75
"""Upper limit of the waiting share in the estimate of demand, which is thus at most four times the consumption: a
trainer that waits nearly all the time says little about how much it could consume."""


class TrainerRates(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer between two snapshots.

    Attributes:
        consumed: Elements per second that it consumed.
        skipped: Elements per second that it skipped.
        wait_share: Share of its time spent waiting for data; None if it did not read.
        demand: Elements per second that it would consume if it never waited; None if it did not read.
        demand_is_lower_bound: Whether it might consume more than `demand`.
        drift: How fast it falls behind, by task, in elements per second; negative while it catches up.
        decode_share: Share of its time spent building elements from received data; None if it did not read.
        convert_share: Share of its time spent on making tensors of elements and copying them to a device; None if it
            did not read.
        in_flight_share: By task, the share of its time in which it had not consumed something already sent to it.
        active_s: Seconds that it was reading between the snapshots.
    """

    consumed: float = 0.0
    skipped: float = 0.0
    wait_share: float | None = None
    demand: float | None = None
    demand_is_lower_bound: bool = False
    drift: Mapping[str, float] = msgspec.field(default_factory=dict)
    decode_share: float | None = None
    convert_share: float | None = None
    in_flight_share: Mapping[str, float] = msgspec.field(default_factory=dict)
    active_s: float = 0.0

    @property
    def own_loop_share(self) -> float | None:
        """Share of its time spent in its own loop; None if it did not read."""
        if self.wait_share is None or self.decode_share is None:
            return None
        return max(0.0, 1 - self.wait_share - self.decode_share - (self.convert_share or 0.0))


class StageRates(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline stage between two snapshots: elements per second, and seconds of work per second."""

    elements: float = 0.0
    busy: float = 0.0


class JobRates(msgspec.Struct, frozen=True, kw_only=True):
    """One job between two snapshots.

    Attributes:
        by_worker: Elements that each worker produced for it, per second.
        held_back: The share of the time for which its running tasks were held back, on average.
    """

    produced: float = 0.0
    consumed: float = 0.0
    by_worker: Mapping[str, float] = msgspec.field(default_factory=dict)
    trainers: Mapping[str, TrainerRates] = msgspec.field(default_factory=dict)
    stages: tuple[StageRates, ...] = ()
    held_back: float = 0.0

    @property
    def fastest_trainer(self) -> TrainerRates | None:
        """The trainer that would consume most if it never waited; None if no trainer reads."""
        reading = (trainer for trainer in self.trainers.values() if trainer.demand is not None)
        return max(reading, key=lambda trainer: trainer.demand or 0.0, default=None)

    @property
    def demand(self) -> float | None:
        """Elements per second that the fastest trainer would consume if it never waited; None if no trainer reads."""
        return self.fastest_trainer.demand if self.fastest_trainer else None


class WorkerRates(msgspec.Struct, frozen=True, kw_only=True):
    """One worker between two snapshots.

    Attributes:
        produced: Elements per second that it produced.
        sent_bytes: Bytes per second that it sent.
        busy: Seconds of pipeline work per second.
        late_s: The total delay, in seconds, with which a sleeping thread of it woke up too late.
        latency_samples: How often that delay was measured.
        used_cpus: CPU seconds of its process per second.
        idle_cpus: How many of the CPUs that it may use are idle; None if unknown.
    """

    produced: float = 0.0
    sent_bytes: float = 0.0
    busy: float = 0.0
    late_s: float = 0.0
    latency_samples: int = 0
    used_cpus: float = 0.0
    idle_cpus: float | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """All rates between two snapshots; `span_s` is 0 if there are none."""

    span_s: float = 0.0
    jobs: Mapping[str, JobRates] = msgspec.field(default_factory=dict)
    workers: Mapping[str, WorkerRates] = msgspec.field(default_factory=dict)

    def job(self, name: str) -> JobRates:
        """The job's rates; zeros if it has none."""
        return self.jobs.get(name, _NO_JOB)

    def worker(self, uid: str) -> WorkerRates:
        """The worker's rates; zeros if it has none."""
        return self.workers.get(uid, _NO_WORKER)


_NO_JOB = JobRates()
_NO_WORKER = WorkerRates()
_NO_TRAINER = TrainerRates()


def trainer_rates(job: JobRates, trainer_id: str) -> TrainerRates:
    """One trainer's rates; zeros if it has none."""
    return job.trainers.get(trainer_id, _NO_TRAINER)


def demand_text(trainer: TrainerRates) -> str:
    """A trainer's demand as text, such as `1,200/s or more`."""
    return (
        f"{format_rate(trainer.demand or 0.0)} or more"
        if trainer.demand_is_lower_bound
        else format_rate(trainer.demand or 0.0)
    )


def same_run(before: Snapshot, after: Snapshot) -> bool:
    """Whether both snapshots are of one run of one service."""
    return before.started == after.started and before.target == after.target


def rates(before: Snapshot, after: Snapshot) -> Rates:
    """The rates between two snapshots of one service, the older first."""
    span = after.time - before.time
    if span <= 0 or not same_run(before, after):
        return Rates()
    jobs = {job.name: job for job in before.jobs}
    workers = {worker.uid: worker for worker in before.workers}
    return Rates(
        span_s=span,
        jobs={job.name: _job(jobs.get(job.name), job, span) for job in after.jobs},
        workers={worker.uid: _worker(workers.get(worker.uid), worker, span) for worker in after.workers},
    )


def _increase(before: int, after: int) -> int:
    return after - before if after >= before else after


def _job(before: JobStatus | None, after: JobStatus, span: float) -> JobRates:
    trainers = {trainer.trainer_id: trainer for trainer in before.trainers} if before else {}
    return JobRates(
        produced=_increase(before.produced if before else 0, after.produced) / span,
        consumed=_increase(before.consumed if before else 0, after.consumed) / span,
        by_worker=_by_worker(before.tasks if before else (), after.tasks, span),
        trainers={t.trainer_id: _trainer(trainers.get(t.trainer_id), t, span) for t in after.trainers},
        stages=_stages(before.stages if before else (), after.stages, span),
        held_back=_held_back(before.tasks if before else (), after.tasks, span),
    )


def _held_back(before: tuple[TaskStatus, ...], after: tuple[TaskStatus, ...], span: float) -> float:
    known = {(task.task_id, task.incarnation): task.held_back_ns for task in before}
    running = [task for task in after if task.state == "running"]
    held = sum(_increase(known.get((task.task_id, task.incarnation), 0), task.held_back_ns) for task in running)
    return min(1.0, held / 1e9 / span / len(running)) if running else 0.0


def _by_worker(before: tuple[TaskStatus, ...], after: tuple[TaskStatus, ...], span: float) -> Mapping[str, float]:
    heads = {(task.task_id, task.incarnation): task.head for task in before}
    made: Counter[str] = Counter()
    for task in after:
        made[task.worker] += _increase(heads.get((task.task_id, task.incarnation), 0), task.head)
    return {worker: elements / span for worker, elements in made.items()}


def _trainer(before: TrainerStatus | None, after: TrainerStatus, span: float) -> TrainerRates:
    was = before or TrainerStatus(trainer_id=after.trainer_id, clients=0, elements=0)
    consumed = _increase(was.elements, after.elements) / span
    active = _increase(was.active_ns, after.active_ns)
    wait = min(1.0, _increase(was.wait_ns, after.wait_ns) / active) if active else None
    cursors = {cursor.task_id: cursor for cursor in was.cursors}
    reading = min(span, active / 1e9) or span  # it may have joined or left between the snapshots
    return TrainerRates(
        consumed=consumed,
        skipped=_increase(was.skipped, after.skipped) / span,
        wait_share=wait,
        demand=None if wait is None or not consumed else consumed / (1 - min(wait, MAX_WAIT_SHARE)),
        demand_is_lower_bound=wait is not None and wait > MAX_WAIT_SHARE,
        drift={p.task_id: (p.lag - cursors[p.task_id].lag) / span for p in after.cursors if p.task_id in cursors},
        decode_share=min(1.0, _increase(was.decode_ns, after.decode_ns) / active) if active else None,
        convert_share=min(1.0, _increase(was.convert_ns, after.convert_ns) / active) if active else None,
        in_flight_share={
            p.task_id: min(1.0, _increase(cursors[p.task_id].in_flight_ns, p.in_flight_ns) / 1e9 / reading)
            for p in after.cursors
            if p.task_id in cursors
        },
        active_s=active / 1e9,
    )


def _stages(before: tuple[StageReport, ...], after: tuple[StageReport, ...], span: float) -> tuple[StageRates, ...]:
    # Stages have no id, and two may share a name: match them by index, as long as the lists of names are equal.
    old = before if [stage.name for stage in before] == [stage.name for stage in after] else ()
    return tuple(
        StageRates(
            elements=_increase(old[at].elements if old else 0, stage.elements) / span,
            busy=_increase(old[at].busy_ns if old else 0, stage.busy_ns) / 1e9 / span,
        )
        for at, stage in enumerate(after)
    )


def _worker(before: WorkerStatus | None, after: WorkerStatus, span: float) -> WorkerRates:
    if before is not None and after.clock_ns > before.clock_ns > 0:
        span = (after.clock_ns - before.clock_ns) / 1e9  # the worker's own clock: its report is older than the snapshot
    return WorkerRates(
        produced=_increase(before.produced if before else 0, after.produced) / span,
        sent_bytes=_increase(before.sent_bytes if before else 0, after.sent_bytes) / span,
        busy=_increase(before.busy_ns if before else 0, after.busy_ns) / 1e9 / span,
        late_s=_increase(before.late_ns if before else 0, after.late_ns) / 1e9,
        latency_samples=_increase(before.latency_samples if before else 0, after.latency_samples),
        used_cpus=_increase(before.cpu_ns, after.cpu_ns) / 1e9 / span if before else 0.0,
        idle_cpus=(after.idle_ns - before.idle_ns) / 1e9 / span
        if before and after.idle_ns >= before.idle_ns > 0
        else None,
    )
