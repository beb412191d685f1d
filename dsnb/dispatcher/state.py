"""The dispatcher's state: tables that only records change.

Theory of operation. A *dataset* is a registered pipeline. A *job* reads one dataset in one mode under one name. An
*iteration* is one pass of a job, numbered from 0. When it is created each worker gets a *task* in it; workers that come
later get one too while it runs. *Clients* belong to one iteration. An iteration of a DYNAMIC job has *providers*, whose
splits are handed to tasks in runs; a provider's repetition goes up each time its splits are used up (a `repeat` inside
the pipeline asks for the next one), and a task that asks for an older repetition is told that it is over. In the static
modes a pass has *shards*, each with one task at a time; what has become of a shard outlives its task. See `rounds` too.

An iteration is finished when all its tasks have ended. A task whose worker is gone is *halted* until it is assigned to
another worker (see `reassignment`); one that cannot be is dropped, so the rest can still finish. Of finished iterations
that nobody reads any more the newest few are kept; of the others, and of all iterations of jobs that were long ago,
only their numbers: who reads one of them again finds it empty.

`apply` is the only way in, live and at replay. What is not here (who was heard of when, what was consumed) is not
needed after a restart, or comes again by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.dispatcher import records as r
from dsnb.dispatcher.lineups import Rounds
from dsnb.dispatcher.plain import to_json
from dsnb.dispatcher.runs import Grant, Halt, Loss, Provider, Runs, merged
from dsnb.wire.messages import TaskHolding, TaskResume, TrainerPosition
from dsnb.wire.ranges import Ranges

NEVER_BEGUN, BEGUN, ENDED = "never begun", "begun", "ended"
"""What has become of a shard."""
CANCELLED_KEPT = 100
"""Cancelled jobs whose names are kept, so that cancelling one again is no error."""


@dataclass(slots=True)
class Worker:
    uid: str
    name: str
    address: str
    isolation: str
    pid: int
    place: int = -1
    draining: bool = False


@dataclass(slots=True)
class Task:
    task_id: str
    job: str
    number: int
    worker: str
    shard: int = -1
    incarnation: int = 1
    sequence: int = 1
    """The incarnation in which its elements were numbered from 0; those that took it over since go on counting."""
    ended: bool = False
    refused: bool = False
    grants: dict[int, Grant] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    done: tuple[int, ...] = ()
    """Splits of each provider whose elements have been consumed, as its worker last said."""
    begin: r.Begin | None = None
    """Where it began, in a pass that was resumed."""
    had: Runs = field(default_factory=Runs)
    """All splits that it was given, for reading positions."""
    takeover: r.Begin | None = None
    """Where this incarnation began, if it took over from another one."""
    left: Runs = field(default_factory=Runs)
    """The splits that this incarnation was given and that are not behind for good."""
    total: int = 0
    """Splits of all providers that it was given over all incarnations."""
    resume: TaskResume | None = None
    """Where it can be taken over, as its worker last said."""
    halt: Halt | None = None
    """Set while it has no worker."""
    known: tuple[TrainerPosition, ...] = ()
    """What was consumed of its present sequence, as far as it need not be told again; without readers."""
    deaths: int = 0
    """Workers that died since anything of it was consumed."""


@dataclass(slots=True)
class Iteration:
    number: int
    finished: bool = False
    tasks: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    joined: int = 0
    """How many clients have ever joined it."""
    providers: list[Provider] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    """What has become of each shard, in the static modes."""
    entropy: int = 0
    losses: list[Loss] = field(default_factory=list)
    trainers: list[str] = field(default_factory=list)
    """Trainers that have joined it, if the job is cached."""
    ended: list[str] = field(default_factory=list)
    """Those of them that have had all of it."""
    away: list[str] = field(default_factory=list)
    """Those of them that have not, whose last client was lost: another one may come for the rest."""
    closed: bool = False
    """Whether elements of it are gone, for those who come later."""
    resumed: bool = False
    """Whether it began at a reading position, or a task was reassigned; then a worker may have several tasks of it."""
    orphaned: bool = False
    """Whether it has no client, and one was lost: what that one had not consumed waits for a successor."""
    rounds: Rounds | None = None
    first_client: int = 0
    """The number of the first client that could read it."""


@dataclass(slots=True)
class Job:
    name: str
    anonymous: bool
    dataset_id: str
    mode: str
    cached: bool
    compression: str
    target_workers: str
    consumers: int = 0
    iterations: dict[int, Iteration] = field(default_factory=dict)
    over: Ranges = field(default_factory=Ranges)
    """Finished passes of which nothing else is kept."""
    lost: int = 0
    """Splits that those passes lost."""
    paused_by: str = ""
    """Who paused it, for people; empty while it goes on."""

    @property
    def archived(self) -> bool:
        """Whether all its passes are over, and nothing else is kept of them."""
        return bool(self.over) and not self.iterations

    @property
    def newest(self) -> int:
        """The number of its newest pass; -1 where there was none."""
        return max(self.over.end - 1, max(self.iterations, default=-1))

    @property
    def clients(self) -> list[str]:
        """All clients that read this job now."""
        return [client for iteration in self.iterations.values() for client in iteration.clients]


@dataclass(slots=True)
class Client:
    client_id: str
    job: str
    number: int
    trainer_id: str
    cancelled: str = ""
    """Who cancelled its job; it belongs to no pass any more, and has only to be told."""


def _first_numbers() -> dict[str, int]:
    return {"dataset": 1000, "client": 3000, "task": 4000, "job": 5000, "worker": 0}


@dataclass
class State:
    """All tables. Readable by anybody under the shell's lock, changed by `apply` alone."""

    datasets: dict[str, r.DatasetRegistered] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=_first_numbers)
    """The next number of each kind; each kind has its own thousand, so a number in a log tells what it is."""
    instance: str = ""
    cancelled: dict[str, str] = field(default_factory=dict)
    """Jobs that were cancelled and not begun again, with who did it; the last few."""

    def iteration(self, job: str, number: int) -> Iteration:
        return self.jobs[job].iterations[number]

    def unfinished(self) -> Iterator[tuple[Job, Iteration]]:
        """The iterations that still produce."""
        for job in self.jobs.values():
            for iteration in job.iterations.values():
                if not iteration.finished:
                    yield job, iteration

    def worker_name(self, task: Task) -> str:
        """The name of a task's worker; of the one that had it where there is none."""
        return task.halt.worker if task.halt is not None else self.workers[task.worker].name

    def tasks_of(self, worker: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.worker == worker]

    # ---- changes

    def apply(self, record: r.Record) -> None:
        """Make one change. Never fails on a record that was made by this code."""
        _APPLY[type(record)](self, record)

    def _service_begun(self, record: r.ServiceBegun) -> None:
        self.instance = record.instance

    def _dataset_registered(self, record: r.DatasetRegistered) -> None:
        self.datasets[record.dataset_id] = record
        self.made["dataset"] += 1

    def _dataset_dropped(self, record: r.DatasetDropped) -> None:
        del self.datasets[record.dataset_id]

    def _worker_joined(self, record: r.WorkerJoined) -> None:
        self.workers[record.uid] = Worker(
            record.uid, record.name, record.address, record.isolation, record.pid, record.place
        )
        self.made["worker"] += 1

    def _worker_placed(self, record: r.WorkerPlaced) -> None:
        self.workers[record.uid].place = record.place

    def _worker_draining(self, record: r.WorkerDraining) -> None:
        self.workers[record.uid].draining = True

    def _worker_left(self, record: r.WorkerLeft) -> None:
        del self.workers[record.uid]

    def _job_created(self, record: r.JobCreated) -> None:
        self.jobs[record.name] = Job(
            record.name,
            record.anonymous,
            record.dataset_id,
            record.mode,
            record.cached,
            record.compression,
            record.target_workers,
            record.consumers,
        )
        self.made["job"] += 1
        self.cancelled.pop(record.name, None)

    def _job_paused(self, record: r.JobPaused) -> None:
        self.jobs[record.name].paused_by = record.by

    def _job_resumed(self, record: r.JobResumed) -> None:
        self.jobs[record.name].paused_by = ""

    def _job_cancelled(self, record: r.JobCancelled) -> None:
        for client in self.jobs.pop(record.name).clients:
            self.clients[client].cancelled = record.by
        self.cancelled[record.name] = record.by
        while len(self.cancelled) > CANCELLED_KEPT:
            del self.cancelled[next(iter(self.cancelled))]

    def _job_forgotten(self, record: r.JobForgotten) -> None:
        for iteration in self.jobs.pop(record.name).iterations.values():
            self._forget(iteration)

    def _iteration_created(self, record: r.IterationCreated) -> None:
        job = self.jobs[record.job]
        providers = self.datasets[job.dataset_id].providers if job.mode == "DYNAMIC" else ()
        job.iterations[record.number] = Iteration(
            record.number,
            providers=[Provider(s, n) for s, n in providers],
            shards=[NEVER_BEGUN] * record.shards,
            entropy=record.entropy,
            resumed=record.resumed,
            rounds=Rounds([""] * record.consumers) if record.consumers else None,
            first_client=self.made["client"],
        )
        for provider, (repetition, following) in zip(
            job.iterations[record.number].providers, record.providers, strict=False
        ):
            provider.repetition, provider.next = repetition, following

    def _iteration_finished(self, record: r.IterationFinished) -> None:
        self.iteration(record.job, record.number).finished = True

    def _iteration_closed(self, record: r.IterationClosed) -> None:
        self.iteration(record.job, record.number).closed = True

    def _trainer_ended(self, record: r.TrainerEnded) -> None:
        self.iteration(record.job, record.number).ended.append(record.trainer_id)

    def _iteration_dropped(self, record: r.IterationDropped) -> None:
        job = self.jobs[record.job]
        job.over.remove(record.number, record.number + 1)
        iteration = job.iterations.pop(record.number, None)
        if iteration is not None:
            self._forget(iteration)

    def _pass_archived(self, record: r.PassArchived) -> None:
        job = self.jobs[record.job]
        iteration = job.iterations.pop(record.number)
        job.over.add(record.number, record.number + 1)
        job.lost += sum(provider.lost for provider in iteration.providers)
        self._forget(iteration)

    def _forget(self, iteration: Iteration) -> None:
        for task in iteration.tasks:
            del self.tasks[task]
        for client in iteration.clients:
            del self.clients[client]

    def _task_created(self, record: r.TaskCreated) -> None:
        task = Task(record.task_id, record.job, record.number, record.worker, record.shard, begin=record.begin)
        self.tasks[record.task_id] = task
        for run in record.begin.runs if record.begin else ():
            self._give(task, *run)
        task.total = sum(task.given.values())
        iteration = self.iteration(record.job, record.number)
        iteration.tasks.append(record.task_id)
        if iteration.shards:
            iteration.shards[record.shard] = BEGUN
        self.made["task"] += 1

    def _task_halted(self, record: r.TaskHalted) -> None:
        task = self.tasks[record.task_id]
        task.halt = Halt(record.worker, record.reason)
        task.known = merged(task.known, record.trainers)
        task.worker = ""
        task.deaths += record.died
        task.incarnation += 1  # what the worker that had it still sends or asks is of the one before
        task.refused = False

    def _task_assigned(self, record: r.TaskAssigned) -> None:
        task = self.tasks[record.task_id]
        task.halt, task.worker, task.takeover = None, record.worker, record.begin
        task.resume, task.left, task.done = None, Runs(), ()
        task.grants.clear()
        task.given.clear()
        if record.begin is None:
            task.sequence, task.had, task.total, task.known = task.incarnation, Runs(), 0, ()
            if self.jobs[task.job].mode == "DYNAMIC":
                task.begin = None  # what it had is lost
        for run in record.begin.runs if record.begin else ():
            self._grant(task, *run)
            task.left.add(*run)
        self.iteration(task.job, task.number).resumed = True

    def _task_ended(self, record: r.TaskEnded) -> None:
        task = self.tasks[record.task_id]
        task.ended = True
        iteration = self.iteration(task.job, task.number)
        if iteration.shards:
            iteration.shards[task.shard] = ENDED

    def _task_dropped(self, record: r.TaskDropped) -> None:
        task = self.tasks.pop(record.task_id)
        self.iteration(task.job, task.number).tasks.remove(record.task_id)

    def _client_joined(self, record: r.ClientJoined) -> None:
        self.clients[record.client_id] = Client(record.client_id, record.job, record.number, record.trainer_id)
        iteration = self.iteration(record.job, record.number)
        iteration.clients.append(record.client_id)
        iteration.joined += 1
        if self.jobs[record.job].cached and record.trainer_id not in iteration.trainers:
            iteration.trainers.append(record.trainer_id)
        if record.trainer_id in iteration.away:
            iteration.away.remove(record.trainer_id)
        if iteration.rounds is not None:
            iteration.rounds.places[record.consumer] = record.client_id
        iteration.orphaned = False
        self._take_in(record.trainer_id, record.job, record.holdings)
        self.made["client"] += 1

    def _client_left(self, record: r.ClientLeft) -> None:
        client = self.clients.pop(record.client_id)
        if client.cancelled:
            return
        self._take_in(client.trainer_id, client.job, record.holdings)
        iteration = self.iteration(client.job, client.number)
        iteration.clients.remove(record.client_id)
        if self._goes_away(client, iteration, record):
            iteration.away.append(client.trainer_id)
        iteration.orphaned = not iteration.clients and (record.died or bool(iteration.away))
        if iteration.rounds is not None:
            iteration.rounds.vacate(record.client_id)

    def _goes_away(self, client: Client, iteration: Iteration, record: r.ClientLeft) -> bool:
        """Whether a trainer is without a client now that has not had all of a pass."""
        if not record.died or not self.jobs[client.job].cached or client.trainer_id in iteration.ended:
            return False
        return all(self.clients[other].trainer_id != client.trainer_id for other in iteration.clients)

    def _take_in(self, trainer_id: str, job: str, holdings: Iterable[TaskHolding]) -> None:
        """Keep what a client consumed, as long as its tasks' elements have the numbers that they had."""
        trainer = trainer_id if self.jobs[job].cached else ""
        for holding in holdings:
            task = self.tasks.get(holding.task_id)
            if task is not None and task.job == job and holding.consumed and holding.incarnation >= task.sequence:
                position = TrainerPosition(trainer_id=trainer, consumed=holding.consumed)
                task.known = merged(task.known, [position])

    def _repetition_begun(self, record: r.RepetitionBegun) -> None:
        provider = self.iteration(record.job, record.number).providers[record.provider]
        provider.repetition, provider.next = record.repetition, 0

    def _splits_given(self, record: r.SplitsGiven) -> None:
        task = self.tasks[record.task_id]
        self._give(task, record.provider, record.repetition, record.first, record.end)
        task.total += record.end - record.first
        self.iteration(task.job, task.number).providers[record.provider].next = record.end

    @classmethod
    def _give(cls, task: Task, provider: int, repetition: int, first: int, end: int) -> None:
        cls._grant(task, provider, repetition, first, end)
        task.had.add(provider, repetition, first, end)
        task.left.add(provider, repetition, first, end)

    @staticmethod
    def _grant(task: Task, provider: int, repetition: int, first: int, end: int) -> None:
        before = task.grants.get(provider)
        same = before is not None and before.repetition == repetition
        cursor = before.cursor + before.end - before.first if before and same else 0
        task.grants[provider] = Grant(repetition, cursor, first, end)
        task.given[provider] = task.given.get(provider, 0) + end - first

    def _splits_told(self, record: r.SplitsTold) -> None:
        task = self.tasks[record.task_id]
        before = task.grants.get(record.provider)
        same = before is not None and before.repetition == record.repetition
        had = before.cursor + before.end - before.first if before and same else 0
        task.given[record.provider] = (
            task.given.get(record.provider, 0) + record.cursor + record.end - record.first - had
        )
        task.grants[record.provider] = Grant(record.repetition, record.cursor, record.first, record.end)
        task.total += record.end - record.first
        task.had.add(record.provider, record.repetition, record.first, record.end)
        task.left.add(record.provider, record.repetition, record.first, record.end)
        provider = self.iteration(task.job, task.number).providers[record.provider]
        if record.repetition > provider.repetition:
            provider.repetition, provider.next = record.repetition, 0
        if record.repetition == provider.repetition:
            provider.next = max(provider.next, record.end)

    def _task_progressed(self, record: r.TaskProgressed) -> None:
        task = self.tasks[record.task_id]
        before = {(part.provider, part.repetition): part.count for part in task.resume.splits} if task.resume else {}
        if record.resume is not None and record.resume.index > (task.resume.index if task.resume else 0):
            task.deaths = 0
        task.done, task.resume = record.done, record.resume
        if record.resume is not None:
            offset = record.resume.index
            behind = [TrainerPosition(trainer_id=trainer, offset=offset) for trainer in record.trainers]
            task.known = merged(task.known, behind)
        if self.jobs[task.job].cached:
            return  # a trainer that comes later may need them
        for part in record.resume.splits if record.resume else ():
            # The counts are of all splits since the task began, and those told of before are forgotten already.
            known = before.get((part.provider, part.repetition), 0)
            task.left.drop(part.provider, part.repetition, part.count - known)

    def _splits_refused(self, record: r.SplitsRefused) -> None:
        self.tasks[record.task_id].refused = True

    def _splits_lost(self, record: r.SplitsLost) -> None:
        self.iteration(record.job, record.number).providers[record.provider].lost += record.count

    def _task_lost(self, record: r.TaskLost) -> None:
        task = self.tasks[record.task_id]
        loss = Loss(
            record.task_id,
            record.worker,
            record.splits,
            record.reason,
            record.elements,
            record.trainer_id,
            record.again,
        )
        self.iteration(task.job, task.number).losses.append(loss)

    def _rounds_changed(self, record: r.RoundsHalted | r.RoundsGoOn | r.LineupMade) -> None:
        rounds = self.iteration(record.job, record.number).rounds
        assert rounds is not None, "a round of a pass that has none"
        rounds.apply(record)

    # ---- looking

    def export(self) -> str:
        """The whole state in one form, order of the tables included: to compare two by, and to begin again from."""
        return to_json(self)


_APPLY: dict[type, Any] = {
    r.ServiceBegun: State._service_begun,
    r.DatasetRegistered: State._dataset_registered,
    r.DatasetDropped: State._dataset_dropped,
    r.WorkerJoined: State._worker_joined,
    r.WorkerPlaced: State._worker_placed,
    r.WorkerDraining: State._worker_draining,
    r.WorkerLeft: State._worker_left,
    r.JobCreated: State._job_created,
    r.JobForgotten: State._job_forgotten,
    r.JobPaused: State._job_paused,
    r.JobResumed: State._job_resumed,
    r.JobCancelled: State._job_cancelled,
    r.IterationCreated: State._iteration_created,
    r.IterationClosed: State._iteration_closed,
    r.TrainerEnded: State._trainer_ended,
    r.IterationFinished: State._iteration_finished,
    r.IterationDropped: State._iteration_dropped,
    r.PassArchived: State._pass_archived,
    r.TaskCreated: State._task_created,
    r.TaskHalted: State._task_halted,
    r.TaskAssigned: State._task_assigned,
    r.TaskEnded: State._task_ended,
    r.TaskDropped: State._task_dropped,
    r.ClientJoined: State._client_joined,
    r.ClientLeft: State._client_left,
    r.RepetitionBegun: State._repetition_begun,
    r.SplitsGiven: State._splits_given,
    r.SplitsTold: State._splits_told,
    r.TaskProgressed: State._task_progressed,
    r.SplitsRefused: State._splits_refused,
    r.SplitsLost: State._splits_lost,
    r.TaskLost: State._task_lost,
    r.RoundsHalted: State._rounds_changed,
    r.RoundsGoOn: State._rounds_changed,
    r.LineupMade: State._rounds_changed,
}


def replay(records: Iterable[r.Record], state: State | None = None) -> State:
    """The state that records lead to, from the beginning or from a state that is given."""
    state = state or State()
    for record in records:
        state.apply(record)
    return state
