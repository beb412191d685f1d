"""Coordinated reads: the schedule of which task gives which round, agreed with all consumers.

Theory of operation. A round is n consecutive elements of one task, one for each of n consumers. Rounds are numbered
from 0, and every consumer takes all of them in order. A task numbers its own rounds from 0 too: these are its *task
rounds*. A *schedule* lists the tasks that give the rounds from a first round on, in turn, and the task round with which
each of them begins (`wire.schedule` has the arithmetic). A schedule has no end: consumers follow it until a change,
without the dispatcher.

A new schedule is due when the tasks change (a worker joined, drains or is lost) or the consumers change (one joined or
joined again). All consumers must switch at the same round, and none of them may have taken that round by the old
schedule. So the dispatcher *halts* all consumers: each stops where it is and reports which round it would take next.
When all n have answered, the new schedule begins at the highest of these rounds. Consumers that are not there yet
follow the old schedule up to it. A halt takes one message in each direction: a thread of the consumer answers it,
independent of the user's code. If a consumer leaves during a halt, so that not all can answer, the others resume by
the old schedule.

A consumer takes an element only after its worker has confirmed that all n consumers have received theirs: the task
round is *complete*. This keeps rounds whole when a worker dies. Any round that one consumer has taken, all have
received, so all consumers can take every round before the new schedule. They may hold further task rounds of the dead
worker. Those that all of them have received are given in a schedule of that task only, which precedes the schedule
without the task. The others are dropped and counted.

A new consumer (its process was restarted, or its loop was run again) replaces the one with the same index and begins
with the first round of the schedule that is made for it. A worker keeps each task round until all consumers have taken
it, so that it can send it to a new consumer again. If all consumers are new, no consumer may know the last round; the
oldest task rounds that the workers still have determine which are next.

Schedules, halts and the clients of the consumers are in the journal. Where each consumer is, is not: consumers report
it again. So a dispatcher that died during a halt asks again, and one that died after it sends the schedule again.

`update_schedules` checks all coordinated iterations after each event, and decides by the state only, not by the event.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import ConsumerState, Context
from dsnb.dispatcher.handlers import jobs
from dsnb.dispatcher.round_state import Rounds
from dsnb.dispatcher.state import Iteration, Job
from dsnb.monitor.formatting import format_duration, plural
from dsnb.wire.schedule import ConsumerReport, next_task_round, schedule_of, task_round_of


def consumer_reported(core: Context, client_id: str, report: ConsumerReport) -> None:
    """Store where a consumer is, from its report."""
    client = core.state.clients.get(client_id)
    if client is None or client.cancelled_by:
        return
    iteration = core.state.iteration(client.job, client.iteration)
    if iteration.rounds is None:
        return
    state = next((s for s in consumer_states(core, client.job, iteration) if s.client_id == client_id), None)
    if state is None:
        return
    if report.begun and (report.round > state.round or not state.begun):
        state.changed_at = core.now
        state.round = max(state.round, report.round)
    state.begun = report.begun
    state.halt = report.halt
    state.received = {held.task_id: held.received for held in report.held}
    state.oldest_rounds = {held.task_id: held.oldest_round for held in report.held}


def update_schedules(core: Context) -> Exception | None:
    """Halt, resume or reschedule all coordinated iterations as needed.

    Returns:
        The last exception, which is a bug of dsnb, or None. A bug in one iteration does not stop the others.
    """
    bug = None
    for job in core.state.jobs.values():
        for iteration in job.iterations.values() if job.num_consumers else ():
            try:
                _update_schedule(core, job, iteration)
            except Exception as mistake:  # noqa: BLE001 - a bug may be anything
                bug = mistake
    return bug


def consumer_states(core: Context, job: str, iteration: Iteration) -> list[ConsumerState]:
    """The last known state of each consumer, updated for clients that joined or left since the last call."""
    rounds = iteration.rounds
    assert rounds is not None, "only coordinated passes have consumers"
    states = core.transient.consumer_states.get((job, iteration.number))
    if states is None:
        states = core.transient.consumer_states[job, iteration.number] = [
            ConsumerState(changed_at=core.now) for _ in rounds.client_ids
        ]
    for state, client in zip(states, rounds.client_ids, strict=True):
        if state.client_id != client:
            state.replace_client(client, core.now)
    return states


def schedulable_tasks(core: Context, iteration: Iteration) -> tuple[str, ...]:
    """The tasks that can give rounds: those whose workers do not drain."""
    tasks = core.state.tasks
    return tuple(t for t in iteration.tasks if not core.state.workers[tasks[t].worker].draining)


def _update_schedule(core: Context, job: Job, iteration: Iteration) -> None:
    rounds, states = iteration.rounds, consumer_states(core, job.name, iteration)
    assert rounds is not None
    all_here = all(rounds.client_ids)
    if rounds.halted and not all_here:
        core.record(r.RoundsResumed(job=job.name, iteration=iteration.number))
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    if not all_here:
        return
    tasks = schedulable_tasks(core, iteration)
    if not rounds.halted and _change_is_due(rounds, tasks):
        core.record(r.RoundsHalted(job=job.name, iteration=iteration.number))
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    if rounds.halted and tasks and all(state.halt == rounds.halt_count for state in states):
        _make_schedules(core, job, iteration, _Agreement(rounds, states))


def _change_is_due(rounds: Rounds, tasks: tuple[str, ...]) -> bool:
    if not tasks:
        return False  # no replacement: draining tasks continue to give the rounds that they have
    return rounds.client_ids != rounds.scheduled_client_ids or tasks != rounds.schedules[-1].tasks


def _make_schedules(core: Context, job: Job, iteration: Iteration, agreed: _Agreement) -> None:
    """Make the new schedules, from where all consumers are."""
    first, tasks = agreed.first_round, schedulable_tasks(core, iteration)
    gone = [task for task in agreed.last_schedule.tasks if task not in tasks] if agreed.last_schedule else []
    for task in gone:
        begin, end, begun = agreed.remaining_rounds(task)
        if end > begin:  # all consumers hold these task rounds: give them in a schedule of this task only
            _record_schedule(core, job, iteration, agreed, first, (task,), (begin,), dropped=begun - end)
            first += end - begin
    dropped = sum(begun - end for begin, end, begun in map(agreed.remaining_rounds, gone) if end <= begin)
    task_rounds = tuple(map(agreed.next_task_round, tasks))
    _record_schedule(core, job, iteration, agreed, first, tasks, task_rounds, dropped=dropped)
    for task in [task for task in iteration.tasks if task not in tasks]:
        jobs.drop_task(core, task)
    core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    _announce(core, job, iteration, agreed, first)


def _record_schedule(
    core: Context,
    job: Job,
    iteration: Iteration,
    agreed: _Agreement,
    first_round: int,
    tasks: tuple[str, ...],
    task_rounds: tuple[int, ...],
    dropped: int,
) -> None:
    core.record(
        r.ScheduleChanged(
            job=job.name,
            iteration=iteration.number,
            first_round=first_round,
            tasks=tasks,
            task_rounds=task_rounds,
            needed_from=agreed.needed_from,
            dropped=dropped,
        )
    )


def _announce(core: Context, job: Job, iteration: Iteration, agreed: _Agreement, first: int) -> None:
    rounds = iteration.rounds
    assert rounds is not None
    names = ", ".join(core.state.workers[core.state.tasks[task].worker].name for task in rounds.schedules[-1].tasks)
    core.instruct(e.Announce(level="info", text=f"job {job.name!r}: from round {first:,} on {names} give rounds"))
    dropped = rounds.dropped - agreed.dropped_before
    if dropped:
        text = f"job {job.name!r}: {dropped} round(s) were dropped, for not all consumers had received them"
        core.instruct(e.Announce(level="warning", text=text))


class _Agreement:
    """The rounds at which the next schedule begins, computed from the answers of all consumers to a halt.

    Attributes:
        dropped_before: How many rounds had been dropped before this agreement.
    """

    def __init__(self, rounds: Rounds, states: Sequence[ConsumerState]) -> None:
        self.rounds, self.states = rounds, states
        self.last_schedule = rounds.schedules[-1] if rounds.schedules else None
        # New consumers may all know less than the last schedule, so its first round is a lower bound.
        known = [standing.round for standing in states]
        self.first_round = max(*known, self.last_schedule.first_round) if self.last_schedule else 0
        self.dropped_before = rounds.dropped

    @property
    def needed_from(self) -> int:
        """The lowest round that some consumer has yet to take."""
        return min((standing.round for standing in self.states if standing.begun), default=self.first_round)

    def next_task_round(self, task: str) -> int:
        """The task round with which a task begins: the next one, or the oldest that its worker still has if later."""
        kept = max(standing.oldest_rounds.get(task, 0) for standing in self.states)
        if self.last_schedule is None or task not in self.last_schedule.tasks:
            return kept
        return max(kept, next_task_round(self.last_schedule, task, self.first_round))

    def remaining_rounds(self, task: str) -> tuple[int, int, int]:
        """The task rounds left of a task that is gone.

        Returns:
            The next task round to give; the first that not all consumers have received; the first that none has.
        """
        begin = self.next_task_round(task)
        received = [standing.received.get(task, 0) if standing.begun else 0 for standing in self.states]
        return begin, max(begin, min(received)), max(begin, *received)


def waits_for(core: Context, job: Job, iteration: Iteration) -> str:
    """What the next round waits for, as text; empty if it waits for nothing."""
    rounds, states = iteration.rounds, consumer_states(core, job.name, iteration)
    assert rounds is not None
    if job.paused_by:
        return f"a resume: {job.paused_by} paused the job"
    if not rounds.schedules or rounds.halted:
        lacking = [
            at for at, standing in enumerate(states) if not standing.client_id or standing.halt != rounds.halt_count
        ]
        return _describe_consumers(core, states, lacking) or (
            "" if schedulable_tasks(core, iteration) else _no_worker_text()
        )
    if not iteration.tasks:
        return _no_worker_text()
    wanted = max(state.round for state in states)
    schedule = schedule_of(rounds.schedules, wanted) or rounds.schedules[0]
    task, task_round = task_round_of(schedule, max(wanted, schedule.first_round))
    lacking = [at for at, standing in enumerate(states) if standing.received.get(task, 0) <= task_round]
    if len(lacking) < len(states):
        return _describe_consumers(core, states, lacking)
    known = core.state.tasks.get(task)
    worker = core.state.worker_name(known) if known else "a worker that is gone"
    return f"worker {worker}, whose pipeline has not produced round {wanted:,} yet"


def _no_worker_text() -> str:
    return "a worker: the service has none"


def _describe_consumers(core: Context, states: Sequence[ConsumerState], indices: Sequence[int]) -> str:
    return " and ".join(_describe_consumer(core, at, states[at]) for at in indices)


def _describe_consumer(core: Context, index: int, state: ConsumerState) -> str:
    name, seconds = f"consumer {index}", format_duration(core.now - state.changed_at)
    if state.client_id and state.begun:
        return f"{name}, which has taken {plural(state.round, 'round')}, the last {seconds} ago"
    if state.client_id:
        return f"{name}, which came {seconds} ago and has not begun"
    return f"{name}, which left {seconds} ago" if state.ever_joined else f"{name}, which has not come"
