"""Passes of finite data that trainers share through the cache: which one a trainer joins, and when it is over.

Theory of operation. A trainer that asked to lose nothing joins the newest pass that is still whole, that is, of which
no worker has let an element go; one that skips joins the newest pass there is. Who comes back to a pass that it left
goes on there. A trainer never goes back behind a pass that it has had to its end. Where there is no such pass the next
one begins, beside the one before if that is still read.

A worker cannot tell when such a pass is over: newcomers may join while it is whole. So it is over when each trainer
that reads it has said that it has had everything. A trainer whose reader was lost is waited for, for as long as a pass
without readers is kept: the same reader may come back, or a new one. Endless data are one such pass that never ends.
"""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.state import Client, Iteration, Job
from dsnb.pipeline.operation import INFINITE_CARDINALITY
from dsnb.wire.messages import EndedTask


def is_endless(core: Context, job: Job) -> bool:
    """Whether a job's data are known to have no end."""
    return core.state.datasets[job.dataset_id].cardinality == INFINITE_CARDINALITY


def choose_iteration(core: Context, job: Job, event: e.Join) -> int:
    """The number of the pass that a trainer joins; of a new one if none fits."""
    trainer = event.trainer_id
    had = max((number for number, it in job.iterations.items() if trainer in it.ended_trainers), default=-1)
    running = [it for number, it in sorted(job.iterations.items()) if number > had and not it.finished]
    own = [it.number for it in running if trainer in it.trainers]
    if own:
        return own[-1]
    complete_only = event.complete_only and not is_endless(core, job)
    open_to_it = [it.number for it in running if not (complete_only and it.closed)]
    return open_to_it[-1] if open_to_it else job.newest + 1


def close_iteration(core: Context, task_id: str) -> None:
    """A worker has let elements of a pass go: newcomers who want all of it get another."""
    task = core.state.tasks.get(task_id)
    if task is not None and not core.state.iteration(task.job, task.iteration).closed:
        core.record(r.IterationClosed(job=task.job, iteration=task.iteration))


def trainer_ended(core: Context, client: Client, ended_tasks: tuple[EndedTask, ...]) -> bool:
    """Take a trainer's word that it has had all of these tasks; whether its pass is over for it."""
    iteration = core.state.iteration(client.job, client.iteration)
    known = {(task.task_id, task.incarnation) for task in ended_tasks}
    tasks = [core.state.tasks[task_id] for task_id in iteration.tasks]
    ended = all((task.task_id, task.incarnation) in known and task.unassignment is None for task in tasks)
    # A worker that is leaving was refused the rest of the splits, and those are for workers to come.
    if not tasks or not ended or any(task.splits_refused for task in tasks):
        return iteration.finished
    core.transient.finished_clients.add(client.client_id)
    reading = set(iteration.clients) - core.transient.finished_clients
    if any(core.state.clients[other].trainer_id == client.trainer_id for other in reading):
        return True  # another reader of this trainer has the rest, which is not lost if that one dies
    if client.trainer_id not in iteration.ended_trainers:
        core.record(r.TrainerEnded(job=client.job, iteration=client.iteration, trainer_id=client.trainer_id))
    finish_if_all_ended(core, client.job, iteration)
    return True


def finish_if_all_ended(core: Context, job: str, iteration: Iteration) -> None:
    """Finish a pass that each trainer has had to its end that reads it, or that may come back for the rest."""
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
    """Let people know that a pass of a job with a name is over."""
    if not core.state.jobs[job].anonymous:
        core.instruct(e.Announce(level="info", text=f"pass {iteration.number} of job {job!r} ended"))
