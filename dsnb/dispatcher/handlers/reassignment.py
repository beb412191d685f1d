"""Reassignment: another worker takes over a task, and each client receives the rest of its elements once.

Theory of operation. A task is *unassigned* when its worker dies, leaves, is removed, or returns as another process. The
task's incarnation goes up, so that the dispatcher recognises and refuses late reports and requests of the old worker.
All clients of the iteration see the change in their next update. Each client stops taking elements of the old
incarnation and reports its *holding*: which elements of the task it consumed, and which it received and has yet to
consume. This takes one message in each direction and does not depend on the user's code. The dispatcher stops waiting
for a client that dies before it answers.

When all clients have answered, the task is *assigned* to a worker. The worker begins at the `ResumePosition` of the old
worker's last report: no client needs an element before it. The worker produces the same elements again, drops those
that were consumed, keeps those that a client holds in case that client dies, and sends the rest. Elements keep their
numbers, so clients continue in the same sequence.

This requires a pipeline that produces the same number of elements in the same order again, and a bounded amount of
repeated work. Otherwise the dispatcher gives the task up, and counts and announces what did not arrive: elements where
the pipeline makes one element of each split, splits otherwise. A task of which no client received anything can always
begin again. `on_worker_loss` of the job may say otherwise: "replay" does not limit the work, "repeat" begins unfinished
splits or the shard again in a new sequence, and "drop" gives up whatever was partly delivered.

The dispatcher also gives up a task whose workers die one after another without progress: its elements kill them.

In mode OFF each worker produces the whole dataset, so a worker's task ends with the worker and begins again only if the
same worker returns. The same holds for endless data of the cross-trainer cache, which no trainer reads from the
beginning.

A task of an iteration without clients stays unassigned until a client joins (see `suspend`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers import cached_iterations, jobs, shards
from dsnb.dispatcher.handlers.cached_iterations import is_endless
from dsnb.dispatcher.split_ranges import Unassignment, merge_positions, trainer_position
from dsnb.dispatcher.state import Iteration, Job, Task, Worker, entropy_of
from dsnb.monitor.formatting import plural
from dsnb.pipeline.registered import registered_inexact_reason
from dsnb.wire.field_groups import is_colocated
from dsnb.wire.messages import JoinRequest, Loss, ReaderPosition, TaskHolding, TaskPosition, TrainerPosition
from dsnb.wire.ranges import Ranges

MAX_REPEATED_MS: Final = 30_000
"""The most work, in milliseconds, that a takeover may repeat."""

MAX_WORKER_DEATHS: Final = 4
"""How many workers may die in a row without progress of a task: a function that kills workers would kill them all."""


def unassign(core: Context, task: Task, worker: str, reason: str, *, died: bool = False) -> None:
    """Take a task off its worker; `reassign_or_give_up` then decides what happens to it.

    Args:
        core: State and decisions of the dispatcher.
        task: The task to unassign.
        worker: The name of the worker that is gone; empty if the worker stays.
        reason: Why the worker is gone, as in "was lost".
        died: Whether the worker died, in which case the task may be the cause.
    """
    consumed = core.transient.consumed_positions(task)
    core.transient.forget_progress(task.task_id)
    core.record(r.TaskUnassigned(task_id=task.task_id, worker=worker, reason=reason, trainers=consumed, died=died))
    core.transient.holdings[task.task_id] = {}
    core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))


def suspend(core: Context, iteration: Iteration) -> bool:
    """Keep only the positions of an iteration's tasks until a client joins.

    Returns:
        False if a task could not be taken over from its position; then nothing changes.
    """
    tasks = [task for task in map(core.state.tasks.__getitem__, iteration.tasks) if not task.ended]
    if any(no_takeover_reason(core, task) for task in tasks):
        return False
    for task in tasks:
        if task.unassignment is None:
            core.instruct(e.DropTask(worker=task.worker, task_id=task.task_id, incarnation=task.incarnation))
            unassign(core, task, "", "")
    return True


def hand_over_from_draining(core: Context, iteration: Iteration) -> None:
    """Take the tasks of an iteration without clients off draining workers, so that these can leave."""
    for task in map(core.state.tasks.__getitem__, iteration.tasks):
        if task.unassignment is None and not task.ended and core.state.workers[task.worker].leaving:
            hand_over(core, task)


def hand_over(core: Context, task: Task) -> None:
    """Take a task off a draining worker; another worker continues once the clients have reported their holdings."""
    worker = core.state.workers[task.worker]
    core.instruct(e.DropTask(worker=worker.uid, task_id=task.task_id, incarnation=task.incarnation))
    unassign(core, task, worker.name, "was drained")


def holdings_reported(core: Context, client_id: str, holdings: tuple[TaskHolding, ...]) -> None:
    """Store a client's holdings of unassigned tasks, and reassign the tasks that all clients have reported."""
    for holding in holdings:
        task = core.state.tasks.get(holding.task_id)
        if task is not None and task.unassignment is not None and task.incarnation == holding.incarnation:
            core.transient.holdings.setdefault(task.task_id, {})[client_id] = holding
            reassign_or_give_up(core, task)


def client_joined(core: Context, client_id: str, iteration: Iteration, request: JoinRequest) -> None:
    """Handle a new client, or one that was counted as lost and joins again: it holds nothing of unassigned tasks."""
    for task in unassigned_tasks(core, iteration):
        holding = TaskHolding(task_id=task.task_id, incarnation=task.incarnation)
        core.transient.holdings.setdefault(task.task_id, {})[client_id] = holding
        reassign_or_give_up(core, task)
    client = core.state.clients[client_id]
    # If the iteration is finished, the client opens no task, and no worker can compare what it consumed.
    over = [h for h in request.holdings if iteration.finished or h.task_id not in core.state.tasks]
    repeated = sum(_consumed_unknown_to_worker(core, request.previous_client_id, holding) for holding in over)
    if repeated:
        announce_repeated(core, client.job, repeated)
    count_undelivered(core, client.job, iteration, client.trainer_id, request.holdings)


def _consumed_unknown_to_worker(core: Context, client_id: str, holding: TaskHolding) -> int:
    """How many elements a client that was counted as lost had consumed without the worker knowing.

    The worker gave them to other clients.
    """
    if holding.held:  # the task was dropped: no other client got its elements
        return 0
    known = core.transient.known_consumption(client_id, holding.task_id)
    # Without the worker's report, the client's own count, which is too low if its last messages did not arrive.
    return max(0, holding.received - known) if known is not None else holding.unacked


def count_undelivered(
    core: Context, job_name: str, iteration: Iteration, trainer_id: str, holdings: tuple[TaskHolding, ...]
) -> None:
    """Count elements that a client held of dropped tasks: no other client gets them."""
    job = core.state.jobs[job_name]
    lost = sum(max(0, part.end - part.first) for h in holdings if h.task_id not in core.state.tasks for part in h.held)
    if not lost:
        return
    if iteration.providers and _one_element_per_split(core, job):
        core.record(r.SplitsLost(job=job_name, iteration=iteration.number, provider=0, count=lost))
    whom = f"trainer {trainer_id!r}" if job.cached else "its readers"
    why = "their reader went away before it consumed them"
    text = f"job {job_name!r}: {plural(lost, 'element')} of lost workers did not reach {whom}: {why}"
    core.instruct(e.Announce(level="warning", text=text))


def announce_repeated(core: Context, job: str, elements: int) -> None:
    """Announce how many elements were consumed twice."""
    told = plural(elements, "element")
    text = f"job {job!r}: {told} reached two readers; one of them came back after it was counted as lost"
    core.instruct(e.Announce(level="warning", text=text))


def retry_unassigned(core: Context, iteration: Iteration) -> None:
    """Check the unassigned tasks of an iteration again, after a client left or a worker joined."""
    for task in unassigned_tasks(core, iteration):
        reassign_or_give_up(core, task)


def unassigned_tasks(core: Context, iteration: Iteration) -> list[Task]:
    """The tasks of an iteration that have no worker."""
    return [task for task in map(core.state.tasks.__getitem__, iteration.tasks) if task.unassignment is not None]


def reassign_or_give_up(core: Context, task: Task) -> None:
    """Assign an unassigned task, or give it up, once all clients have reported their holdings of it."""
    job = core.state.jobs[task.job]
    iteration = job.iterations[task.iteration]
    holdings = core.transient.holdings.setdefault(task.task_id, {})
    if not iteration.clients or any(client not in holdings for client in iteration.clients):
        return  # without clients the task stays unassigned until one joins
    assert task.unassignment is not None
    holdings_by_client = [
        (core.state.clients[client].trainer_id, client, holdings[client]) for client in iteration.clients
    ]
    trainers = _trainer_positions(
        task, holdings_by_client if job.cached else [("", client, holding) for _, client, holding in holdings_by_client]
    )
    if not _another_may_begin(job, task, task.unassignment):
        _give_up(core, job, task, trainers)
        return
    untouched = not any(t.offset or t.consumed or any(reader.received for reader in t.readers) for t in trainers)
    takes_over = untouched or not no_takeover_reason(core, task)
    if not takes_over and job.on_worker_loss != "repeat":
        _give_up(core, job, task, trainers)
    elif (worker := least_busy(core, iteration)) is not None:
        _assign(
            core,
            task,
            worker,
            _takeover_position(core, task, trainers) if takes_over else _repeated_position(iteration, task),
            trainers,
        )


def _another_may_begin(job: Job, task: Task, unassignment: Unassignment) -> bool:
    """Whether another worker may produce an unassigned task at all, be it from where it was or from its beginning."""
    ends_with_its_worker = job.mode == "OFF" and unassignment.worker != ""
    deadly = task.worker_deaths >= MAX_WORKER_DEATHS
    return not (ends_with_its_worker or deadly or task.unfinished_splits.truncated)


def no_takeover_reason(core: Context, task: Task) -> str:
    """Why no other worker could take a task over, as text; empty if one could."""
    job = core.state.jobs[task.job]
    if job.on_worker_loss == "drop" and task.unassignment is not None and task.unassignment.died:
        return 'on_worker_loss is "drop"'
    if reason := no_replay_reason(core, job):
        return reason
    if task.unfinished_splits.truncated:
        return "it was given more runs of splits than are remembered"
    repeated_ms = task.resume_position.repeated_ms if task.resume_position is not None else 0
    if repeated_ms > MAX_REPEATED_MS and job.on_worker_loss not in ("replay", "repeat"):
        return f"about {repeated_ms // 1000} s of work would have to be done again"
    return ""


def no_replay_reason(core: Context, job: Job) -> str:
    """Why no other worker can make the elements of a job's tasks again, as text; empty if one can."""
    if job.cached and is_endless(core, job):
        return "trainers share endless data"
    return registered_inexact_reason(core.state.datasets[job.dataset_id].info, job.mode)


def guarantee(core: Context, job: Job) -> tuple[str, str]:
    """How often each element of a job comes if workers die, and why it is not "exactly once"."""
    if job.mode == "OFF":
        return "at most once", "each worker produces the whole dataset"
    if job.num_consumers:
        return "at most once", "a round is whole or not at all"
    if job.on_worker_loss == "drop":
        return "at most once", 'on_worker_loss is "drop"'
    reason = no_replay_reason(core, job)
    return (
        ("exactly once", "")
        if not reason
        else ("at least once" if job.on_worker_loss == "repeat" else "at most once", reason)
    )


def waits_for_worker(core: Context, job: Job, iteration: Iteration, worker: Worker) -> bool:
    """Whether an iteration has a task that only this worker can begin again."""
    return _needs_same_worker(core, job) and any(
        t.unassignment and t.unassignment.worker == worker.name for t in unassigned_tasks(core, iteration)
    )


def _needs_same_worker(core: Context, job: Job) -> bool:
    """Whether only the same worker can begin a task of a job again."""
    return job.mode == "OFF" or (job.cached and is_endless(core, job))


def least_busy(core: Context, iteration: Iteration) -> Worker | None:
    """The available worker with the fewest tasks of an iteration; None if no worker is available.

    One tagged "COLOCATED" is the last choice, since readers in other processes may leave it out.
    """
    tasks = [core.state.tasks[task].worker for task in iteration.tasks]
    present = [worker for worker in core.state.workers.values() if worker.available and not _is_overdue(core, worker)]
    return min(present, key=lambda worker: (is_colocated(worker.tags), tasks.count(worker.uid)), default=None)


def _is_overdue(core: Context, worker: Worker) -> bool:
    """Whether a worker's deadline has passed, so that the next tick counts it as lost."""
    return core.transient.worker_deadlines.get(worker.uid, core.now) < core.now


def _assign(core: Context, task: Task, worker: Worker, begin: TaskPosition, trainers: list[TrainerPosition]) -> None:
    before = task.unassignment
    assert before is not None
    if begin.first_index:
        _close_iteration(core, task)  # at once: the new worker begins without the first elements
    core.transient.holdings.pop(task.task_id, None)
    delivered = 0 if begin.taken_over else _received_count(trainers)
    core.record(r.TaskAssigned(task_id=task.task_id, worker=worker.uid, start_position=begin, delivered=delivered))
    core.instruct(
        e.StartTask(worker=worker.uid, task_id=task.task_id),
        e.NotifyClients(job=task.job, iteration=task.iteration),
    )
    if before.worker:  # empty if the task was suspended because its iteration had no clients
        does = "takes over" if begin.taken_over else "repeats"
        text = f"job {task.job!r}: worker {worker.name} {does} the part of worker {before.worker}"
        if not begin.taken_over:
            text += ": elements of its unfinished splits may come twice"
        core.instruct(e.Announce(level="info" if begin.taken_over else "warning", text=text))


def _close_iteration(core: Context, task: Task) -> None:
    """Close the iteration of a shared task: trainers that want every element join another iteration."""
    if core.state.jobs[task.job].cached:
        cached_iterations.close_iteration(core, task.task_id)


def _takeover_position(core: Context, task: Task, trainers: list[TrainerPosition]) -> TaskPosition:
    """Where the next worker begins: at the reported resume position if no trainer needs earlier elements."""
    job = core.state.jobs[task.job]
    iteration = job.iterations[task.iteration]
    known = task.takeover_position or task.start_position or TaskPosition(entropy=entropy_of(iteration, task))
    resume = task.resume_position
    needing = _expected_trainers(core, job, iteration) if job.cached else {""}
    needing -= set(task.trainers_past_resume)
    if resume is None or needing - {t.trainer_id for t in trainers if t.offset >= resume.index}:
        # A trainer still needs elements before the resume position: begin where the last incarnation began.
        return replace(known, splits=task.unfinished_splits.ranges(), taken_over=True, trainers=tuple(trainers))
    return TaskPosition(
        entropy=known.entropy,
        ended=known.ended,
        splits=task.unfinished_splits.without(resume.splits if job.cached else ()).ranges(),
        taken_over=True,
        first_index=resume.index,
        pipeline_position=resume.pipeline_position,
        trainers=tuple(trainers),
    )


def _repeated_position(iteration: Iteration, task: Task) -> TaskPosition:
    """Where a worker begins a new sequence of all that an unassigned task had not finished."""
    return TaskPosition(entropy=entropy_of(iteration, task), splits=task.unfinished_splits.ranges())


def _trainer_positions(task: Task, holdings: Iterable[tuple[str, str, TaskHolding]]) -> list[TrainerPosition]:
    """The position of each trainer, from what is recorded and from the holdings of its clients."""
    known, readers = list(task.consumed_positions), dict[str, list[ReaderPosition]]()
    for trainer_id, client, holding in holdings:
        known.append(TrainerPosition(trainer_id=trainer_id, consumed=holding.consumed))
        reader = ReaderPosition(client_id=client, received=holding.received, held=holding.held)
        readers.setdefault(trainer_id, []).append(reader)
    return [replace(trainer, readers=tuple(readers.get(trainer.trainer_id, ()))) for trainer in merge_positions(known)]


# ---- losses


def _give_up(core: Context, job: Job, task: Task, trainers: list[TrainerPosition]) -> None:
    """Count what did not arrive; then begin the task again if its worker returned, else drop it."""
    unassignment, iteration = task.unassignment, job.iterations[task.iteration]
    assert unassignment is not None
    returned = next((w for w in core.state.workers.values() if w.name == unassignment.worker and w.available), None)
    restarts = returned is not None and _needs_same_worker(core, job)
    _close_iteration(core, task)
    missing = _missing_elements(core, job, task, trainers)
    splits = record_lost_splits(core, task, missing)
    for trainer_id, elements in missing:
        ends = elements < 0 and (splits > 0 or not iteration.providers)
        if elements > 0 or ends or restarts or is_endless(core, job):
            _notify_loss(core, task, unassignment, trainer_id, splits, elements, restarts=restarts)
    core.transient.holdings.pop(task.task_id, None)
    if restarts and returned is not None:
        delivered = _received_count(trainers)
        core.record(r.TaskAssigned(task_id=task.task_id, worker=returned.uid, delivered=delivered))
        core.instruct(e.StartTask(worker=returned.uid, task_id=task.task_id))
    else:
        if iteration.shards:  # mark the shard as ended: beginning it again would repeat elements that arrived
            core.record(r.TaskEnded(task_id=task.task_id))
        received = tuple(trainer_position(t.trainer_id, Ranges(_received_ranges(t))) for t in trainers)
        jobs.drop_task(core, task.task_id, received=received)
        jobs.finish_if_tasks_ended(core, job.name, iteration)
    core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))


def record_lost_splits(core: Context, task: Task, missing: Iterable[tuple[str, int]]) -> int:
    """Record splits as lost if some of their elements did not arrive, and return how many.

    If each split makes one element, these are the missing elements; otherwise all splits that the task was given and
    had not finished.
    """
    total, exact = 0, max((elements for _, elements in missing), default=-1)
    for number, given in task.splits_given.items():
        lost = exact if exact >= 0 else given - (task.splits_done[number] if number < len(task.splits_done) else 0)
        if lost > 0:
            total += lost
            core.record(r.SplitsLost(job=task.job, iteration=task.iteration, provider=number, count=lost))
    return total


def _missing_elements(core: Context, job: Job, task: Task, trainers: list[TrainerPosition]) -> list[tuple[str, int]]:
    """How many elements did not reach each trainer; -1 if that is unknown."""
    expected = expected_elements(core, job, task)
    if not job.cached:
        had = Ranges(part for trainer in trainers for part in _received_ranges(trainer))
        return [("", -1 if expected is None else max(0, expected - len(had)))]
    # Endless data have no expected number: a trainer misses what the furthest trainer received.
    had_by = {trainer.trainer_id: Ranges(_received_ranges(trainer)) for trainer in trainers}
    furthest = max((had.end for had in had_by.values()), default=0)
    end = expected if expected is not None else furthest if is_endless(core, job) else None
    iteration = job.iterations[task.iteration]
    readers = _expected_trainers(core, job, iteration)
    return [
        (trainer_id, -1 if end is None else max(0, end - len(had_by.get(trainer_id, Ranges()))))
        for trainer_id in iteration.trainers
        if trainer_id in readers
    ]


def _expected_trainers(core: Context, job: Job, iteration: Iteration) -> set[str]:
    """The trainers that expect all of an iteration; for finite data, also those without a client at present."""
    present = _present_trainers(core, iteration)
    return present if is_endless(core, job) else present | (set(iteration.trainers) - set(iteration.ended_trainers))


def _present_trainers(core: Context, iteration: Iteration) -> set[str]:
    """The trainers that have a client in an iteration."""
    return {core.state.clients[client].trainer_id for client in iteration.clients}


def _received_ranges(trainer: TrainerPosition) -> Iterable[tuple[int, int]]:
    yield 0, trainer.offset
    for part in trainer.consumed:
        yield part.first, part.end
    for reader in trainer.readers:
        for part in reader.held:
            yield part.first, part.end


def _received_count(trainers: Iterable[TrainerPosition]) -> int:
    """How many elements of a task clients have, consumed or not."""
    return len(Ranges(part for trainer in trainers for part in _received_ranges(trainer)))


def expected_elements(core: Context, job: Job, task: Task) -> int | None:
    """How many elements the task would have made of its shard or its splits; None if that is unknown."""
    dataset = core.state.datasets[job.dataset_id].info
    if dataset.cardinality < 0 or (task.start_position is not None and task.start_position.skipped_errors):
        return None
    skipped = task.start_position.skip if task.start_position is not None else 0
    if job.mode == "OFF":
        return dataset.cardinality - skipped
    if job.mode == "DYNAMIC":
        return task.total_splits - skipped if _one_element_per_split(core, job) else None
    size = shards.shard_size(dataset, job.mode, len(job.iterations[task.iteration].shards), task.shard)
    return None if size is None else size - skipped


def _one_element_per_split(core: Context, job: Job) -> bool:
    """Whether each split of a job's dataset makes one element."""
    dataset = core.state.datasets[job.dataset_id].info
    return len(dataset.providers) == 1 and dataset.providers[0].count == dataset.cardinality


def _notify_loss(
    core: Context,
    task: Task,
    unassignment: Unassignment,
    trainer_id: str,
    splits: int,
    elements: int,
    *,
    restarts: bool,
) -> None:
    loss = Loss(
        task_id=task.task_id,
        worker=unassignment.worker,
        splits=splits,
        reason=unassignment.reason,
        elements=elements,
        trainer_id=trainer_id,
        restarts=restarts,
    )
    core.record(r.TaskLost(loss=loss))
    core.instruct(e.NotifyLoss(job=task.job, iteration=task.iteration, loss=loss))
    iteration = core.state.iteration(task.job, task.iteration)
    if not trainer_id or trainer_id in _present_trainers(core, iteration) | set(
        iteration.lost_trainers
    ):  # a trainer that left does not miss the elements
        core.instruct(e.Announce(level="warning", text=_loss_text(loss, task.job)))


def _loss_text(loss: Loss, job: str) -> str:
    if not loss.elements:
        return f"job {job!r}: the part of worker {loss.worker} {'begins again' if loss.restarts else 'ends here'}"
    if loss.elements > 0:
        count = plural(loss.elements, "element")
    else:
        count = f"elements of {plural(loss.splits, 'split')}" if loss.splits else "an unknown number of elements"
    whom = f"trainer {loss.trainer_id!r}" if loss.trainer_id else "its readers"
    ending = "; that part begins again" if loss.restarts else ""
    return f"job {job!r}: {count} of the part of worker {loss.worker} did not reach {whom}{ending}"
