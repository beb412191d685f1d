"""Jobs and their iterations: joining and leaving of clients, creation of tasks, and the end of an iteration."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.coverage import count_of
from dsnb.dispatcher.handlers import (
    cached_iterations,
    job_parameters,
    orders,
    positions,
    reassignment,
    receipts,
    shards,
)
from dsnb.dispatcher.handlers.datasets import known_dataset
from dsnb.dispatcher.state import ENDED, Client, Iteration, Job, Task
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError, did_you_mean
from dsnb.monitor.formatting import format_mode
from dsnb.pipeline.modes import MODES, STATIC_MODES
from dsnb.wire.field_groups import JobParameters, ReaderCount, shared
from dsnb.wire.job_names import qualified_job_name
from dsnb.wire.messages import ClientRelease, EndRequest, JoinReply, JoinRequest, TaskHolding, TrainerPosition

MAX_FINISHED_ITERATIONS = 16
"""How many finished iterations of a job are kept in full; of older ones only the number is kept."""


def join(core: Context, request: JoinRequest) -> JoinReply:
    """Add a client to one iteration of a job; create the job, the iteration and its tasks if they do not exist.

    Raises:
        NotFoundError: the dataset is not registered, or a client rejoins an iteration that was dropped.
        UnimplementedError: the mode is DYNAMIC and the pipeline's sources cannot be split.
        FailedPreconditionError: the pipeline is marked for HINT and the mode is another one; or the iteration cannot
            begin at the position.
        InvalidArgumentError: the mode is unknown, the job exists with other parameters, the iteration cannot be
            divided into shards, or the position is of another pipeline.
    """
    info = known_dataset(core, request.dataset_id).info
    if request.mode not in MODES:
        raise InvalidArgumentError(f"{request.mode!r} is no processing mode", hint=f"it is one of {', '.join(MODES)}")
    if request.mode == "DYNAMIC" and info.unsplittable_reason:
        raise UnimplementedError(info.unsplittable_reason, hint='use the mode "parallel_epochs" (OFF)')
    shards.check(core, request, info)
    if request.position is not None:
        positions.check(core, request, request.position)
    if request.previous_client_id:
        _check_rejoin(core, request)
    job = _get_or_create_job(core, request)
    number = request.previous_iteration if request.previous_client_id else _choose_iteration(core, job, request)
    if request.position is not None and not job.cached and not positions.is_for(job.iterations.get(number), request):
        _drop_existing_iterations(core, job, number)
    iteration = job.iterations.get(number)
    if iteration is None:
        iteration = _create_iteration(core, job, number, request)
    _refuse_second_reader(job, iteration)
    returned = _returns(core, iteration, request)
    if job.num_consumers:
        _remove_former_client(core, job, request.consumer_index)
    readers, losses = len(iteration.clients), len(iteration.losses)
    client_id = str(core.next_number("client"))
    core.record(
        r.ClientJoined(
            client_id=client_id,
            job=job.name,
            iteration=iteration.number,
            trainer_id=request.trainer_id,
            consumer_index=request.consumer_index if job.num_consumers else -1,
            holdings=request.holdings,
            complete_only=request.complete_only,
            previous_client_id=request.previous_client_id,
        )
    )
    core.transient.client_deadlines[client_id] = core.now + core.config.client_timeout_ms / 1000
    core.transient.iterations_unread_since.pop((job.name, iteration.number), None)
    core.transient.jobs_unused_since.pop(job.name, None)
    reassignment.client_joined(core, client_id, iteration, request)
    return JoinReply(
        client_id=client_id,
        job_name=job.name,
        iteration=iteration.number,
        tasks=orders.task_infos(core, job.name, iteration.number),
        finished=iteration.finished,
        other_clients=readers,
        missing_shards=shards.without_worker(core, iteration),
        # A consumer that joins when nothing is left must be told why.
        loss_count=0 if job.num_consumers and not iteration.tasks else losses,
        instance=core.state.instance,
        report_interval_ms=core.config.client_report_interval_ms,
        paused_by=job.paused_by,
        consumer_timeout_ms=core.config.consumer_timeout_ms,
        client_timeout_ms=core.config.client_timeout_ms,
        deployment_mode=core.config.deployment_mode or "",
        returned=returned,
        next_round=_left_at(core, job, iteration, request) if returned else 0,
    )


def _returns(core: Context, iteration: Iteration, request: JoinRequest) -> bool:
    """Whether a consumer, or a trainer of a cross-trainer cache, has read in the iteration before, and left it."""
    if request.previous_client_id:
        return False  # it has not left: the dispatcher counted it as lost
    if iteration.rounds is not None:
        return request.consumer_index in iteration.rounds.joined_consumers
    still_there = {core.state.clients[client].trainer_id for client in iteration.clients}
    return request.trainer_id in iteration.trainers and request.trainer_id not in still_there


def _left_at(core: Context, job: Job, iteration: Iteration, request: JoinRequest) -> int:
    """The round that a consumer's last client would have taken next; 0 if that is not known, or it is no consumer."""
    states = core.transient.consumer_states.get((job.name, iteration.number))
    return states[request.consumer_index].round if states is not None else 0


def _refuse_second_reader(job: Job, iteration: Iteration) -> None:
    """Refuse a client of an iteration that another one reads in the order of the splits, without the cache.

    Raises:
        FailedPreconditionError: there is another client.
    """
    if job.cached or iteration.finished:
        return
    if iteration.clients and any(provider.ordered for provider in iteration.providers):
        raise FailedPreconditionError(
            f"job {job.name!r} has a reader already, and its elements come in one order, to one reader "
            "(deterministic=True)",
            did="this reader did not join it",
            hint="let readers share it with rank= and world_size=, or with cross_trainer_cache=; or leave job_name out",
        )


def _check_rejoin(core: Context, request: JoinRequest) -> None:
    """Refuse a client that was counted as lost and rejoins an iteration that no longer exists.

    Raises:
        NotFoundError: the iteration or its job was dropped.
    """
    job = core.state.jobs.get(request.job_name)
    iteration = job.iterations.get(request.previous_iteration) if job is not None else None
    if (
        iteration is None
        or not request.previous_client_id.isdecimal()
        or int(request.previous_client_id) < iteration.first_client
    ):
        raise unknown_client_error(request.previous_client_id)  # a new iteration may have the same number
    before = core.state.clients.get(request.previous_client_id)
    if before is not None and not before.cancelled_by:
        remove_client(core, before, request.holdings)


def _choose_iteration(core: Context, job: Job, request: JoinRequest) -> int:
    """The number of the iteration that a client reads. A consumer reads the first one that it has not read whole."""
    if job.cached:
        return cached_iterations.choose_iteration(core, job, request)
    if request.position is not None:
        return request.iteration
    if job.num_consumers:
        known = [*job.iterations, *job.archived_iterations]
        return next(number for number in count(min(known, default=request.iteration)) if not _is_over(job, number))
    number = request.iteration
    while request.skip_finished and is_finished(job, number):
        number += 1
    return number


def _is_over(job: Job, number: int) -> bool:
    iteration = job.iterations.get(number)
    rounds = iteration.rounds if iteration is not None else None
    # Once a consumer has ended, nothing is left for one that joins: the others have received all rounds.
    return is_finished(job, number) or (rounds is not None and bool(rounds.ended_consumers))


def is_finished(job: Job, number: int) -> bool:
    """Whether an iteration of a job is finished, archived or not."""
    iteration = job.iterations.get(number)
    return iteration.finished if iteration is not None else number in job.archived_iterations


def _remove_former_client(core: Context, job: Job, consumer: int) -> None:
    """Remove the client that a new one replaces as a consumer.

    One that died may still count as a reader of an earlier iteration, where the others would wait for it.
    """
    for iteration in list(job.iterations.values()):
        if iteration.rounds is not None and (before := iteration.rounds.client_ids[consumer]):
            remove_client(core, core.state.clients[before])


def remove_client(
    core: Context,
    client: Client,
    reported: tuple[TaskHolding, ...] = (),
    *,
    died: bool = False,
    count: ReaderCount | None = None,
) -> None:
    """Remove a client from its iteration. Elements that it was sent and did not consume go to the other clients.

    What the client consumed, by the holdings `reported` now and before, is recorded: its workers may die before they
    report it. So is its own `count` of that; None if it did not say so.
    """
    iteration = core.state.iteration(client.job, client.iteration)
    if died:  # what it reported when it confirmed its end may be all that is known of it
        reported, count = reported or client.final_holdings or (), client.final_count
    before = [table.pop(client.client_id, None) for table in core.transient.holdings.values()]
    holdings = [
        replace(holding, held=()) if holding.task_id in core.state.tasks else holding
        for holding in (*before, *reported)
        if holding is not None
    ]
    told = tuple(holding for holding in holdings if holding.consumed or holding.held)
    core.record(r.ClientLeft(client_id=client.client_id, died=died, holdings=told, count=count))
    if client.leaves_elements(died=died):
        core.transient.iterations_without_departures.discard((client.job, client.iteration))
    core.transient.forget_client(client.client_id)
    for worker in dict.fromkeys(core.state.tasks[task].worker for task in iteration.tasks):
        # The worker may lack the client's last acknowledgements, if their connection broke.
        known = tuple(
            replace(holding, consumed=(), held=())
            for holding in reported
            if (task := core.state.tasks.get(holding.task_id)) is not None and task.worker == worker
        )
        release_client(core, worker, client.client_id, died=died, holdings=known)
    reassignment.retry_unassigned(core, iteration)
    if iteration.clients:
        return
    core.transient.iterations_unread_since[client.job, client.iteration] = core.now
    if iteration.read or (iteration.rounds is not None and iteration.rounds.ended_consumers):
        end_all_tasks(core, client.job, iteration)


def end_all_tasks(core: Context, job: str, iteration: Iteration) -> None:
    """Finish an iteration that its clients have read to the end.

    A worker may have died since, or joined: its task would never end, and the next client would read everything again.
    """
    for task in map(core.state.tasks.__getitem__, list(iteration.tasks)):
        if not task.ended:
            core.record(r.TaskEnded(task_id=task.task_id))
    finish_if_tasks_ended(core, job, iteration)


def release_client(
    core: Context, worker: str, client_id: str, *, died: bool = False, holdings: tuple[TaskHolding, ...] = ()
) -> None:
    """Have a worker take back the elements that a client did not consume, by the client's last report."""
    if worker in core.state.workers:
        number = core.transient.sent_releases[worker] = core.transient.sent_releases.get(worker, 0) + 1
        release = ClientRelease(client_id=client_id, number=number, died=died, holdings=holdings)
        core.instruct(e.ReleaseClient(worker=worker, release=release))


def confirm_end(core: Context, request: EndRequest) -> bool:
    """Whether an iteration is over for a client that has read these tasks to their end.

    It may be over for one client while others still consume: no client waits for another's consumption. But elements
    that a client does not consume go to the others. So if a client left early, the workers must confirm that nothing is
    left for this one, and while another client is disconnected the answer is False.
    """
    client = core.state.clients.get(request.client_id)
    if client is None or client.cancelled_by:
        raise unknown_client_error(request.client_id)
    if core.state.jobs[client.job].cached:
        return cached_iterations.trainer_ended(core, client, request.ended)
    iteration = core.state.iteration(client.job, client.iteration)
    if iteration.finished:
        _note_empty_reader(core, client, request)
        return True
    left = [task for task in map(core.state.tasks.__getitem__, iteration.tasks) if not task.ended]
    if not iteration.tasks:
        return False  # the workers left; workers that join later produce the rest
    if not _has_read(left, request) or not _can_end_for(core, client, iteration, left, request):
        return False
    _note_empty_reader(core, client, request)
    if iteration.clients == [client.client_id]:
        end_all_tasks(core, client.job, iteration)
    else:  # recorded, as the dispatcher may be restarted before the last client leaves and thereby ends the iteration
        holdings = _consumed_holdings(request)
        count = count_of(request.final_report) if request.final_report is not None and holdings is not None else None
        core.record(r.ClientFinished(client_id=client.client_id, holdings=holdings, count=count))
    return True


def _has_read(tasks: Iterable[Task], request: EndRequest) -> bool:
    """Whether the client has read these tasks to their end, and they are at work where it read them."""
    ended = {(task.task_id, task.incarnation) for task in request.ended}
    return all(
        (task.task_id, task.incarnation) in ended and task.unassignment is None and not task.splits_refused
        for task in tasks
    )


def _can_end_for(
    core: Context, client: Client, iteration: Iteration, tasks: Iterable[Task], request: EndRequest
) -> bool:
    """Whether nothing is left for the client of tasks that it has read; workers that cannot tell must report first."""
    others = (other for other in iteration.clients if other != client.client_id)
    if any(other in core.transient.disconnected_clients for other in others):
        return False  # it may be dead, and then this client gets its elements
    if (client.job, client.iteration) in core.transient.iterations_without_departures:
        return True
    received = {task.task_id: task.received for task in request.ended}
    unsure = [task for task in tasks if not _worker_confirms_end(core, task, client, received[task.task_id])]
    core.instruct(*(e.RequestReport(worker=worker) for worker in dict.fromkeys(task.worker for task in unsure)))
    return not unsure


def _note_empty_reader(core: Context, client: Client, request: EndRequest) -> None:
    """Note a client that reached the end of its iteration without having received an element."""
    if request.final_report is not None and not request.final_report.elements:
        core.transient.clients_without_elements.setdefault((client.job, client.iteration), set()).add(client.client_id)


def _consumed_holdings(request: EndRequest) -> tuple[TaskHolding, ...] | None:
    """What a client has consumed, if that is all that it received; else None."""
    if request.final_report is None:
        return None
    consumed = {holding.task_id: holding.received for holding in request.final_report.holdings}
    has_all = all(consumed.get(task.task_id, 0) >= task.received for task in request.ended)
    return request.final_report.holdings if has_all else None


def had_single_client(core: Context, client: Client) -> bool:
    """Whether no other client received elements of a client's finished iteration, and no elements were lost."""
    iteration = core.state.iteration(client.job, client.iteration)
    had_nothing = core.transient.clients_without_elements.get((client.job, client.iteration), set()) - {
        client.client_id
    }
    return iteration.join_count - len(had_nothing) == 1 and not iteration.losses


def _worker_confirms_end(core: Context, task: Task, client: Client, received: int) -> bool:
    """Whether a worker's last report shows that a task has nothing left, and nothing in transfer to a client.

    The worker must also have confirmed all releases: a released client's elements go back to the task.
    """
    progress = core.transient.progress.get(task.task_id)
    if (
        not core.transient.has_confirmed_releases(task.worker)
        or progress is None
        or progress.incarnation != task.incarnation
    ):
        return False
    sent = next((link.sent for link in progress.links if link.client_id == client.client_id), received)
    return progress.exhausted and sent == received


def forget(core: Context, name: str) -> None:
    """Drop a job that has no clients.

    Raises:
        NotFoundError: there is no such job.
        FailedPreconditionError: the job has clients.
    """
    job = known_job(core, name)
    if job.clients:
        raise FailedPreconditionError(
            f"the job {job.name!r} is read by {len(job.clients)} client(s)",
            did="it was kept",
            hint="close their iterators first",
        )
    drop_job(core, job)


def known_job(core: Context, name: str) -> Job:
    """The job of that name; if there is none, the only job with that name within its dataset id.

    Raises:
        NotFoundError: there is no such job, or several datasets have a job of that name.
    """
    job = core.state.jobs.get(name)
    if job is None:
        within = [job for job in core.state.jobs.values() if job.name == qualified_job_name(job.dataset_id, name)]
        if len(within) == 1:
            return within[0]
        names = ", ".join(sorted(core.state.jobs)) or "none"
        raise NotFoundError(
            f"there is no job {name!r}",
            did="nothing was changed",
            hint=f"{did_you_mean(name, core.state.jobs)}jobs of this service: {names}",
        )
    return job


def end_task(core: Context, task_id: str) -> None:
    """End a task that has no more elements for any client; the iteration is finished with its last task."""
    task = core.state.tasks.get(task_id)
    if task is None or task.ended:
        return
    cached = core.state.jobs[task.job].cached
    if task.splits_refused and not (cached and _awaits_trainer(core, task)):
        # A lost trainer may return for elements that only this task can produce: another worker takes it over.
        if cached and core.state.iteration(task.job, task.iteration).lost_trainers:
            reassignment.hand_over(core, task)
            return
        if cached:
            cached_iterations.close_iteration(core, task_id)
        drop_task_early(core, task)
        return
    if cached:
        return  # other trainers may still join; `cached_iterations` decides when the iteration is over
    core.record(r.TaskEnded(task_id=task_id))
    finish_if_tasks_ended(core, task.job, core.state.iteration(task.job, task.iteration))
    if core.state.workers[task.worker].leaving:
        drop_ended_task(core, task)


def drop_ended_task(core: Context, task: Task) -> None:
    """Drop an ended task of a leaving worker, which may be gone before the iteration is finished.

    The rest of the iteration may take hours, or wait for a worker that joins only when this one has left. In the other
    modes the ended task shows that its worker's part need not be produced again.
    """
    if core.state.jobs[task.job].mode == "DYNAMIC" and not core.state.iteration(task.job, task.iteration).finished:
        drop_task_early(core, task)


def _awaits_trainer(core: Context, task: Task) -> bool:
    """Whether a trainer of a task's iteration has yet to connect to the task's worker."""
    progress = core.transient.progress.get(task.task_id)
    came = {trainer.trainer_id for trainer in progress.trainers} if progress is not None else set()
    clients = core.state.iteration(task.job, task.iteration).clients
    return any(core.state.clients[client].trainer_id not in came for client in clients)


def drop_task_early(core: Context, task: Task) -> None:
    """Drop a task that gets no more splits: other tasks, or those of workers that join later, get the rest."""
    drop_task(core, task.task_id)
    core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))
    finish_if_tasks_ended(core, task.job, core.state.iteration(task.job, task.iteration))


def finish_if_tasks_ended(core: Context, job: str, iteration: Iteration) -> None:
    """Finish an iteration whose tasks have all ended.

    An iteration without tasks is finished too if its last shard was dropped, or a task that is gone had asked for
    splits after the last one, or its last rounds are planned.
    """
    rounds = iteration.rounds
    rounds_end = rounds is not None and rounds.end_round is not None
    may_be_over = iteration.tasks or ENDED in iteration.shards or iteration.splits_exhausted or rounds_end
    if iteration.finished or not may_be_over or (rounds is not None and rounds.waiting_tasks):
        return
    if all(core.state.tasks[task].ended for task in iteration.tasks):
        core.record(r.IterationFinished(job=job, iteration=iteration.number))
        missing = shards.without_worker(core, iteration)
        if missing:
            text = (
                f"pass {iteration.number + 1} of job {job!r} ended without shard {', '.join(missing)}: no worker came"
            )
            core.instruct(e.Announce(level="warning", text=text))
        cached_iterations.announce_end(core, job, iteration)
        core.instruct(e.NotifyClients(job=job, iteration=iteration.number))
        if not iteration.clients:
            core.transient.iterations_unread_since[job, iteration.number] = core.now


def add_task(core: Context, job: str, iteration: int, worker: str, shard: int = -1) -> None:
    """Create a task of an iteration for a worker."""
    task_id = str(core.next_number("task"))
    core.record(r.TaskCreated(task_id=task_id, job=job, iteration=iteration, worker=worker, shard=shard))
    core.instruct(e.StartTask(worker=worker, task_id=task_id))


def fill_shards(core: Context, job: str, iteration: Iteration) -> None:
    """Assign the shards of an iteration that have no task to workers without a shard."""
    for worker in list(core.state.workers.values()):
        shard = shards.vacant_shard(core, job, iteration, worker)
        if shard is not None:
            add_task(core, job, iteration.number, worker.uid, shard)
            core.instruct(e.NotifyClients(job=job, iteration=iteration.number))


def drop_task(
    core: Context, task_id: str, *, begins_again: bool = False, received: tuple[TrainerPosition, ...] = ()
) -> None:
    """Remove a task from its iteration and its worker; in a coordinated read another one may begin where it did.

    `received` is what its clients have of it, if that is known better than from the worker's last report.
    """
    task = core.state.tasks[task_id]
    expected = reassignment.expected_elements(core, core.state.jobs[task.job], task)
    core.record(
        r.TaskDropped(
            task_id=task_id,
            begins_again=begins_again,
            consumed=received or core.transient.consumed_positions(task),
            expected=-1 if expected is None else expected,
        )
    )
    core.transient.forget_progress(task_id)
    core.transient.holdings.pop(task_id, None)
    if task.worker:
        core.instruct(e.DropTask(worker=task.worker, task_id=task_id, incarnation=task.incarnation))


def free_iteration(core: Context, job: Job, iteration: Iteration) -> None:
    """Drop all tasks of an iteration, on the workers too, and what is known of its clients."""
    core.transient.iterations_unread_since.pop((job.name, iteration.number), None)
    core.transient.consumer_states.pop((job.name, iteration.number), None)
    core.transient.iterations_without_departures.discard((job.name, iteration.number))
    core.transient.clients_without_elements.pop((job.name, iteration.number), None)
    for task_id in list(iteration.tasks):
        drop_task(core, task_id)


def drop_iteration(core: Context, job: Job, iteration: Iteration) -> None:
    """Free an iteration that has no clients. A finished one stays known: a client that reads it finds it empty."""
    free_iteration(core, job, iteration)
    if iteration.finished:
        archive_iterations(core, job, MAX_FINISHED_ITERATIONS)
    else:
        core.record(r.IterationDropped(job=job.name, iteration=iteration.number))


def archive_iterations(core: Context, job: Job, kept: int) -> None:
    """Keep the newest finished iterations without clients, at most `kept`; archive the others."""
    done = [number for number, it in sorted(job.iterations.items()) if it.finished and not it.clients and not it.tasks]
    for number in done[: max(0, len(done) - kept)]:
        core.transient.iterations_unread_since.pop((job.name, number), None)
        receipt = receipts.receipt(core, job, number)
        core.record(r.IterationArchived(job=job.name, iteration=number, receipt=receipt))


def drop_job(core: Context, job: Job) -> None:
    """Forget a job with all its iterations. An anonymous one, which ends with its reader, leaves its receipt."""
    receipt = receipts.last_receipt(core, job, "was left by its reader") if job.anonymous else None
    if not job.anonymous:
        core.instruct(e.Announce(level="info", text=f"job {job.name!r} was forgotten"))
    for iteration in job.iterations.values():
        free_iteration(core, job, iteration)
    core.transient.jobs_unused_since.pop(job.name, None)
    core.record(r.JobForgotten(name=job.name, receipt=receipt))
    if not core.state.datasets[job.dataset_id].chosen:
        core.transient.datasets_unused_since[job.dataset_id] = core.now


def unknown_client_error(client_id: str) -> NotFoundError:
    """The error for a client that the dispatcher does not know, or no longer knows."""
    return NotFoundError(
        f"Unknown iteration client id {client_id}",
        did="it was removed: it was silent for client_timeout_ms, or its connection was broken for reconnect_ms",
        hint="iterate the dataset again; raise DispatcherConfig(client_timeout_ms=..., reconnect_ms=...) if clients "
        "pause for long, or the network does",
    )


def _get_or_create_job(core: Context, request: JoinRequest) -> Job:
    name = request.job_name or _new_name(core)
    job = core.state.jobs.get(name)
    if job is not None:
        change = job_parameters.check(core, job, request)
        if not change:
            return job
        drop_job(core, job)
        core.instruct(e.Announce(level="info", text=f"job {job.name!r} was replaced: {change}"))
    core.record(
        r.JobCreated(
            name=name,
            anonymous=not request.job_name,
            dataset_id=request.dataset_id,
            **shared(JobParameters, request) | {"weight": job_parameters.requested_weight(request)},
        )
    )
    if request.job_name:  # an anonymous job is created for each iteration of a plain loop: not worth an request
        core.instruct(e.Announce(level="info", text=f"job {name!r} was created ({format_mode(request.mode)})"))
    return core.state.jobs[name]


def _new_name(core: Context) -> str:
    number = core.next_number("job")
    while f"anonymous-{number}" in core.state.jobs:
        number += 1
    return f"anonymous-{number}"


def _drop_existing_iterations(core: Context, job: Job, number: int) -> None:
    """Forget an iteration, finished or not, so that it can begin at a position.

    Only a coordinated read may still have clients. Its consumers move on together: one that goes back to a position
    ends the reading of the others, in whichever unfinished iteration they are, until they go back too.
    """
    unfinished = [other for other, found in job.iterations.items() if job.num_consumers and not found.finished]
    for other in dict.fromkeys([number, *unfinished]):
        iteration = job.iterations.get(other)
        if iteration is not None:
            for client in list(iteration.clients):
                remove_client(core, core.state.clients[client])
            free_iteration(core, job, iteration)
        if iteration is not None or other in job.archived_iterations:
            core.record(r.IterationDropped(job=job.name, iteration=other))


def _create_iteration(core: Context, job: Job, number: int, request: JoinRequest) -> Iteration:
    core.transient.iterations_without_departures.add((job.name, number))
    if request.position is not None and not positions.at_beginning(request.position):
        return positions.create_iteration_at(core, job, request, request.position)
    archived = number in job.archived_iterations
    num_shards = shards.count(core) if job.mode in STATIC_MODES and not archived else 0
    core.record(
        r.IterationCreated(
            job=job.name,
            iteration=number,
            num_shards=num_shards,
            entropy=core.entropy,
            num_consumers=job.num_consumers,
            position_key=positions.key_of(request.position),
        )
    )
    if archived:
        core.record(r.IterationFinished(job=job.name, iteration=number))
        return job.iterations[number]
    for shard, worker in shards.first_owners(core):
        add_task(core, job.name, number, worker, shard if num_shards else -1)
    return job.iterations[number]
