"""Coordinated reads: the schedule of which task gives which round, agreed with all consumers.

Theory of operation. A round is n consecutive elements of one task, one for each of n consumers. Rounds are numbered
from 0, and every consumer takes all of them in order. A task numbers its own rounds from 0 too: these are its *task
rounds*. A *schedule* lists the tasks that give the rounds from a first round on, in turn, and the task round with which
each of them begins (`wire.schedule` has the arithmetic). Consumers follow it until a change, without the dispatcher.

New schedules are due when the tasks change (a worker joined, drains or is lost, or its data came to an end) or the
consumers change (one joined or joined again). All consumers must switch at the same round, and none of them may have
taken that round by the old schedule. So the dispatcher *halts* all consumers: each stops where it is and reports which
round it would take next. When all n have answered, they have agreed: the new schedules begin at the highest of these
rounds. Consumers that are not there yet follow the old schedule up to it. A halt takes one message in each direction: a
thread of the consumer answers it, independent of the user's code. If a consumer leaves during a halt, so that not all
can answer, the others resume by the old schedule.

A consumer takes an element only after its worker has confirmed that all n consumers have received theirs: the task
round is *complete*. This keeps rounds whole when a worker dies. Any round that one consumer has taken, all have
received, so all consumers can take every round before the new schedule. They may hold further task rounds of the dead
worker. Those that all of them have received are *settled*: they are given first, before the schedules without the task.
The others are dropped and counted.

A task that loses its worker before the first agreement begins again with another worker, at the position at which it
began. No round is planned before.

A new consumer (its process was restarted, or its loop was run again) replaces the one with the same index and begins
with the first round of the schedule that is made for it. A worker keeps each task round until all consumers have taken
it, so that it can send it to a new consumer again. If all consumers are new, no consumer may know the last round; the
oldest task rounds that the workers still have determine which are next.

Where the data of a task end, its worker reports how many elements there were. The task gives its whole rounds in turn
with the others and then leaves the schedule (`round_state.plan_rounds`). When the data of all tasks have ended, the up
to n - 1 elements that each of them has left are joined to rounds (`round_state.share_leftovers`); the workers are told
which consumer gets which of them, and the last schedule, which has no tasks, is the end. From then on no task is added.
A consumer that has taken all rounds need not be there any more: it holds up no agreement of the others. Once one has, a
consumer without a client holds up none either, for its next client reads the next iteration. When all have taken all
rounds, or none is left to take the rest, the iteration is finished.

Agreements, halts and the clients of the consumers are in the journal. Where each consumer is, is not: consumers report
it again. So a dispatcher that died during a halt asks again, and one that died after it sends the schedule again.

`update_schedules` checks all coordinated iterations after each event, and decides by the state only, not by the event.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import ConsumerState, Context
from dsnb.dispatcher.handlers import cached_iterations, jobs, positions, reassignment
from dsnb.dispatcher.round_state import Rounds, share_leftovers
from dsnb.dispatcher.state import NEVER_BEGUN, Client, Iteration, Job, Task, entropy_of
from dsnb.monitor.formatting import format_duration, plural
from dsnb.wire.messages import EndRequest, TaskReport
from dsnb.wire.schedule import ConsumerReport, RoundSchedule, schedule_of, task_round_of


def consumer_reported(core: Context, client_id: str, report: ConsumerReport) -> None:
    """Store where a consumer is, from its report."""
    client = core.state.clients.get(client_id)
    if client is None or client.cancelled_by:
        return
    iteration = core.state.iteration(client.job, client.iteration)
    if iteration.rounds is None:
        return
    states = consumer_states(core, client.job, iteration)
    index = next((index for index, state in enumerate(states) if state.client_id == client_id), None)
    if index is None:
        return
    state = states[index]
    if report.begun and (report.round > state.round or not state.begun):
        state.changed_at = core.now
        state.round = max(state.round, report.round)
    state.begun = report.begun
    state.halt = report.halt
    state.received = {held.task_id: held.received for held in report.held}
    state.oldest_rounds = {held.task_id: held.oldest_round for held in report.held}
    if report.begun:
        _note_consumer_end(core, client.job, iteration, index, report.round)


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


def schedulable_tasks(core: Context, job: Job, iteration: Iteration) -> tuple[str, ...]:
    """The tasks that can give rounds."""
    workers, tasks = core.state.workers, core.state.tasks
    assigned = [task for task in iteration.tasks if tasks[task].unassignment is None]
    return tuple(
        task
        for task in assigned
        if not workers[tasks[task].worker].draining or _gives_the_rest(core, job, iteration, task)
    )


def _gives_the_rest(core: Context, job: Job, iteration: Iteration, task: str) -> bool:
    """Whether a task of a draining worker still gives rounds: to the end of its data, which other tasks do not have."""
    rounds = iteration.rounds
    assert rounds is not None, "only coordinated passes have rounds"
    if task not in rounds.lengths:
        return job.mode == "DYNAMIC" or not cached_iterations.is_endless(core, job)
    whole, left = divmod(rounds.lengths[task], len(rounds.client_ids))
    if left and not cached_iterations.is_endless(core, job):
        return True  # until they are joined with those of the other tasks
    states = consumer_states(core, job.name, iteration)
    passed = min(states[index].round for index in rounds.present_consumers) if rounds.present_consumers else 0
    if passed < rounds.agreed_round:
        return True
    return (rounds.next_task_round(task, passed) or 0) < whole


def task_reported(core: Context, task: Task, progress: TaskReport) -> None:
    """Note that the data of a task have ended, if its worker says so."""
    iteration = core.state.iteration(task.job, task.iteration)
    rounds = iteration.rounds
    if rounds is not None and progress.state == "ended" and task.task_id not in rounds.lengths:
        core.record(
            r.TaskRoundsEnded(job=task.job, iteration=iteration.number, task_id=task.task_id, elements=progress.head)
        )


def begins_again(iteration: Iteration, task: Task) -> bool:
    """Whether a task whose worker is gone begins again with another worker: no consumer can have taken a round of it.

    Not if each worker reads everything from the beginning: then those that are there do.
    """
    assert iteration.rounds is not None, "only coordinated passes have rounds"
    return not iteration.rounds.schedules and (task.start_position is not None or bool(task.splits_given))


def begin_waiting_tasks(core: Context, job: str, iteration: Iteration) -> None:
    """Create tasks at the positions of those that wait for a worker or whose workers drain, if there is another one."""
    rounds, tasks, workers = iteration.rounds, core.state.tasks, core.state.workers
    if rounds is None or reassignment.least_busy(core, iteration) is None:
        return
    for task in [tasks[task] for task in iteration.tasks if workers[tasks[task].worker].draining]:
        if begins_again(iteration, task):
            jobs.drop_task(core, task.task_id, begins_again=True)
    waiting = list(rounds.waiting_tasks)
    for position in waiting:
        worker = reassignment.least_busy(core, iteration)
        assert worker is not None
        positions.add_task(
            core, job, iteration.number, worker.uid, position, position.shard if iteration.shards else -1
        )
    if waiting:
        core.instruct(e.NotifyClients(job=job, iteration=iteration.number))


def confirm_end(core: Context, client: Client, request: EndRequest) -> bool:
    """Whether a consumer has taken all rounds, by its report."""
    if request.final_report is not None and request.final_report.consumer is not None:
        consumer_reported(core, client.client_id, request.final_report.consumer)
    iteration = core.state.iteration(client.job, client.iteration)
    rounds = iteration.rounds
    assert rounds is not None, "only coordinated passes have consumers"
    return iteration.finished or rounds.client_ids.index(client.client_id) in rounds.ended_consumers


def _note_consumer_end(core: Context, job: str, iteration: Iteration, index: int, round_number: int) -> None:
    rounds = iteration.rounds
    assert rounds is not None
    if rounds.end_round is None or round_number < rounds.end_round or index in rounds.ended_consumers:
        return
    core.record(r.ConsumerEnded(job=job, iteration=iteration.number, index=index))
    if not rounds.present_consumers:
        jobs.end_all_tasks(core, job, iteration)


def _update_schedule(core: Context, job: Job, iteration: Iteration) -> None:
    rounds, states = iteration.rounds, consumer_states(core, job.name, iteration)
    assert rounds is not None
    present = [states[index] for index in rounds.present_consumers]
    can_answer = bool(present) and all(state.client_id for state in present)
    if rounds.halted and not can_answer:
        core.record(r.RoundsResumed(job=job.name, iteration=iteration.number))
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    if not can_answer or iteration.finished:
        return
    tasks = schedulable_tasks(core, job, iteration)
    if not rounds.halted and (_change_is_due(rounds, tasks) or _all_shards_are_gone(core, job, iteration)):
        core.record(r.RoundsHalted(job=job.name, iteration=iteration.number))
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    can_agree = bool(tasks) or rounds.leftovers is not None or _all_shards_are_gone(core, job, iteration)
    can_agree &= not rounds.waiting_tasks
    if rounds.halted and can_agree and all(state.halt == rounds.halt_count for state in present):
        _agree(core, job, iteration, _Agreement(rounds, states, tasks))


def _all_shards_are_gone(core: Context, job: Job, iteration: Iteration) -> bool:
    """Whether the shards of finite data were begun and have no task any more: nothing will come, and it must end."""
    rounds = iteration.rounds
    assert rounds is not None
    if rounds.leftovers is not None or iteration.tasks or cached_iterations.is_endless(core, job):
        return False
    return bool(rounds.schedules) and bool(iteration.shards) and NEVER_BEGUN not in iteration.shards


def _change_is_due(rounds: Rounds, tasks: tuple[str, ...]) -> bool:
    if not tasks and rounds.leftovers is None:
        return False  # no replacement: draining tasks continue to give the rounds that they have
    present = rounds.present_consumers
    before = rounds.scheduled_client_ids or [""] * len(rounds.client_ids)
    if any(rounds.client_ids[index] != before[index] for index in present):
        return True
    return set(tasks) != set(rounds.positions) or rounds.has_unplanned_end


def _agree(core: Context, job: Job, iteration: Iteration, agreed: _Agreement) -> None:
    """Plan the rounds from where all consumers are."""
    rounds = agreed.rounds
    settled, first, dropped = agreed.settle_gone_tasks()
    tasks = rounds.in_schedule_order(agreed.tasks, agreed.first_round)
    joined, leftovers = agreed.joined, rounds.leftovers
    if leftovers is None and _all_data_ended(core, iteration, tasks):
        lengths = {task: rounds.lengths[task] for task in _in_lasting_order(core, iteration, tasks)}
        joined, leftovers = share_leftovers(lengths, len(rounds.client_ids), fill=job.at_end in ("pad", "repeat"))
        core.instruct(*(e.UpdateTask(worker=core.state.tasks[task].worker, task_id=task) for task in tasks))
    core.record(
        r.RoundsAgreed(
            job=job.name,
            iteration=iteration.number,
            settled=tuple(settled),
            agreed_round=first,
            tasks=tasks,
            task_rounds=tuple(map(agreed.next_task_round, tasks)),
            joined=tuple(joined),
            leftovers=leftovers,
            needed_from=agreed.needed_from,
            dropped=dropped,
        )
    )
    for task in [task for task in iteration.tasks if task not in tasks]:
        jobs.drop_task(core, task)
    core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    _announce(core, job, tasks, first, dropped)


def _in_lasting_order(core: Context, iteration: Iteration, tasks: Sequence[str]) -> list[str]:
    """Order tasks by what stays when the read goes on in another service, where they get other ids."""
    found = (core.state.tasks[task] for task in tasks)
    return [task.task_id for task in sorted(found, key=lambda task: (task.shard, entropy_of(iteration, task)))]


def _all_data_ended(core: Context, iteration: Iteration, tasks: Sequence[str]) -> bool:
    rounds = iteration.rounds
    assert rounds is not None
    refused = any(core.state.tasks[task].splits_refused for task in tasks)
    return all(task in rounds.lengths for task in tasks) and (iteration.splits_exhausted or not refused)


def _announce(core: Context, job: Job, tasks: Sequence[str], first: int, dropped: int) -> None:
    if tasks:
        names = ", ".join(core.state.workers[core.state.tasks[task].worker].name for task in tasks)
        core.instruct(e.Announce(level="info", text=f"job {job.name!r}: from round {first:,} on {names} give rounds"))
    if dropped:
        text = f"job {job.name!r}: {dropped} round(s) were dropped, for not all consumers had received them"
        core.instruct(e.Announce(level="warning", text=text))


class _Agreement:
    """Where the rounds go on, computed from the answers of all consumers to a halt.

    Attributes:
        tasks: The tasks that give rounds from now on.
        joined: The planned rounds of left-over elements that are still to come.
        first_round: The highest round that a consumer would take next, from which on new schedules hold.
    """

    def __init__(self, rounds: Rounds, states: Sequence[ConsumerState], tasks: tuple[str, ...]) -> None:
        self.rounds, self.tasks = rounds, tasks
        self._states = [states[index] for index in rounds.present_consumers]
        # New consumers may all know less than the last agreement, so its round is a lower bound.
        known = [standing.round for standing in states]
        ended = [rounds.end_round] if rounds.ended_consumers and rounds.end_round is not None else []
        self.first_round = max([rounds.agreed_round, *known, *ended])
        planned = rounds.joined_from(self.first_round)
        self.joined = [one for one in planned if not self._was_taken(one)]
        self._taken_by_gone = len(planned) - len(self.joined) if any(state.begun for state in self._states) else 0
        """Rounds of left-over elements that a consumer took before it died, and that others then do not get."""

    @property
    def needed_from(self) -> int:
        """The lowest round that some consumer has yet to take."""
        return min((standing.round for standing in self._states if standing.begun), default=self.first_round)

    def next_task_round(self, task: str) -> int:
        """The task round with which a task begins: the next one, or the oldest that its worker still has if later."""
        kept, planned = self._oldest_round(task), self.rounds.next_task_round(task, self.first_round)
        return kept if planned is None else max(kept, planned)

    def _oldest_round(self, task: str) -> int:
        """The oldest task round that a task's worker still has: all consumers have taken those before."""
        return max(standing.oldest_rounds.get(task, 0) for standing in self._states)

    def _was_taken(self, joined: RoundSchedule) -> bool:
        """Whether consumers took a round of left-over elements, and are gone without having said so."""
        parts = zip(joined.tasks, joined.task_rounds, strict=True)
        return any(self._oldest_round(task) > task_round for task, task_round in parts)

    def settle_gone_tasks(self) -> tuple[list[RoundSchedule], int, int]:
        """Find what all consumers hold of tasks that are gone.

        Returns:
            The schedules of it, the first round after them, and how many rounds are dropped.
        """
        settled, at, dropped = [], self.first_round, 0
        for task in [task for task in self.rounds.positions if task not in self.tasks]:
            begin, end, begun = self._remaining_rounds(task)
            if end > begin:
                settled.append(RoundSchedule(first_round=at, tasks=(task,), task_rounds=(begin,)))
                at += end - begin
            dropped += begun - end
        dropped += self._drop_joined() + self._taken_by_gone
        return settled, at, dropped

    def _drop_joined(self) -> int:
        """Drop rounds of left-over elements of gone tasks that not all consumers hold; returns how many."""
        before, present = self.joined, {*self.tasks}
        kept = [one if present.issuperset(one.tasks) else replace(one, held=self._is_held(one)) for one in before]
        self.joined = [one for one in kept if one.held or present.issuperset(one.tasks)]
        return len(before) - len(self.joined)

    def _remaining_rounds(self, task: str) -> tuple[int, int, int]:
        """The whole task rounds left of a task that is gone.

        Returns:
            The next task round to give; the first that not all consumers have received; the first that none has.
        """
        begin = self.next_task_round(task)
        received = [standing.received.get(task, 0) if standing.begun else 0 for standing in self._states]
        if task in self.rounds.lengths:
            whole = self.rounds.lengths[task] // len(self.rounds.client_ids)
            received = [min(whole, count) for count in received]
        return begin, max(begin, min(received)), max(begin, *received)

    def _is_held(self, joined: RoundSchedule) -> bool:
        """Whether all consumers that need it have received their element of a round from tasks that are gone."""
        needed = zip(self.rounds.present_consumers, self._states, strict=True)
        return all(
            joined.tasks[index] in self.tasks
            or (standing.begun and standing.received.get(joined.tasks[index], 0) > joined.task_rounds[index])
            for index, standing in needed
        )


def waits_for(core: Context, job: Job, iteration: Iteration) -> str:
    """What the next round waits for, as text; empty if it waits for nothing."""
    rounds, states = iteration.rounds, consumer_states(core, job.name, iteration)
    assert rounds is not None
    present = rounds.present_consumers
    if iteration.finished or not present:
        return ""
    if job.paused_by:
        return f"a resume: {job.paused_by} paused the job"
    if not rounds.schedules or rounds.halted:
        lacking = [at for at in present if not states[at].client_id or states[at].halt != rounds.halt_count]
        return _describe_consumers(core, states, lacking) or (
            "" if schedulable_tasks(core, job, iteration) and not rounds.waiting_tasks else _no_worker_text()
        )
    if not iteration.tasks:
        return _no_worker_text()
    if rounds.leftovers is None and all(task in rounds.lengths for task in iteration.tasks):
        return "a worker: those that are there leave, and get no more splits"
    wanted = max(states[at].round for at in present)
    schedule = schedule_of(rounds.schedules, wanted) or rounds.schedules[0]
    if not schedule.tasks:
        return ""
    task, task_round = task_round_of(schedule, max(wanted, schedule.first_round), present[0])
    lacking = [at for at in present if states[at].received.get(task, 0) <= task_round]
    if len(lacking) < len(present):
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
