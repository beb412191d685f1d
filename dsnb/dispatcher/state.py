"""The dispatcher's state: tables that only records change.

Theory of operation. A *dataset* is a registered pipeline. A *job* reads one dataset in one mode under one name. An
*iteration* is one pass of a job, numbered from 0. When an iteration is created, each worker gets a *task* in it;
workers that join while it runs get one too. A *client* belongs to one iteration. An iteration of a DYNAMIC job has
*providers*, whose splits are assigned to tasks in ranges. A provider's repetition goes up each time its splits are used
up (a `repeat` inside the pipeline requests the next one); a request for splits of an older repetition is answered with
"done". In the static modes an iteration has *shards*, each with at most one task at a time; the state of a shard
outlives its task. The tables of coordinated reads are described in `rounds`.

An iteration is finished when all its tasks have ended. A task whose worker is gone is *unassigned* until another worker
gets it (see `reassignment`); a task that cannot be reassigned is dropped, so that the rest can still finish. The newest
few finished iterations without clients are kept. Of older ones, and of all iterations of old jobs, only the numbers are
kept: a client that reads one of them again finds it empty.

`apply` is the only way to change the state, live and at replay. Data that is not here (times of heartbeats, what
clients consumed) is not needed after a restart, or is reported again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from dsnb.dispatcher import records as r
from dsnb.dispatcher.coverage import ReaderTally, TaskCoverage, add_reader, consumed_of, reader_left
from dsnb.dispatcher.round_state import Rounds
from dsnb.dispatcher.split_ranges import Provider, SplitRanges, Unassignment, merge_positions
from dsnb.monitor.receipt import Receipt
from dsnb.wire.field_groups import ReaderCount
from dsnb.wire.messages import Loss, ResumePosition, SplitGrant, SplitRange, TaskHolding, TaskPosition, TrainerPosition
from dsnb.wire.ranges import Ranges, ranges_from_json, ranges_to_json

NEVER_BEGUN, BEGUN, ENDED = "never begun", "begun", "ended"
"""The states that a shard can have."""
MAX_CANCELLED_JOBS = 100
"""How many names of cancelled jobs are kept, so that cancelling a job twice is not an error."""
MAX_LAST_RECEIPTS = 100
"""How many receipts of jobs that are gone are kept."""
MAX_ARCHIVED_RECEIPTS = 1000
"""How many receipts of archived iterations are kept of one job."""


class Worker(msgspec.Struct, forbid_unknown_fields=True):
    uid: str
    name: str
    address: str
    isolation: str
    pid: int
    tags: tuple[str, ...] = ()
    static_index: int = -1
    draining: bool = False
    data_port: int = 0
    held: bool = False
    """Whether it joined to replace other workers, and waits until it does."""
    replaced: bool = False
    """Whether other workers get the new work; it finishes the passes that it has begun."""

    @property
    def available(self) -> bool:
        """Whether it may get new tasks."""
        return not (self.draining or self.held or self.replaced)

    @property
    def leaving(self) -> bool:
        """Whether it only finishes what it has."""
        return self.draining or self.replaced


class Task(msgspec.Struct, forbid_unknown_fields=True):
    task_id: str
    job: str
    iteration: int
    worker: str
    shard: int = -1
    incarnation: int = 1
    sequence_incarnation: int = 1
    """The incarnation in which element numbers began at 0; incarnations that took the task over continue them."""
    ended: bool = False
    splits_refused: bool = False
    grants: dict[int, SplitGrant] = msgspec.field(default_factory=dict)
    splits_given: dict[int, int] = msgspec.field(default_factory=dict)
    splits_done: tuple[int, ...] = ()
    """For each provider, how many splits were consumed completely, from the worker's last report."""
    start_position: TaskPosition | None = None
    """Where the task began, if the iteration was resumed from a reading position."""
    all_splits: SplitRanges = msgspec.field(default_factory=SplitRanges)
    """All splits that the task was given, for reading positions."""
    takeover_position: TaskPosition | None = None
    """Where this incarnation began, if it took over from an earlier one."""
    unfinished_splits: SplitRanges = msgspec.field(default_factory=SplitRanges)
    """Splits given to this incarnation that a takeover may have to produce again."""
    total_splits: int = 0
    """How many splits of all providers the task was given, over all incarnations."""
    resume_position: ResumePosition | None = None
    """Where another worker can take the task over, from the worker's last report."""
    trainers_past_resume: tuple[str, ...] = ()
    """The trainers that need no element before `resume_position`: they consumed those, or those were evicted."""
    unassignment: Unassignment | None = None
    """Why the task has no worker; None while it has one."""
    consumed_positions: tuple[TrainerPosition, ...] = ()
    """What is known to be consumed of the current sequence and is not reported again; `readers` is always empty."""
    worker_deaths: int = 0
    """How many workers died since the task last made progress."""
    earlier_elements: int = 0
    """How many elements of earlier sequences reached clients."""
    restarts: int = 0
    """How many earlier sequences there were."""


class Iteration(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    finished: bool = False
    tasks: list[str] = msgspec.field(default_factory=list)
    clients: list[str] = msgspec.field(default_factory=list)
    join_count: int = 0
    """How many clients ever joined."""
    providers: list[Provider] = msgspec.field(default_factory=list)
    shards: list[str] = msgspec.field(default_factory=list)
    """The state of each shard, in the static modes."""
    entropy: int = 0
    losses: list[Loss] = msgspec.field(default_factory=list)
    trainers: list[str] = msgspec.field(default_factory=list)
    """Trainers that joined, if the job is cached."""
    ended_trainers: list[str] = msgspec.field(default_factory=list)
    """Trainers that received the whole iteration."""
    lost_trainers: list[str] = msgspec.field(default_factory=list)
    """Trainers that did not, and whose last client was lost: a new client may join for the rest."""
    closed: bool = False
    """Whether elements were or may be evicted, so that a trainer that joins now cannot get the whole iteration."""
    workers_replaced: bool = False
    """Whether workers were replaced since it began, and it stays with them: the new ones have no task of it."""
    allows_several_tasks: bool = False
    """Whether a worker may have several tasks here: the iteration was resumed, or a task was reassigned."""
    splits_exhausted: bool = False
    """Whether a task of a DYNAMIC job asked for splits after the last one: the rest is in tasks that have not ended."""
    orphaned: bool = False
    """Whether no client is left, and what its clients did not consume is kept for a successor: the last one was lost,
    or it had been told that it has reached the end before another one left."""
    read: bool = False
    """Whether its clients hold everything that is left, which is known once one of them was told that it has reached
    the end. The iteration then ends with its last client, even if no worker has reported yet that everything is
    consumed. Never set for a cached job."""
    rounds: Rounds | None = None
    position_key: str = ""
    """Identifies the position at which the consumers of a coordinated read began; empty for the beginning."""
    first_client: int = 0
    """The lowest client number that can belong to this iteration."""
    resumed: bool = False
    """Whether it began at a reading position."""
    gone_tasks: dict[str, TaskCoverage] = msgspec.field(default_factory=dict)
    """What was delivered of tasks that were dropped."""
    readers: dict[str, ReaderTally] = msgspec.field(default_factory=dict)
    """How many elements each client consumed, by client id."""


_ENTROPY_RANGE = 2**63


def entropy_of(iteration: Iteration, task: Task) -> int:
    """The root of what a task draws without a seed. All shards share it, because they are parts of one order."""
    if task.start_position is not None:
        return task.start_position.entropy
    if task.takeover_position is not None:
        return task.takeover_position.entropy
    return iteration.entropy if iteration.shards else (iteration.entropy + int(task.task_id)) % _ENTROPY_RANGE


def position_of(iteration: Iteration, task: Task) -> TaskPosition:
    """Where a task began, and all splits that it was given."""
    begin = task.start_position or TaskPosition(entropy=entropy_of(iteration, task))
    return replace(
        begin,
        task_id=task.task_id,
        incarnation=task.sequence_incarnation,
        shard=max(0, task.shard),
        splits=task.all_splits.ranges(),
    )


class Job(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    anonymous: bool
    dataset_id: str
    mode: str
    cached: bool
    compression: str
    target_workers: str
    num_consumers: int = 0
    ranks: int = 0
    at_end: str = ""
    on_worker_loss: str = ""
    weight: float = 1.0
    iterations: dict[int, Iteration] = msgspec.field(default_factory=dict)
    archived_iterations: Ranges = msgspec.field(default_factory=Ranges)
    """Numbers of finished iterations of which nothing else is kept but the receipt."""
    receipts: dict[int, Receipt] = msgspec.field(default_factory=dict)
    """The receipts of archived iterations, at most `MAX_ARCHIVED_RECEIPTS`; the oldest ones go first."""
    archived_lost_splits: int = 0
    """How many splits the archived iterations lost."""
    paused_by: str = ""
    """The user who paused the job, for display; empty while the job runs."""

    @property
    def archived(self) -> bool:
        """Whether all iterations are archived."""
        return bool(self.archived_iterations) and not self.iterations

    @property
    def shares_splits(self) -> bool:
        """Whether any worker may produce any part of an iteration, so that one that joins helps the others."""
        return self.mode == "DYNAMIC" and not self.num_consumers

    @property
    def newest(self) -> int:
        """The number of the newest iteration; -1 if there was none."""
        return max(self.archived_iterations.end - 1, max(self.iterations, default=-1))

    @property
    def clients(self) -> list[str]:
        """All clients that currently read this job."""
        return [client for iteration in self.iterations.values() for client in iteration.clients]


class Client(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str
    job: str
    iteration: int
    trainer_id: str
    complete_only: bool = False
    """Whether its trainer must not lose elements of an iteration that it shares."""
    cancelled_by: str = ""
    """The user who cancelled the job. Such a client belongs to no iteration; it is kept until it has left."""
    finished: bool = False
    """Whether it was told that it has reached the end of its iteration."""
    final_holdings: tuple[TaskHolding, ...] | None = None
    """What it had consumed by then, if it had consumed everything that it received."""
    final_count: ReaderCount | None = None
    """How much that is, by its own count."""

    def leaves_elements(self, *, died: bool) -> bool:
        """Whether it may leave elements to others, if it leaves now or died."""
        return not self.finished or (died and self.final_holdings is None)


def _first_numbers() -> dict[str, int]:
    return {"dataset": 1000, "client": 3000, "task": 4000, "job": 5000, "worker": 0}


class State(msgspec.Struct, forbid_unknown_fields=True):
    """All tables. Any thread may read them under the shell's lock; only `apply` changes them."""

    datasets: dict[str, r.DatasetRegistered] = msgspec.field(default_factory=dict)
    workers: dict[str, Worker] = msgspec.field(default_factory=dict)
    jobs: dict[str, Job] = msgspec.field(default_factory=dict)
    tasks: dict[str, Task] = msgspec.field(default_factory=dict)
    clients: dict[str, Client] = msgspec.field(default_factory=dict)
    next_numbers: dict[str, int] = msgspec.field(default_factory=_first_numbers)
    """The next number of each kind. Each kind starts at its own thousand, so that a number in a log shows its kind."""
    instance: str = ""
    cancelled_jobs: dict[str, str] = msgspec.field(default_factory=dict)
    """The last few jobs that were cancelled and not created again, with the user who cancelled each."""
    last_receipts: dict[str, Receipt] = msgspec.field(default_factory=dict)
    """The receipts of the newest iterations of the last few jobs that were cancelled, or were anonymous, by name."""

    def iteration(self, job: str, number: int) -> Iteration:
        return self.jobs[job].iterations[number]

    def unfinished_iterations(self) -> Iterator[tuple[Job, Iteration]]:
        """All iterations that are not finished, each with its job."""
        for job in self.jobs.values():
            for iteration in job.iterations.values():
                if not iteration.finished:
                    yield job, iteration

    def worker_name(self, task: Task) -> str:
        """The name of a task's worker; if the task is unassigned, of its last worker."""
        return task.unassignment.worker if task.unassignment is not None else self.workers[task.worker].name

    def tasks_of(self, worker: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.worker == worker]

    # ---- changes

    def apply(self, record: r.Record) -> None:
        """Apply one record. Never fails on a record that this version created."""
        _APPLY[type(record)](self, record)

    def _service_begun(self, record: r.ServiceBegun) -> None:
        self.instance = record.instance

    def _dataset_registered(self, record: r.DatasetRegistered) -> None:
        self.datasets[record.dataset_id] = record
        self.next_numbers["dataset"] += 1

    def _dataset_dropped(self, record: r.DatasetDropped) -> None:
        del self.datasets[record.dataset_id]

    def _worker_joined(self, record: r.WorkerJoined) -> None:
        self.workers[record.uid] = Worker(**msgspec.structs.asdict(record))
        self.next_numbers["worker"] += 1

    def _static_index_assigned(self, record: r.StaticIndexAssigned) -> None:
        self.workers[record.uid].static_index = record.static_index

    def _worker_draining(self, record: r.WorkerDraining) -> None:
        self.workers[record.uid].draining = True

    def _workers_replaced(self, record: r.WorkersReplaced) -> None:
        for worker in self.workers.values():
            worker.held = False
        for uid in record.uids:
            self.workers[uid].replaced = True
        for job, iteration in self.unfinished_iterations() if record.uids else ():
            iteration.workers_replaced |= not job.shares_splits

    def _worker_left(self, record: r.WorkerLeft) -> None:
        del self.workers[record.uid]

    def _job_created(self, record: r.JobCreated) -> None:
        self.jobs[record.name] = Job(**msgspec.structs.asdict(record))
        self.next_numbers["job"] += 1
        self.cancelled_jobs.pop(record.name, None)
        self.last_receipts.pop(record.name, None)

    def _job_paused(self, record: r.JobPaused) -> None:
        self.jobs[record.name].paused_by = record.paused_by

    def _job_resumed(self, record: r.JobResumed) -> None:
        self.jobs[record.name].paused_by = ""

    def _job_cancelled(self, record: r.JobCancelled) -> None:
        for client in self.jobs.pop(record.name).clients:
            self.clients[client].cancelled_by = record.cancelled_by
        self.cancelled_jobs[record.name] = record.cancelled_by
        _drop_oldest(self.cancelled_jobs, MAX_CANCELLED_JOBS)
        self._keep_last_receipt(record)

    def _job_forgotten(self, record: r.JobForgotten) -> None:
        self._keep_last_receipt(record)
        for iteration in self.jobs.pop(record.name).iterations.values():
            self._forget(iteration)

    def _keep_last_receipt(self, record: r.JobCancelled | r.JobForgotten) -> None:
        if record.receipt is not None:
            self.last_receipts[record.name] = record.receipt
            _drop_oldest(self.last_receipts, MAX_LAST_RECEIPTS)

    def _iteration_created(self, record: r.IterationCreated) -> None:
        job = self.jobs[record.job]
        providers = self.datasets[job.dataset_id].info.providers if job.mode == "DYNAMIC" else ()
        job.iterations[record.iteration] = Iteration(
            record.iteration,
            providers=[Provider(one.source, one.count, ordered=one.ordered) for one in providers],
            shards=[NEVER_BEGUN] * record.num_shards,
            entropy=record.entropy,
            allows_several_tasks=record.resumed,
            rounds=Rounds([""] * record.num_consumers) if record.num_consumers else None,
            position_key=record.position_key,
            first_client=self.next_numbers["client"],
            resumed=record.resumed,
        )
        for provider, (repetition, following) in zip(
            job.iterations[record.iteration].providers, record.providers, strict=False
        ):
            provider.repetition, provider.next = repetition, following

    def _iteration_finished(self, record: r.IterationFinished) -> None:
        self.iteration(record.job, record.iteration).finished = True

    def _iteration_closed(self, record: r.IterationClosed) -> None:
        self.iteration(record.job, record.iteration).closed = True

    def _trainer_ended(self, record: r.TrainerEnded) -> None:
        self.iteration(record.job, record.iteration).ended_trainers.append(record.trainer_id)

    def _iteration_dropped(self, record: r.IterationDropped) -> None:
        job = self.jobs[record.job]
        job.archived_iterations.remove(record.iteration, record.iteration + 1)
        job.receipts.pop(record.iteration, None)
        iteration = job.iterations.pop(record.iteration, None)
        if iteration is not None:
            self._forget(iteration)

    def _iteration_archived(self, record: r.IterationArchived) -> None:
        job = self.jobs[record.job]
        iteration = job.iterations.pop(record.iteration)
        job.archived_iterations.add(record.iteration, record.iteration + 1)
        job.archived_lost_splits += sum(provider.lost for provider in iteration.providers)
        if record.receipt is not None:
            job.receipts.setdefault(record.iteration, record.receipt)
        _drop_oldest(job.receipts, MAX_ARCHIVED_RECEIPTS)
        self._forget(iteration)

    def _forget(self, iteration: Iteration) -> None:
        for task in iteration.tasks:
            del self.tasks[task]
        for client in iteration.clients:
            del self.clients[client]

    def _task_created(self, record: r.TaskCreated) -> None:
        task = Task(
            record.task_id,
            record.job,
            record.iteration,
            record.worker,
            record.shard,
            start_position=record.start_position,
        )
        self.tasks[record.task_id] = task
        for given in record.start_position.splits if record.start_position else ():
            self._add_splits(task, given)
        task.total_splits = sum(task.splits_given.values())
        iteration = self.iteration(record.job, record.iteration)
        iteration.tasks.append(record.task_id)
        if iteration.shards:
            iteration.shards[record.shard] = BEGUN
        if iteration.rounds is not None:
            iteration.rounds.task_created(record.start_position)
        self.next_numbers["task"] += 1

    def _task_unassigned(self, record: r.TaskUnassigned) -> None:
        task = self.tasks[record.task_id]
        task.unassignment = Unassignment(record.worker, record.reason, record.died)
        task.consumed_positions = merge_positions(task.consumed_positions, record.trainers)
        task.worker = ""
        task.worker_deaths += record.died
        task.incarnation += 1  # reports and requests of the old worker carry the old incarnation and are refused
        task.splits_refused = False

    def _task_assigned(self, record: r.TaskAssigned) -> None:
        task = self.tasks[record.task_id]
        task.unassignment, task.worker, task.takeover_position = None, record.worker, record.start_position
        task.resume_position, task.trainers_past_resume = None, ()
        task.unfinished_splits, task.splits_done = SplitRanges(), ()
        task.grants.clear()
        task.splits_given.clear()
        begin = record.start_position
        if begin is None or not begin.taken_over:
            task.incarnation += 1  # what clients reported of the previous incarnation belongs to the old sequence
            task.restarts, task.earlier_elements = task.restarts + 1, task.earlier_elements + record.delivered
            task.sequence_incarnation, task.all_splits, task.total_splits, task.consumed_positions = (
                task.incarnation,
                SplitRanges(),
                0,
                (),
            )
            if self.jobs[task.job].mode == "DYNAMIC":
                task.start_position = None  # the splits of the resumed position are lost
        else:  # Keep what clients reported as consumed: they may be lost before the worker's first report.
            task.consumed_positions = merge_positions(task.consumed_positions, begin.trainers)
        for given in begin.splits if begin is not None else ():
            self._set_grant(task, given)
            task.unfinished_splits.add(given.provider, given.repetition, given.first, given.end)
            if task.incarnation == task.sequence_incarnation:
                task.all_splits.add(given.provider, given.repetition, given.first, given.end)
                task.total_splits += given.end - given.first
        self.iteration(task.job, task.iteration).allows_several_tasks = True

    def _task_ended(self, record: r.TaskEnded) -> None:
        task = self.tasks[record.task_id]
        task.ended = True
        iteration = self.iteration(task.job, task.iteration)
        iteration.splits_exhausted |= bool(iteration.providers)
        if iteration.shards:
            iteration.shards[task.shard] = ENDED

    def _task_dropped(self, record: r.TaskDropped) -> None:
        task = self.tasks.pop(record.task_id)
        iteration = self.iteration(task.job, task.iteration)
        iteration.tasks.remove(record.task_id)
        iteration.gone_tasks[record.task_id] = self.coverage(
            task, record.consumed, record.expected, lost=task.unassignment is not None
        )
        if iteration.rounds is not None:
            iteration.rounds.task_dropped(position_of(iteration, task), begins_again=record.begins_again)

    def coverage(
        self, task: Task, consumed: Iterable[TrainerPosition], expected: int, *, lost: bool = False
    ) -> TaskCoverage:
        """What is known to be delivered of a task: what is recorded of it, and these positions."""
        done = dict(enumerate(task.splits_done))
        return TaskCoverage(
            worker=self.worker_name(task),
            sequence_incarnation=task.sequence_incarnation,
            expected=expected,
            consumed=consumed_of((*task.consumed_positions, *consumed)),
            earlier_elements=task.earlier_elements,
            restarts=task.restarts,
            lost=lost,
            splits=task.all_splits if lost else SplitRanges(),
            unconsumed_splits={n: given - done.get(n, 0) for n, given in task.splits_given.items()} if lost else {},
            skipped=task.start_position.skip if task.start_position is not None else 0,
            shard=task.shard,
        )

    def _client_joined(self, record: r.ClientJoined) -> None:
        self.clients[record.client_id] = Client(
            record.client_id, record.job, record.iteration, record.trainer_id, record.complete_only
        )
        iteration = self.iteration(record.job, record.iteration)
        iteration.clients.append(record.client_id)
        iteration.join_count += 1
        if self.jobs[record.job].cached and record.trainer_id not in iteration.trainers:
            iteration.trainers.append(record.trainer_id)
        if record.trainer_id in iteration.lost_trainers:
            iteration.lost_trainers.remove(record.trainer_id)
        if iteration.rounds is not None:
            iteration.rounds.add_client(record.consumer_index, record.client_id)
        iteration.orphaned = False
        add_reader(iteration.readers, record.client_id, record.trainer_id, record.previous_client_id)
        self._add_consumed(record.trainer_id, record.job, iteration, record.holdings)
        self.next_numbers["client"] += 1

    def _client_left(self, record: r.ClientLeft) -> None:
        client = self.clients.pop(record.client_id)
        if client.cancelled_by:
            return
        iteration = self.iteration(client.job, client.iteration)
        self._add_consumed(client.trainer_id, client.job, iteration, record.holdings)
        reader_left(iteration.readers, record.client_id, record.count)
        iteration.clients.remove(record.client_id)
        iteration.read &= not client.leaves_elements(died=record.died)
        if self._loses_trainer(client, iteration, record):
            iteration.lost_trainers.append(client.trainer_id)
        # One that has reached the end leaves nothing, but another one may have left elements after that.
        abandoned = record.died or bool(iteration.lost_trainers) or (client.finished and not iteration.read)
        iteration.orphaned = not iteration.clients and abandoned
        if iteration.rounds is not None:
            iteration.rounds.remove_client(record.client_id)

    def _client_finished(self, record: r.ClientFinished) -> None:
        client = self.clients[record.client_id]
        client.finished, client.final_holdings, client.final_count = True, record.holdings, record.count
        self.iteration(client.job, client.iteration).read = not self.jobs[client.job].cached

    def _loses_trainer(self, client: Client, iteration: Iteration, record: r.ClientLeft) -> bool:
        """Whether a trainer has lost its last client before it received the whole iteration."""
        if not record.died or not self.jobs[client.job].cached or client.trainer_id in iteration.ended_trainers:
            return False
        return all(self.clients[other].trainer_id != client.trainer_id for other in iteration.clients)

    def _add_consumed(self, trainer_id: str, job: str, iteration: Iteration, holdings: Iterable[TaskHolding]) -> None:
        """Keep what a client consumed of tasks whose element numbers have not started again since."""
        trainer = trainer_id if self.jobs[job].cached else ""
        for holding in holdings:
            task, gone = self.tasks.get(holding.task_id), iteration.gone_tasks.get(holding.task_id)
            if gone is not None:
                gone.add_holding(holding)
            elif (
                task is not None
                and task.job == job
                and holding.consumed
                and holding.incarnation >= task.sequence_incarnation
            ):
                position = TrainerPosition(trainer_id=trainer, consumed=holding.consumed)
                task.consumed_positions = merge_positions(task.consumed_positions, [position])

    def _repetition_begun(self, record: r.RepetitionBegun) -> None:
        provider = self.iteration(record.job, record.iteration).providers[record.provider]
        provider.repetition, provider.next = record.repetition, 0

    def _splits_given(self, record: r.SplitsGiven) -> None:
        task, grant = self.tasks[record.task_id], record.grant
        self._add_splits(task, grant)
        task.total_splits += grant.end - grant.first
        self.iteration(task.job, task.iteration).providers[grant.provider].next = grant.end

    @classmethod
    def _add_splits(cls, task: Task, given: SplitGrant | SplitRange) -> None:
        cls._set_grant(task, given)
        task.all_splits.add(given.provider, given.repetition, given.first, given.end)
        task.unfinished_splits.add(given.provider, given.repetition, given.first, given.end)

    @staticmethod
    def _set_grant(task: Task, given: SplitGrant | SplitRange) -> None:
        # The cursor counts the splits of this repetition that the task had before this grant.
        provider, repetition = given.provider, given.repetition
        before = task.grants.get(provider)
        same = before is not None and before.repetition == repetition
        cursor = before.cursor + before.end - before.first if before and same else 0
        task.grants[provider] = SplitGrant(
            provider=provider, repetition=repetition, cursor=cursor, first=given.first, end=given.end
        )
        task.splits_given[provider] = task.splits_given.get(provider, 0) + given.end - given.first

    def _splits_reported(self, record: r.SplitsReported) -> None:
        task, grant = self.tasks[record.task_id], record.grant
        before = task.grants.get(grant.provider)
        same = before is not None and before.repetition == grant.repetition
        known = before.cursor + before.end - before.first if before and same else 0
        # The worker's cursor also covers grants that the journal lost: add what was not counted before.
        task.splits_given[grant.provider] = (
            task.splits_given.get(grant.provider, 0) + grant.cursor + grant.end - grant.first - known
        )
        task.grants[grant.provider] = grant
        task.total_splits += grant.end - grant.first
        task.all_splits.add(grant.provider, grant.repetition, grant.first, grant.end)
        task.unfinished_splits.add(grant.provider, grant.repetition, grant.first, grant.end)
        provider = self.iteration(task.job, task.iteration).providers[grant.provider]
        if grant.repetition > provider.repetition:
            provider.repetition, provider.next = grant.repetition, 0
        if grant.repetition == provider.repetition:
            provider.next = max(provider.next, grant.end)

    def _task_progressed(self, record: r.TaskProgressed) -> None:
        task = self.tasks[record.task_id]
        before = (
            {(part.provider, part.repetition): part.count for part in task.resume_position.splits}
            if task.resume_position
            else {}
        )
        if record.resume_position is not None and record.resume_position.index > (
            task.resume_position.index if task.resume_position else 0
        ):
            task.worker_deaths = 0
        task.splits_done, task.resume_position = record.splits_done, record.resume_position
        task.trainers_past_resume = tuple(trainer.trainer_id for trainer in record.trainers)
        task.consumed_positions = merge_positions(task.consumed_positions, record.trainers)
        if self.jobs[task.job].cached:
            return  # a trainer that joins later may need the splits
        for part in record.resume_position.splits if record.resume_position else ():
            # Counts cover all splits since the task began; those of the previous report are dropped already.
            known = before.get((part.provider, part.repetition), 0)
            task.unfinished_splits.drop_first(part.provider, part.repetition, part.count - known)

    def _splits_refused(self, record: r.SplitsRefused) -> None:
        self.tasks[record.task_id].splits_refused = True

    def _splits_lost(self, record: r.SplitsLost) -> None:
        self.iteration(record.job, record.iteration).providers[record.provider].lost += record.count

    def _task_lost(self, record: r.TaskLost) -> None:
        task = self.tasks[record.loss.task_id]
        self.iteration(task.job, task.iteration).losses.append(record.loss)

    def _rounds_changed(self, record: r.RoundsHalted | r.RoundsResumed | r.RoundsAgreed) -> None:
        self._rounds(record).apply(record)

    def _task_rounds_ended(self, record: r.TaskRoundsEnded) -> None:
        self._rounds(record).task_ended(record.task_id, record.elements)
        iteration = self.iteration(record.job, record.iteration)
        iteration.splits_exhausted |= bool(iteration.providers) and not self.tasks[record.task_id].splits_refused

    def _consumer_ended(self, record: r.ConsumerEnded) -> None:
        self._rounds(record).ended_consumers.append(record.index)

    def _rounds(
        self, record: r.RoundsHalted | r.RoundsResumed | r.RoundsAgreed | r.TaskRoundsEnded | r.ConsumerEnded
    ) -> Rounds:
        rounds = self.iteration(record.job, record.iteration).rounds
        assert rounds is not None, "a round of a pass that has none"
        return rounds

    # ---- export

    def export(self) -> str:
        """The whole state as JSON, with the tables in their order: for snapshots and for comparing two states."""
        return msgspec.json.encode(self, enc_hook=ranges_to_json).decode()


def _drop_oldest(table: dict[Any, Any], most: int) -> None:
    while len(table) > most:
        del table[next(iter(table))]


def state_from_json(text: str) -> State:
    """The state that `State.export` wrote.

    Raises:
        ValueError: the text is not JSON, or a field is missing, unknown or of another type.
    """
    try:
        return msgspec.json.decode(text, type=State, dec_hook=ranges_from_json)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


_APPLY: dict[type, Any] = {
    r.ServiceBegun: State._service_begun,
    r.DatasetRegistered: State._dataset_registered,
    r.DatasetDropped: State._dataset_dropped,
    r.WorkerJoined: State._worker_joined,
    r.StaticIndexAssigned: State._static_index_assigned,
    r.WorkerDraining: State._worker_draining,
    r.WorkersReplaced: State._workers_replaced,
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
    r.IterationArchived: State._iteration_archived,
    r.TaskCreated: State._task_created,
    r.TaskUnassigned: State._task_unassigned,
    r.TaskAssigned: State._task_assigned,
    r.TaskEnded: State._task_ended,
    r.TaskDropped: State._task_dropped,
    r.ClientJoined: State._client_joined,
    r.ClientLeft: State._client_left,
    r.ClientFinished: State._client_finished,
    r.RepetitionBegun: State._repetition_begun,
    r.SplitsGiven: State._splits_given,
    r.SplitsReported: State._splits_reported,
    r.TaskProgressed: State._task_progressed,
    r.SplitsRefused: State._splits_refused,
    r.SplitsLost: State._splits_lost,
    r.TaskLost: State._task_lost,
    r.RoundsHalted: State._rounds_changed,
    r.RoundsResumed: State._rounds_changed,
    r.RoundsAgreed: State._rounds_changed,
    r.TaskRoundsEnded: State._task_rounds_ended,
    r.ConsumerEnded: State._consumer_ended,
}


def replay(records: Iterable[r.Record], state: State | None = None) -> State:
    """The state after applying all records to `state`, or to an empty state if it is None."""
    state = state or State()
    for record in records:
        state.apply(record)
    return state
