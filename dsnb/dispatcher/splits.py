"""Handing out splits: each to one task, and the same answer to the same question, however often it is asked."""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.runs import Provider
from dsnb.dispatcher.state import Task
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError


def assign_splits(core: Context, event: e.SplitsRequested) -> e.Splits:
    """The next run of splits for a task, sized to the work that is left; at least one.

    A request for an older repetition than the provider's is told that it is over; one for a newer repetition begins
    it, and what was left of the old one is abandoned (the longer side of a zip).

    Raises:
        NotFoundError: the task is unknown.
        FailedPreconditionError: the cursor fits neither the last answer nor the next.
    """
    task = core.state.tasks.get(event.task_id)
    if task is None:
        raise NotFoundError(f"the task {event.task_id} is unknown", did="no split was given")
    if task.unassignment is not None or task.incarnation != event.incarnation:
        raise NotFoundError(f"the task {event.task_id} belongs to another worker now", did="no split was given")
    iteration = core.state.iteration(task.job, task.iteration)
    if not 0 <= event.provider < len(iteration.providers):
        raise InvalidArgumentError(f"the task {event.task_id} has no split provider {event.provider}")
    provider = iteration.providers[event.provider]
    given = task.grants.get(event.provider)
    if given and (given.repetition, given.cursor) == (event.repetition, event.cursor):
        return e.Splits(first=given.first, end=given.end)
    _check_cursor(task, event)
    if event.repetition < provider.repetition or task.splits_refused:
        return e.Splits(done=True)
    leaving = core.state.workers[task.worker].draining and iteration.rounds is None  # else consumers agree on its end
    if leaving and _has_splits_left(provider, event.repetition):
        core.record(r.SplitsRefused(task_id=task.task_id))
        return e.Splits(done=True)
    if event.repetition > provider.repetition:
        _begin_repetition(core, task, event.provider, event.repetition)
    if provider.next == provider.count:
        _begin_repetition(core, task, event.provider, event.repetition + 1)
        return e.Splits(done=True)
    end = provider.next + _grant_size(provider, len(iteration.tasks), event.want)
    core.record(
        r.SplitsGiven(
            task_id=task.task_id,
            provider=event.provider,
            repetition=event.repetition,
            cursor=event.cursor,
            first=provider.next,
            end=end,
        )
    )
    grant = task.grants[event.provider]
    return e.Splits(first=grant.first, end=grant.end)


def restore_grant(core: Context, task: Task, reported: e.ReportedGrant) -> None:
    """Take the word of a worker that came back for the last run that its task was given, if we know less.

    What the journal lacks may have been given to others since; what they have is theirs.
    """
    iteration = core.state.iteration(task.job, task.iteration)
    known = task.grants.get(reported.provider)
    if reported.provider >= len(iteration.providers) or reported.end > iteration.providers[reported.provider].count:
        return
    if known is not None and (known.repetition, known.cursor) >= (reported.repetition, reported.cursor):
        return
    for other in map(core.state.tasks.__getitem__, iteration.tasks):
        run = other.grants.get(reported.provider)
        if other is not task and run and run.repetition == reported.repetition:
            if run.first < reported.end and reported.first < run.end:
                return
    core.record(
        r.SplitsReported(
            task_id=task.task_id,
            provider=reported.provider,
            repetition=reported.repetition,
            cursor=reported.cursor,
            first=reported.first,
            end=reported.end,
        )
    )


def _check_cursor(task: Task, event: e.SplitsRequested) -> None:
    given = task.grants.get(event.provider)
    expected = 0
    if given and given.repetition == event.repetition:
        expected = given.cursor + given.end - given.first
    elif given and given.repetition > event.repetition:
        return  # an old question; it is told that its repetition is over
    if event.cursor != expected:
        raise FailedPreconditionError(
            f"the task {task.task_id} asks for splits from {event.cursor} on, and had {expected}",
            did="no split was given",
        )


def _has_splits_left(provider: Provider, repetition: int) -> bool:
    """Whether a repetition, this or a later one, has splits for anybody."""
    return provider.next < provider.count or (repetition > provider.repetition and provider.count > 0)


def _begin_repetition(core: Context, task: Task, provider: int, repetition: int) -> None:
    core.record(r.RepetitionBegun(job=task.job, iteration=task.iteration, provider=provider, repetition=repetition))


def _grant_size(provider: Provider, tasks: int, want: int) -> int:
    """Half of an even share of what is left, so that no task sits on work that another could do."""
    left = provider.count - provider.next
    return max(1, min(want, left // (2 * max(1, tasks)), left))
