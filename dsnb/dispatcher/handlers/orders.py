"""The messages that describe tasks: a worker's order, and what clients are told of an iteration and its tasks."""

from __future__ import annotations

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers.cached_iterations import is_endless
from dsnb.dispatcher.handlers.positions import start_position_of
from dsnb.dispatcher.state import Iteration, Task, entropy_of
from dsnb.errors import NotFoundError
from dsnb.wire.field_groups import WorkParameters, shared
from dsnb.wire.messages import ClientUpdate, TaskInfo, TaskOrder
from dsnb.wire.schedule import Leftovers, RoundsUpdate


def task_order(core: Context, task: Task) -> TaskOrder:
    """What a worker needs to begin a task."""
    job = core.state.jobs[task.job]
    iteration = job.iterations[task.iteration]
    return TaskOrder(
        **shared(WorkParameters, job),
        task_id=task.task_id,
        dataset_id=job.dataset_id,
        job_name=job.name,
        iteration=task.iteration,
        incarnation=task.incarnation,
        num_providers=len(iteration.providers),
        num_shards=len(iteration.shards),
        shard=max(0, task.shard),
        entropy=entropy_of(iteration, task),
        position=start_position_of(iteration, task),
        endless=is_endless(core, job),
        paused=bool(job.paused_by),
        definition=core.state.datasets[job.dataset_id].definition,
        leftovers=_leftovers(iteration, task.task_id),
    )


def _leftovers(iteration: Iteration, task: str) -> Leftovers | None:
    rounds = iteration.rounds
    return rounds.leftovers.get(task) if rounds is not None and rounds.leftovers is not None else None


def requested_task_order(core: Context, task_id: str) -> TaskOrder:
    """The order of a task that a worker asks for, because a client reads a task that the worker does not have.

    Raises:
        NotFoundError: the task has ended, or no worker has it at present. A worker that began it now would begin
            without the position that the task gets when it is assigned, and keep it.
    """
    task = core.state.tasks.get(task_id)
    if task is None:
        raise NotFoundError(f"the task {task_id} is unknown", did="it may have ended")
    if task.unassignment is not None:
        raise NotFoundError(f"the task {task_id} is not assigned to a worker", did="it was not started")
    return task_order(core, task)


def task_infos(core: Context, job: str, iteration: int) -> tuple[TaskInfo, ...]:
    """An iteration's tasks, in the form that its clients get."""
    state = core.state
    # In the cross-trainer cache a late trainer may still need elements that all others have consumed.
    past, dynamic = not state.jobs[job].cached, state.jobs[job].mode == "DYNAMIC"
    return tuple(
        TaskInfo(
            task_id=task.task_id,
            worker=state.worker_name(task),
            worker_uid=task.worker,
            address=state.workers[task.worker].address if task.unassignment is None else "",
            incarnation=task.incarnation,
            ended=task.ended,
            unassigned=task.unassignment is not None,
            needed_from=task.resume_position.index if task.resume_position is not None and past else 0,
            sequence_incarnation=task.sequence_incarnation,
            begun=dynamic and (task.total_splits > 0 or task.start_position is not None),
            worker_tags=state.workers[task.worker].tags if task.unassignment is None else (),
            data_port=state.workers[task.worker].data_port if task.unassignment is None else 0,
        )
        for task in map(state.tasks.__getitem__, state.iteration(job, iteration).tasks)
    )


def client_update(core: Context, job: str, number: int, losses_received: int | None = None) -> ClientUpdate:
    """The current state of an iteration, with its losses from number `losses_received` on; None for no losses."""
    known = core.state.jobs.get(job)
    iteration = known.iterations.get(number) if known else None
    if known is None or iteration is None:
        return ClientUpdate()
    return ClientUpdate(
        has_state=True,
        tasks=task_infos(core, job, number),
        finished=iteration.finished,
        losses=() if losses_received is None else tuple(iteration.losses[losses_received:]),
        rounds=_rounds_update(iteration),
        paused=bool(known.paused_by),
    )


def _rounds_update(iteration: Iteration) -> RoundsUpdate | None:
    rounds = iteration.rounds
    if rounds is None:
        return None
    halt = rounds.halt_count if rounds.halted else 0
    return RoundsUpdate(
        halt=halt, schedules=tuple(rounds.schedules), dropped=rounds.dropped, agreed_round=rounds.agreed_round
    )
