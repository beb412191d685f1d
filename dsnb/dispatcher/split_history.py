"""Split history: which splits were granted to which worker, and when they were finished; for the status only.

Theory of operation. The journal's records have all of this except the time, so the shell passes each record here with
the time of its commit. A task finishes its grants in the order in which it got them, and reports how many splits it has
finished in total; so a grant is done when that number has reached its end. The history is bounded: it keeps the newest
grants of each job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from dsnb.dispatcher import records as r
from dsnb.dispatcher.state import State
from dsnb.monitor.snapshot import GrantStatus
from dsnb.wire.messages import SplitGrant, SplitRange

MAX_GRANTS_PER_JOB = 120
"""How many grants of one job are kept."""
MAX_ENDED_JOBS = 16
"""How many jobs without a task keep their grants."""


class _Grant(msgspec.Struct):
    """A grant as the status shows it; the status changes when the grant is closed."""

    status: GrantStatus

    def close(self, state: str, now: float) -> None:
        self.status = replace(self.status, state=state, ended_at=now)


class _Task(msgspec.Struct):
    """A task, its open grants by provider, and how many splits of each provider it had finished before these."""

    job: str
    iteration: int
    worker: str
    open_grants: dict[int, deque[_Grant]] = msgspec.field(default_factory=dict)
    splits_done: dict[int, int] = msgspec.field(default_factory=dict)

    def close(self, state: str, now: float) -> None:
        for runs in self.open_grants.values():
            for run in runs:
                run.close(state, now)
        self.open_grants.clear()


class SplitHistory:
    """The newest grants of splits of each job. Not thread-safe: used under the dispatcher's lock.

    Args:
        state: The state restored from the journal.
    """

    def __init__(self, state: State) -> None:
        self._names = {worker.uid: worker.name for worker in state.workers.values()}
        self._tasks = {
            task.task_id: _Task(
                task.job, task.iteration, state.worker_name(task), splits_done=dict(enumerate(task.splits_done))
            )
            for task in state.tasks.values()
        }
        self._jobs: dict[str, deque[_Grant]] = {}

    def grants_of(self, job: str) -> tuple[GrantStatus, ...]:
        """The newest grants of a job, the oldest of them first."""
        return tuple(grant.status for grant in self._jobs.get(job, ()))

    def apply(self, records: Iterable[r.Record], now: float) -> None:  # noqa: C901 - one flat case for each record
        """Apply records that were committed at `now`, in seconds since the Unix epoch."""
        for record in records:
            match record:
                case r.WorkerJoined():
                    self._names[record.uid] = record.name
                case r.WorkerLeft():
                    self._names.pop(record.uid, None)
                case r.TaskCreated():
                    self._tasks[record.task_id] = _Task(record.job, record.iteration, self._names[record.worker])
                case r.TaskUnassigned():
                    self._tasks[record.task_id].close("moved", now)
                case r.TaskAssigned():
                    self._assigned(record, now)
                case r.SplitsGiven() | r.SplitsReported():
                    self._given(record, now)
                case r.TaskProgressed():
                    self._done(record, now)
                case r.TaskLost():
                    self._tasks[record.loss.task_id].close("lost", now)
                case r.TaskEnded():
                    self._tasks[record.task_id].close("done", now)
                case r.TaskDropped():
                    self._tasks.pop(record.task_id).close("dropped", now)
                case r.JobForgotten() | r.JobCancelled():
                    self._jobs.pop(record.name, None)

    def _assigned(self, record: r.TaskAssigned, now: float) -> None:
        task = self._tasks[record.task_id]
        self._tasks[record.task_id] = _Task(task.job, task.iteration, self._names[record.worker])
        for given in record.start_position.splits if record.start_position else ():
            self._add(record.task_id, given, now)

    def _given(self, record: r.SplitsGiven | r.SplitsReported, now: float) -> None:
        self._add(record.task_id, record.grant, now)

    def _add(self, task_id: str, given: SplitGrant | SplitRange, now: float) -> None:
        task = self._tasks[task_id]
        if task.job not in self._jobs:
            self._drop_old_jobs()
        earlier = self._jobs.setdefault(task.job, deque(maxlen=MAX_GRANTS_PER_JOB))
        status = GrantStatus(
            worker=task.worker,
            task_id=task_id,
            iteration=task.iteration,
            provider=given.provider,
            repetition=given.repetition,
            first=given.first,
            end=given.end,
            state="in hand",
            granted_at=now,
        )
        again = any(one.status.state in {"lost", "moved"} and _overlap(one.status, status) for one in earlier)
        grant = _Grant(replace(status, reassigned=again))
        earlier.append(grant)
        task.open_grants.setdefault(given.provider, deque()).append(grant)

    def _drop_old_jobs(self) -> None:
        """Drop the grants of jobs without tasks, except for the newest `MAX_ENDED_JOBS` of these."""
        at_work = {task.job for task in self._tasks.values()}
        over = [job for job in self._jobs if job not in at_work]
        for job in over[: max(0, len(over) - MAX_ENDED_JOBS)]:
            del self._jobs[job]

    def _done(self, record: r.TaskProgressed, now: float) -> None:
        task = self._tasks[record.task_id]
        for source, done in enumerate(record.splits_done):
            # `before` counts the splits of closed grants only, so that a grant closes when all of it is done.
            runs, before = task.open_grants.get(source, deque()), task.splits_done.get(source, 0)
            while runs and before + runs[0].status.end - runs[0].status.first <= done:
                run = runs.popleft()
                before += run.status.end - run.status.first
                run.close("done", now)
            task.splits_done[source] = before


def _overlap(one: GrantStatus, other: GrantStatus) -> bool:
    same_pass = (one.iteration, one.provider, one.repetition) == (other.iteration, other.provider, other.repetition)
    return same_pass and one.first < other.end and other.first < one.end
