"""Reading positions: export the position of an iteration to a client, and begin an iteration at such a position.

A task's sequence is determined by the pipeline, its entropy (the root of what it draws without a seed), and the splits
that it was given, in order. So a task's position is its entropy, its splits, and the number of elements to skip. A
resumed iteration has one task for each old task, distributed over the workers that are present. In DYNAMIC mode a task
first gets its old splits; splits that no task had are assigned as usual.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import cycle

from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.round_state import Rounds
from dsnb.dispatcher.split_ranges import MAX_SPLIT_RANGES
from dsnb.dispatcher.state import ENDED, Iteration, Job, Task, position_of
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.registered import registered_inexact_reason
from dsnb.wire.messages import (
    IterationPosition,
    JoinRequest,
    ProviderPosition,
    SplitRange,
    TaskPosition,
)


def start_position_of(iteration: Iteration, task: Task) -> TaskPosition | None:
    """Where a worker must begin a task; None for the beginning."""
    begin = task.takeover_position
    if begin is None:
        return position_of(iteration, task) if task.start_position is not None else None
    return replace(
        begin,
        task_id=task.task_id,
        incarnation=task.incarnation,
        shard=max(0, task.shard),
        splits=task.unfinished_splits.ranges(),
    )


def workers_to_ask(core: Context, client_id: str) -> set[str]:
    """The workers that should report before a client's position is taken: those of a coordinated read.

    Only they know of errors that other consumers got, perhaps since the last report.
    """
    client = core.state.clients[client_id]
    iteration = core.state.iteration(client.job, client.iteration)
    return {core.state.tasks[task].worker for task in iteration.tasks} if iteration.rounds is not None else set()


def iteration_position(core: Context, client_id: str, silent_workers: Collection[str] = ()) -> IterationPosition:
    """The position of a client's iteration: its tasks, ended shards and split providers.

    Args:
        core: State and decisions of the dispatcher.
        client_id: The client.
        silent_workers: Those of `workers_to_ask` that have not reported.
    """
    client = core.state.clients[client_id]
    job = core.state.jobs[client.job]
    iteration = job.iterations[client.iteration]
    tasks = [core.state.tasks[task] for task in iteration.tasks]
    rounds = iteration.rounds or Rounds([])
    held = {task.shard for task in tasks} | {waiting.shard for waiting in rounds.waiting_tasks}
    ended = [
        TaskPosition(entropy=iteration.entropy, ended=True, shard=shard)
        for shard, state in enumerate(iteration.shards)
        if state == ENDED and shard not in held
    ]
    return IterationPosition(
        tasks=(*(_position_of(core, iteration, task, silent_workers) for task in tasks), *rounds.waiting_tasks, *ended),
        gone_tasks=tuple(replace(task, skipped_errors=True) for task in rounds.gone_tasks),
        entropy=iteration.entropy,
        providers=tuple(ProviderPosition(repetition=p.repetition, next=p.next) for p in iteration.providers),
        num_shards=len(iteration.shards),
        inexact_reason=_inexact_reason(core, job, tasks),
    )


def _position_of(core: Context, iteration: Iteration, task: Task, silent_workers: Collection[str]) -> TaskPosition:
    """A task's position. A consumer of a coordinated read does not see the errors that others got.

    If the worker's word is missing, there may have been some: skipping elements then takes longer, and is exact.
    """
    position, progress = position_of(iteration, task), core.transient.progress.get(task.task_id)
    unknown = progress is None or task.worker in silent_workers
    if iteration.rounds is not None and (unknown or (progress is not None and progress.errors)):
        return replace(position, skipped_errors=True)
    return position


def _inexact_reason(core: Context, job: Job, tasks: list[Task]) -> str:
    ordered = any(provider.ordered for provider in core.state.datasets[job.dataset_id].info.providers)
    if job.cached and not ordered:
        return "the trainers of a cross-trainer cache share one place in each task"
    if not ordered and any(task.all_splits.truncated for task in tasks):
        return f"a task has had more than {MAX_SPLIT_RANGES:,} runs of splits"
    return registered_inexact_reason(core.state.datasets[job.dataset_id].info, job.mode)


def key_of(position: IterationPosition | None) -> str:
    """What positions have in common that were taken after the same round or element; empty for the beginning.

    Consumers asked at different moments, when more splits were given, or tasks had been added or lost. Any of these
    positions is complete.
    """
    if position is not None and position.unit is not None:
        return f"{position.entropy}:{position.unit.unit}+{position.unit.skip}"
    return f"{position.entropy}:{position.rounds}" if position is not None and position.rounds else ""


def is_for(iteration: Iteration | None, request: JoinRequest) -> bool:
    """Whether an iteration began at the position of a consumer, for which another one has created it."""
    if iteration is None or iteration.rounds is None or iteration.position_key != key_of(request.position):
        return False
    nothing_taken = not iteration.rounds.schedules
    return nothing_taken or request.consumer_index not in iteration.rounds.joined_consumers


def at_beginning(position: IterationPosition) -> bool:
    """Whether a position is the beginning, so that an iteration from there is an ordinary new one."""
    return not position.tasks and not position.providers and position.unit is None


def check(core: Context, request: JoinRequest, position: IterationPosition) -> None:
    """Refuse an iteration that cannot begin at a position, before anything is created for it.

    Raises:
        FailedPreconditionError: the iteration has clients, or there is no worker.
        InvalidArgumentError: the position is of another pipeline or mode.
    """
    job = core.state.jobs.get(request.job_name)
    there = job.iterations.get(request.iteration) if job is not None else None
    if there is not None and there.clients and there.rounds is None and not request.cached:
        raise FailedPreconditionError(
            f"pass {request.iteration + 1} of job {request.job_name!r} is being read by {len(there.clients)} client(s)",
            did="it continues from its present position",
            hint="close their iterators first, or resume under another job_name",
        )
    if at_beginning(position):
        return
    if not _available_workers(core):
        raise FailedPreconditionError(
            "the service has no worker that could continue from the reading position",
            did="no pass was begun",
            hint="start workers first: svc.scale(2), or `dsnb worker --dispatcher ...`",
        )
    info = core.state.datasets[request.dataset_id].info
    position = _as_tasks(position)
    counts = [provider.count for provider in info.providers] if request.mode == "DYNAMIC" else []
    providers = position.providers
    fits = len(providers) == len(counts) and all(p.next <= count for p, count in zip(providers, counts, strict=True))
    runs = [run for task in position.tasks for run in task.splits]
    if not fits or any(run.provider >= len(counts) or run.end > counts[run.provider] for run in runs):
        raise InvalidArgumentError(
            f"the reading position does not fit the splits of the dataset in mode {request.mode}",
            did="no pass was begun",
            hint="load it into the pipeline that it was taken from, in the same processing mode",
        )


def create_iteration_at(core: Context, job: Job, request: JoinRequest, position: IterationPosition) -> Iteration:
    """Create an iteration at a position that `check` accepted, with its tasks assigned to the workers in turn."""
    key, position = key_of(position), _as_tasks(position)
    core.record(
        r.IterationCreated(
            job=job.name,
            iteration=request.iteration,
            num_shards=position.num_shards,
            entropy=_entropy_at(core, position),
            resumed=True,
            providers=tuple((p.repetition, p.next) for p in position.providers),
            num_consumers=job.num_consumers,
            position_key=key,
        )
    )
    workers = _available_workers(core)
    for task, worker in zip(position.tasks, cycle(workers), strict=False):
        add_task(
            core, job.name, request.iteration, worker, _start_position(task), task.shard if position.num_shards else -1
        )
    if job.mode == "DYNAMIC" or not position.tasks:
        for worker in workers[len(position.tasks) :]:
            add_task(core, job.name, request.iteration, worker, None, -1)
    return job.iterations[request.iteration]


def _entropy_at(core: Context, position: IterationPosition) -> int:
    """The root of an iteration that begins at a position: that of its shards, or of the saved one for consumers."""
    if position.num_shards and position.tasks:
        return position.tasks[0].entropy
    return position.entropy or core.entropy


def _as_tasks(position: IterationPosition) -> IterationPosition:
    """Put a position in the order of the splits into those terms in which an iteration is created.

    One task makes the unit anew that was read in part; the units after it are assigned as usual.
    """
    if position.unit is None:
        return position
    at = position.unit
    end = at.unit_end if at.skip else at.unit
    unit = TaskPosition(
        entropy=position.entropy,
        skip=at.skip,
        skipped_errors=at.skipped_errors,
        splits=(SplitRange(first=at.unit, end=end),),
    )
    return replace(position, tasks=(unit,) if at.skip else (), providers=(ProviderPosition(next=end),))


def _start_position(task: TaskPosition) -> TaskPosition:
    """A client's position of a task, without what is for takeovers only."""
    return TaskPosition(
        entropy=task.entropy, skip=task.skip, skipped_errors=task.skipped_errors, ended=task.ended,
        splits=tuple(task.splits),
    )  # fmt: skip


def add_task(
    core: Context, job: str, iteration: int, worker: str, start_position: TaskPosition | None, shard: int
) -> None:
    """Create a task of an iteration for a worker, at a position."""
    task_id = str(core.next_number("task"))
    core.record(
        r.TaskCreated(
            task_id=task_id,
            job=job,
            iteration=iteration,
            worker=worker,
            shard=shard,
            start_position=start_position,
        )
    )
    core.instruct(e.StartTask(worker=worker, task_id=task_id))


def _available_workers(core: Context) -> list[str]:
    return [worker.uid for worker in core.state.workers.values() if worker.available]
