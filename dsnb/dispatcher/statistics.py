"""Totals for each job of what workers and clients reported: the part of a status that is not in the state.

When a task or client is gone, its last report is added to its job's totals, so counters never decrease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from dsnb.wire.field_groups import CacheCounters
from dsnb.wire.messages import ClientOrigin, ClientReport, StageReport, TaskReport, WorkerReport

_MAX_LISTED_CLIENTS = 16
"""How many clients without a trainer id stay listed after they left; each epoch of a plain loop is such a client."""


class TrainerTotals(msgspec.Struct):
    """Totals of one trainer over clients and tasks that are gone."""

    elements: int = 0
    wait_ns: int = 0
    decode_ns: int = 0
    convert_ns: int = 0
    active_ns: int = 0
    lost: int = 0
    lost_parts: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0
    origin: ClientOrigin | None = None
    """Where its last client ran."""

    def add_client(self, report: ClientReport) -> None:
        self.elements += report.elements
        self.wait_ns += report.wait_ns
        self.decode_ns += report.decode_ns
        self.convert_ns += report.convert_ns
        self.active_ns += report.active_ns
        self.lost += report.lost
        self.lost_parts += report.lost_parts
        self.origin = report.origin or self.origin

    def add_cache_counters(self, reports: Iterable[CacheCounters]) -> None:
        for report in reports:
            self.hits += report.hits
            self.misses += report.misses
            self.skipped += report.skipped
            self.spilled += report.spilled


class ArchivedTotals(msgspec.Struct, frozen=True):
    """The totals that are kept of an archived job."""

    produced: int = 0
    consumed: int = 0


class JobTotals(msgspec.Struct):
    """Totals of a job over tasks and clients that are gone, and the last reports of those that are present."""

    produced: int = 0
    unlisted_consumed: int = 0
    """How many elements were consumed by clients without a trainer id that are no longer listed."""
    trainers: dict[str, TrainerTotals] = msgspec.field(default_factory=dict)
    stages: dict[tuple[int, int, str], StageReport] = msgspec.field(default_factory=dict)
    """Totals of the stages of tasks that are gone, by index in the pipeline, depth and name."""
    tasks: dict[str, TaskReport] = msgspec.field(default_factory=dict)
    first_indices: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of the first element that each task's current worker produces; earlier workers produced the rest."""
    incarnations: dict[str, int] = msgspec.field(default_factory=dict)
    """The incarnation of each task whose reports count."""
    clients: dict[str, tuple[str, ClientReport]] = msgspec.field(default_factory=dict)
    skipping_trainers: set[str] = msgspec.field(default_factory=set)
    """Trainers that have skipped elements."""
    evictions: dict[str, str] = msgspec.field(default_factory=dict)
    """Who evicted each trainer; until a client joins under its id, because workers keep elements for it again then."""
    former_clients: deque[str] = msgspec.field(default_factory=deque)
    """Listed clients without a trainer id that left, the newest last."""

    def all_produced(self) -> int:
        """How many elements all tasks produced, including tasks that are gone."""
        return self.produced + sum(map(self.produced_by, self.tasks.values()))

    def produced_by(self, task: TaskReport) -> int:
        """How many elements a task's current worker produced."""
        return max(0, task.head - self.first_indices.get(task.task_id, 0))

    def is_current(self, task: TaskReport) -> bool:
        """Whether a report is not of an earlier incarnation than the one that was registered last."""
        return task.incarnation >= self.incarnations.get(task.task_id, 0)

    def archived(self) -> ArchivedTotals:
        """What is kept of a job that has no task and no client."""
        consumed = self.unlisted_consumed + sum(trainer.elements for trainer in self.trainers.values())
        return ArchivedTotals(self.produced, consumed)

    def newly_skipping(self, task: TaskReport) -> list[str]:
        """The trainers that have skipped elements of a task and had skipped none of the job before."""
        new = [t.trainer_id for t in task.trainers if t.skipped and t.trainer_id not in self.skipping_trainers]
        self.skipping_trainers.update(new)
        return new

    def origins(self) -> Iterator[ClientOrigin]:
        """Where the clients run, and where the last clients of the trainers ran."""
        known = [*(report.origin for _, report in self.clients.values()), *(t.origin for t in self.trainers.values())]
        return (origin for origin in known if origin is not None)

    def trainer(self, trainer_id: str) -> TrainerTotals:
        return self.trainers.setdefault(trainer_id, TrainerTotals())

    def trainer_ids(self) -> list[str]:
        """All trainers, in the order in which they joined; a client without a trainer id counts under its client id."""
        reading = [trainer_id for trainer_id, _ in self.clients.values()]
        in_tasks = [t.trainer_id for task in self.tasks.values() for t in task.trainers if t.trainer_id]
        return list(dict.fromkeys([*self.trainers, *in_tasks, *reading]))


class WorkerTotals(msgspec.Struct):
    """What the tasks of one worker have done since it joined, including tasks that are gone."""

    produced: int = 0
    sent_elements: int = 0
    sent_bytes: int = 0
    busy_ns: int = 0
    errors: int = 0

    def add_progress(self, before: TaskReport, now: TaskReport) -> None:
        """Add what a task has done between two of its reports."""
        self.produced += max(0, now.head - before.head)
        self.sent_elements += max(0, now.sent_elements - before.sent_elements)
        self.sent_bytes += max(0, now.sent_bytes - before.sent_bytes)
        self.busy_ns += max(0, _busy_ns(now) - _busy_ns(before))
        self.errors += max(0, now.errors - before.errors)


class Statistics:
    """Reports and totals of all jobs of one service. Not thread-safe: used under the dispatcher's lock."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerReport] = {}
        self._worker_totals: dict[str, WorkerTotals] = {}
        self._jobs: dict[str, JobTotals] = {}
        self._archived: dict[str, ArchivedTotals] = {}
        self._job_of_task: dict[str, str] = {}

    def job(self, name: str) -> JobTotals:
        if name not in self._jobs:
            before = self._archived.pop(name, ArchivedTotals())
            self._jobs[name] = JobTotals(produced=before.produced, unlisted_consumed=before.consumed)
        return self._jobs[name]

    def debug_state(self) -> dict[str, list[str]]:
        """The names of the jobs and the ids of the tasks that are counted."""
        return {"jobs": [*self._jobs], "tasks": [*self._job_of_task]}

    def archive(self, name: str) -> None:
        """Keep only the totals of a job that has no task and no client."""
        if name in self._jobs:
            self._archived[name] = self._jobs.pop(name).archived()

    def archived_totals(self, name: str) -> ArchivedTotals:
        """The totals of a job that has no task and no client, archived or not; zeros if there are none."""
        if name in self._jobs:
            return self._jobs[name].archived()
        return self._archived.get(name, ArchivedTotals())

    def was_read(self, name: str) -> bool:
        """Whether a job has had a reader since the dispatcher started, and is not archived."""
        return name in self._jobs and bool(self._jobs[name].trainer_ids())

    def forget_archived(self, name: str) -> None:
        """Drop the totals of an archived job."""
        self._archived.pop(name, None)

    def register_task(self, task_id: str, job: str, first_index: int = 0, incarnation: int = 0) -> None:
        """Set the job that a task belongs to, and the number of the first element that its worker produces.

        What was reported last of an earlier incarnation of the task is added to the totals of the job.
        """
        known = self.job(job).tasks.get(task_id)
        if known is not None and known.incarnation < incarnation:
            self.task_gone(task_id)
        self._job_of_task[task_id] = job
        self.job(job).first_indices[task_id] = first_index
        self.job(job).incarnations[task_id] = incarnation

    def worker_reported(
        self, report: WorkerReport, superseded: Callable[[TaskReport], bool] = lambda _task: False
    ) -> list[tuple[str, str]]:
        """Store a worker's report; returns (job, trainer id) of each trainer that has begun to skip elements.

        Args:
            report: The report.
            superseded: Returns whether a task was taken off the worker before the report arrived, and no other worker
                has been registered for it yet. What a worker says of a task that was taken off it does not count for
                the job: another worker continues after an earlier report, and sends, or counts, the same elements
                again.
        """
        self._add_progress(report)
        self.workers[report.uid] = report
        skipping = []
        for task in report.tasks:
            job = self._job_of_task.get(task.task_id)
            if job is not None and self.job(job).is_current(task) and not superseded(task):
                self.job(job).tasks[task.task_id] = task
                skipping += [(job, trainer_id) for trainer_id in self.job(job).newly_skipping(task)]
                if task.state == "dropped":
                    self.task_gone(task.task_id)
        return skipping

    def _add_progress(self, report: WorkerReport) -> None:
        totals = self._worker_totals.setdefault(report.uid, WorkerTotals())
        before = {task.task_id: task for task in self.workers[report.uid].tasks} if report.uid in self.workers else {}
        for task in report.tasks:
            # A worker that takes a task over begins behind the elements that others have produced.
            first = TaskReport(task_id=task.task_id, head=self._first_index(task.task_id))
            totals.add_progress(before.get(task.task_id, first), task)

    def _first_index(self, task_id: str) -> int:
        job = self._job_of_task.get(task_id)
        return self.job(job).first_indices.get(task_id, 0) if job is not None else 0

    def worker_totals(self, uid: str) -> WorkerTotals:
        """What a worker's tasks have done; zeros if it has not reported yet."""
        return self._worker_totals.get(uid, WorkerTotals())

    def worker_gone(self, uid: str) -> None:
        """Add the last reports of a worker's tasks to the totals, because the worker will not report again."""
        report = self.workers.pop(uid, None)
        self._worker_totals.pop(uid, None)
        for task in report.tasks if report else ():
            self.task_gone(task.task_id)

    def last_produced(self, uid: str) -> str:
        """The last element of each task in a worker's last report, as the end of a sentence; empty if there is none."""
        report = self.workers.get(uid)
        positions = [
            f"element {task.head - 1:,} of job {self._job_of_task[task.task_id]!r}"
            for task in (report.tasks if report else ())
            if task.head and task.task_id in self._job_of_task
        ]
        return f"; the last that it reported was {', '.join(positions)}" if positions else ""

    def task_gone(self, task_id: str) -> None:
        """Add a task's last report to its job's totals."""
        job = self._job_of_task.pop(task_id, None)
        if job is None:
            return
        totals = self.job(job)
        report = totals.tasks.pop(task_id, None)
        if report is None:
            return
        totals.produced += totals.produced_by(report)
        totals.first_indices.pop(task_id, None)
        totals.incarnations.pop(task_id, None)
        for trainer in report.trainers:
            if trainer.trainer_id:
                totals.trainer(trainer.trainer_id).add_cache_counters([trainer])
        for key, stage in _keyed_stages(report):
            # Buffers and threads are gone with the stage; its counters stay in the totals.
            totals.stages[key] = _sum_stages(
                [totals.stages.get(key), replace(stage, buffered=0, capacity=0, threads=0)]
            )

    def client_joined(self, client_id: str, job: str, trainer_id: str) -> None:
        self.job(job).clients[client_id] = (trainer_id or client_id, ClientReport(client_id=client_id))
        self.job(job).evictions.pop(trainer_id, None)

    def client_reported(self, report: ClientReport, job: str) -> None:
        clients = self.job(job).clients
        if report.client_id in clients:
            clients[report.client_id] = (clients[report.client_id][0], report)

    def retain_only(self, jobs: Collection[str], clients: Collection[str]) -> None:
        """Drop all jobs except these, and add all clients except these to their trainers' totals."""
        for name in self._jobs.keys() - jobs:
            del self._jobs[name]
            for task_id in [task for task, job in self._job_of_task.items() if job == name]:
                del self._job_of_task[task_id]
        for totals in self._jobs.values():
            for client_id in totals.clients.keys() - clients:
                trainer_id, report = totals.clients.pop(client_id)
                totals.trainer(trainer_id).add_client(report)
                if trainer_id == client_id:
                    totals.former_clients.append(client_id)
            while len(totals.former_clients) > _MAX_LISTED_CLIENTS:
                totals.unlisted_consumed += totals.trainers.pop(totals.former_clients.popleft()).elements


def _busy_ns(task: TaskReport) -> int:
    return sum(stage.busy_ns for stage in task.stages)


def stages_of(totals: JobTotals) -> list[StageReport]:
    """A job's stages, added up over its tasks, with the last operation first."""
    reports: dict[tuple[int, int, str], list[StageReport]] = {}
    for task in totals.tasks.values():
        for key, stage in _keyed_stages(task):
            reports.setdefault(key, []).append(stage)
    if not reports:
        return [totals.stages[key] for key in sorted(totals.stages)]
    return [_sum_stages([*stages, totals.stages.get(key)]) for key, stages in sorted(reports.items())]


def _keyed_stages(task: TaskReport) -> Iterator[tuple[tuple[int, int, str], StageReport]]:
    """Each stage with a unique key: two stages may have the same name, such as the sides of `zip(ds, ds)`."""
    for index, stage in enumerate(task.stages):
        yield (index, stage.depth, stage.name), stage


def _sum_stages(reports: Iterable[StageReport | None]) -> StageReport:
    there = [report for report in reports if report is not None]
    return StageReport(
        name=there[0].name,
        depth=there[0].depth,
        elements=sum([r.elements for r in there]),
        busy_ns=sum([r.busy_ns for r in there]),
        wait_ns=sum([r.wait_ns for r in there]),
        buffered=sum([r.buffered for r in there]),
        capacity=sum([r.capacity for r in there]),
        threads=sum([r.threads for r in there]),
    )
