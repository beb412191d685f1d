"""Assigning splits: each split to one task. A repeated request gets the same answer."""

from __future__ import annotations

from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.split_ranges import Provider
from dsnb.dispatcher.state import Task
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import SplitGrant, SplitsReply, SplitsRequest


def assign_splits(core: Context, request: SplitsRequest) -> SplitsReply:
    """The next range of splits for a task: at least one split, and fewer as less work is left.

    A request for an older repetition than the provider's is answered with `done`. A request for a newer repetition
    begins it, and the rest of the old one is abandoned (the longer side of a zip).

    Raises:
        NotFoundError: the task is unknown, or belongs to another worker or incarnation.
        InvalidArgumentError: the task has no such provider.
        FailedPreconditionError: the cursor matches neither the last answer nor the next.
    """
    task = core.state.tasks.get(request.task_id)
    if task is None:
        raise NotFoundError(f"the task {request.task_id} is unknown", did="no split was given")
    if task.unassignment is not None or task.incarnation != request.incarnation:
        raise NotFoundError(f"the task {request.task_id} belongs to another worker now", did="no split was given")
    iteration = core.state.iteration(task.job, task.iteration)
    if not 0 <= request.provider < len(iteration.providers):
        raise InvalidArgumentError(f"the task {request.task_id} has no split provider {request.provider}")
    provider = iteration.providers[request.provider]
    given = task.grants.get(request.provider)
    # The worker repeats a request whose answer was lost: same cursor, same splits.
    if given and (given.repetition, given.cursor) == (request.repetition, request.cursor):
        return SplitsReply(first=given.first, end=given.end)
    _check_cursor(task, request)
    if request.repetition < provider.repetition or task.splits_refused:
        return SplitsReply(done=True, refused=task.splits_refused)
    worker = core.state.workers[task.worker]
    # A replaced worker finishes the coordinated reads that it has begun: no other can continue their rounds.
    leaving = worker.draining or (worker.replaced and iteration.rounds is None)
    if leaving and _has_splits_left(provider, request.repetition):
        core.record(r.SplitsRefused(task_id=task.task_id))
        return SplitsReply(done=True, refused=True)
    if request.repetition > provider.repetition:
        _begin_repetition(core, task, request.provider, request.repetition)
    if provider.next == provider.count:
        _begin_repetition(core, task, request.provider, request.repetition + 1)
        return SplitsReply(done=True)
    end = provider.next + _grant_size(provider, len(iteration.tasks), request.want)
    grant = SplitGrant(
        provider=request.provider,
        repetition=request.repetition,
        cursor=request.cursor,
        first=provider.next,
        end=end,
    )
    core.record(r.SplitsGiven(task_id=task.task_id, grant=grant))
    return SplitsReply(first=grant.first, end=grant.end)


def restore_grant(core: Context, task: Task, reported: SplitGrant) -> None:
    """Record the last grant of a task as its reconnected worker reports it, if the journal has an older one.

    A power failure may take the last records of the journal. The splits may have been given to other tasks since; then
    the other tasks keep them.
    """
    iteration = core.state.iteration(task.job, task.iteration)
    known = task.grants.get(reported.provider)
    if reported.provider >= len(iteration.providers) or reported.end > iteration.providers[reported.provider].count:
        return
    if known is not None and (known.repetition, known.cursor) >= (reported.repetition, reported.cursor):
        return
    for other in map(core.state.tasks.__getitem__, iteration.tasks):  # refuse an overlap with another task's last grant
        run = other.grants.get(reported.provider)
        if other is not task and run and run.repetition == reported.repetition:
            if run.first < reported.end and reported.first < run.end:
                return
    core.record(r.SplitsReported(task_id=task.task_id, grant=reported))


def _check_cursor(task: Task, request: SplitsRequest) -> None:
    given = task.grants.get(request.provider)
    expected = 0
    if given and given.repetition == request.repetition:
        expected = given.cursor + given.end - given.first
    elif given and given.repetition > request.repetition:
        return  # a late request for an older repetition; `assign_splits` answers it with `done`
    if request.cursor != expected:
        raise FailedPreconditionError(
            f"the task {task.task_id} requested splits from {request.cursor} on, but had {expected}",
            did="no split was given",
        )


def _has_splits_left(provider: Provider, repetition: int) -> bool:
    """Whether this repetition, or a later one, has unassigned splits."""
    return provider.next < provider.count or (repetition > provider.repetition and provider.count > 0)


def _begin_repetition(core: Context, task: Task, provider: int, repetition: int) -> None:
    core.record(r.RepetitionBegun(job=task.job, iteration=task.iteration, provider=provider, repetition=repetition))


def _grant_size(provider: Provider, tasks: int, want: int) -> int:
    """Half of an even share of the splits that are left, so that no task holds work that another could do."""
    left = provider.count - provider.next
    return max(1, min(want, left // (2 * max(1, tasks)), left))
