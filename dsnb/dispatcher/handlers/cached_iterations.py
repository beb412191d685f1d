"""Iterations of finite data shared through the cross-trainer cache: which one a trainer joins, and when it is over.

Theory of operation. A trainer that asked to lose nothing joins the newest iteration that is not closed: no element of
it has been evicted or lost. Before a worker evicts the first element of an iteration, it asks the dispatcher to close
the iteration (`close_on_request`). The answer names the clients that have joined and want every element, and the worker
keeps elements also for those of them that have not opened its task yet. A trainer that may skip joins the newest
iteration. A trainer that returns to an iteration it left continues there. One with a reading position, in the order of
the splits, joins an iteration that began at this position, and in which it has not read. A trainer never joins an
iteration older than one that it has read to its end. If no iteration fits, the next one begins, at the same time as the
previous one if that still has clients.

A worker cannot tell when such an iteration is over, because trainers may join until it is closed. So it is over when
each of its trainers has reported that it received everything. A trainer whose client was lost still counts, for as long
as an iteration without clients is kept: the same client may return, or a new one may join. Endless data are one
iteration that never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers import positions
from dsnb.dispatcher.state import Client, Iteration, Job, Task
from dsnb.pipeline.operation import INFINITE_CARDINALITY
from dsnb.wire.messages import ClosedIteration, EndedTask, JoinedClient, JoinRequest, TaskReport


def is_endless(core: Context, job: Job) -> bool:
    """Whether a job's data are known to have no end."""
    return core.state.datasets[job.dataset_id].info.cardinality == INFINITE_CARDINALITY


def choose_iteration(core: Context, job: Job, request: JoinRequest) -> int:
    """The number of the iteration that a trainer joins; the next free number if none fits."""
    trainer = request.trainer_id
    key = positions.key_of(request.position)
    had = max((number for number, it in job.iterations.items() if trainer in it.ended_trainers), default=-1)
    running = [it for number, it in sorted(job.iterations.items()) if number > had and not it.finished]
    own = [it for it in running if trainer in it.trainers]
    if own and request.position is None:
        return own[-1].number
    complete_only = request.complete_only and not is_endless(core, job)
    open_to_it = [
        it.number for it in running if it.position_key == key and not (complete_only and it.closed) and it not in own
    ]
    return open_to_it[-1] if open_to_it else job.newest + 1


def close_iteration(core: Context, task_id: str) -> None:
    """Close a task's iteration, as its first elements are evicted: trainers that want all of them join another one."""
    task = core.state.tasks.get(task_id)
    if task is not None and not core.state.iteration(task.job, task.iteration).closed:
        core.record(r.IterationClosed(job=task.job, iteration=task.iteration))


def close_on_request(core: Context, worker: str, report: TaskReport) -> None:
    """Close the iteration of a task that must evict its first elements; tell its worker who joined and wants them."""
    task = core.state.tasks.get(report.task_id)
    if task is None or (task.worker, task.incarnation) != (worker, report.incarnation):
        return  # the task was reassigned
    close_iteration(core, task.task_id)
    clients = (core.state.clients[client] for client in core.state.iteration(task.job, task.iteration).clients)
    joined = tuple(
        JoinedClient(client_id=client.client_id, trainer_id=client.trainer_id)
        for client in clients
        if client.complete_only
    )
    closed = ClosedIteration(task_id=task.task_id, incarnation=task.incarnation, clients=joined)
    core.instruct(e.ConfirmClosed(worker=worker, closed=closed))


def trainer_ended(core: Context, client: Client, ended_tasks: tuple[EndedTask, ...]) -> bool:
    """Handle a trainer's report that it received all of these tasks; returns whether the iteration is over for it."""
    iteration = core.state.iteration(client.job, client.iteration)
    known = {(task.task_id, task.incarnation) for task in ended_tasks}
    tasks = [core.state.tasks[task_id] for task_id in iteration.tasks]
    ended = all((task.task_id, task.incarnation) in known and task.unassignment is None for task in tasks)
    # A draining worker was refused the rest of the splits; workers that join later get them.
    if not tasks or not ended or any(task.splits_refused for task in tasks):
        return iteration.finished
    received = {task.task_id: task.received for task in ended_tasks}
    if not _has_everything(core, client, tasks, received):
        return False
    if not client.finished:
        core.record(r.ClientFinished(client_id=client.client_id))
    others = (core.state.clients[other] for other in iteration.clients)
    if any(other.trainer_id == client.trainer_id and not other.finished for other in others):
        return True  # another client of this trainer has the rest; if it dies, its elements are kept for a successor
    if client.trainer_id not in iteration.ended_trainers:
        core.record(r.TrainerEnded(job=client.job, iteration=client.iteration, trainer_id=client.trainer_id))
    finish_if_all_ended(core, client.job, iteration)
    return True


def _has_everything(core: Context, client: Client, tasks: Iterable[Task], received: Mapping[str, int]) -> bool:
    """Whether nothing is left for a client; workers that cannot tell must report first.

    If another client of its trainer is gone, the worker may have sent it the end before it took back what that one had.
    """
    if (client.job, client.iteration) in core.transient.iterations_without_departures:
        return True
    unsure = [task for task in tasks if not _has_sent_everything(core, task, client, received[task.task_id])]
    core.instruct(*(e.RequestReport(worker=worker) for worker in dict.fromkeys(task.worker for task in unsure)))
    return not unsure


def _has_sent_everything(core: Context, task: Task, client: Client, received: int) -> bool:
    progress = core.transient.progress.get(task.task_id)
    if not core.transient.has_confirmed_releases(task.worker) or progress is None:
        return False
    links = (link for link in progress.links if link.client_id == client.client_id)
    return progress.incarnation == task.incarnation and any(link.at_end and link.sent == received for link in links)


def finish_if_all_ended(core: Context, job: str, iteration: Iteration) -> None:
    """Finish an iteration once each trainer that reads it, or that may return for the rest, has received all of it."""
    trainers = {core.state.clients[client].trainer_id for client in iteration.clients} | set(iteration.lost_trainers)
    if iteration.finished or not iteration.ended_trainers or not trainers <= set(iteration.ended_trainers):
        return
    for task_id in iteration.tasks:
        core.record(r.TaskEnded(task_id=task_id))
    core.record(r.IterationFinished(job=job, iteration=iteration.number))
    announce_end(core, job, iteration)
    core.instruct(e.NotifyClients(job=job, iteration=iteration.number))
    if not iteration.clients:
        core.transient.iterations_unread_since[job, iteration.number] = core.now


def announce_end(core: Context, job: str, iteration: Iteration) -> None:
    """Announce the end of an iteration, unless its job is anonymous."""
    if not core.state.jobs[job].anonymous:
        core.instruct(e.Announce(level="info", text=f"pass {iteration.number + 1} of job {job!r} ended"))
