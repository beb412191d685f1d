"""Coordinated reads: which tasks give which rounds, agreed with all consumers.

Theory of operation. A round is n consecutive elements of one task, one for each of n consumers; rounds are numbered
from 0 and every consumer takes all of them in order. A *lineup* says which tasks give the rounds from a certain one on,
in turn, and which of its own turns each of them begins with (`wire.lineup` has the arithmetic). A lineup has no end of
its own: consumers go on by it for as long as nothing changes, and need no dispatcher for that.

When the tasks change (a worker came, drains or is lost) or the consumers do (one joined, or came back), another lineup
is due. All consumers have to change over at the same round, and none of them may have taken that round by the old
lineup. So the dispatcher has all of them *halt*: each stops where it is, and tells which round it would take next. When
all n have answered, the new lineup begins at the furthest of these rounds. Those that are behind it go on by the old
lineup up to there. A halt lasts as long as one message there and back takes, no longer: it is answered by the
consumer's own thread, whatever its user does meanwhile. Where a consumer goes away during a halt, so that not all can
answer, the others are told to go on as before.

A consumer takes an element only when its worker has said that all n have received theirs: the turn is *whole*. That is
what keeps a round whole when a worker dies. Whatever anybody has taken by then, everybody has received, so all rounds
before the new lineup can be taken by all. Beyond them the consumers may hold more turns of the dead worker; those that
all of them have received are given in a lineup of that task alone, before the one without it. The others are dropped
and counted.

A consumer that comes anew (its process was started again, its loop was run again) takes the place of the one with its
index, and begins with the first round of the lineup that is made for it. A worker keeps each turn until all consumers
have taken it, so that it can give it again to the newcomer. Where all consumers are new, nobody may know which round
was the last; what the workers still have tells which turns are next.

Lineups, halts and places are in the journal. Where each consumer is, is not: consumers tell it again. So a dispatcher
that died in a halt asks again, and one that died after it tells the lineup again to whoever has not heard of it.

`review` looks at a pass after each event, and does what is due by the state alone, whatever led to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from dsnb.dataclass import dataclass
from dsnb.dispatcher import events as e
from dsnb.dispatcher import jobs
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context, Standing
from dsnb.dispatcher.lineups import Rounds
from dsnb.dispatcher.state import Iteration, Job
from dsnb.monitor.words import duration, plural
from dsnb.wire.lineup import Lineup, lineup_of, next_turn, turn_of


def said(core: Context, event: e.ConsumerSaid) -> None:
    """Take in where a consumer says that it is."""
    client = core.state.clients.get(event.client_id)
    if client is None or client.cancelled:
        return
    iteration = core.state.iteration(client.job, client.number)
    if iteration.rounds is None:
        return
    standing = next((s for s in standings(core, client.job, iteration) if s.client == event.client_id), None)
    if standing is None:
        return
    report = event.report
    if report.begun and (report.round > standing.round or not standing.begun):
        standing.since = core.now
        standing.round = max(standing.round, report.round)
    standing.begun = report.begun
    standing.halt = report.halt
    standing.received = {held.task_id: held.received for held in report.held}
    standing.base = {held.task_id: held.base for held in report.held}


def review(core: Context) -> Exception | None:
    """Do what is due in all coordinated passes; a mistake of ours in one of them holds up none of the others."""
    bug = None
    for job in core.state.jobs.values():
        for iteration in job.iterations.values() if job.consumers else ():
            try:
                _review(core, job, iteration)
            except Exception as mistake:  # noqa: BLE001 - a bug may be anything
                bug = mistake
    return bug


def standings(core: Context, job: str, iteration: Iteration) -> list[Standing]:
    """Where each consumer is, as far as is known; who has come or gone since the last look is taken in."""
    rounds = iteration.rounds
    assert rounds is not None, "only coordinated passes have consumers"
    table = core.live.rounds.get((job, iteration.number))
    if table is None:
        table = core.live.rounds[job, iteration.number] = [Standing(since=core.now) for _ in rounds.places]
    for standing, client in zip(table, rounds.places, strict=True):
        if standing.client != client:
            standing.come(client, core.now)
    return table


def wanted_tasks(core: Context, iteration: Iteration) -> tuple[str, ...]:
    """The tasks that can give rounds now."""
    tasks = core.state.tasks
    return tuple(t for t in iteration.tasks if not core.state.workers[tasks[t].worker].draining)


def _review(core: Context, job: Job, iteration: Iteration) -> None:
    rounds, table = iteration.rounds, standings(core, job.name, iteration)
    assert rounds is not None
    all_here = all(rounds.places)
    if rounds.halted and not all_here:
        core.record(r.RoundsGoOn(job=job.name, number=iteration.number))
        core.instruct(e.TellClients(job=job.name, number=iteration.number))
    if not all_here:
        return
    tasks = wanted_tasks(core, iteration)
    if not rounds.halted and _change_is_due(rounds, tasks):
        core.record(r.RoundsHalted(job=job.name, number=iteration.number))
        core.instruct(e.TellClients(job=job.name, number=iteration.number))
    if rounds.halted and tasks and all(standing.halt == rounds.halts for standing in table):
        _line_up(core, job, iteration, _Agreement(rounds, table))


def _change_is_due(rounds: Rounds, tasks: tuple[str, ...]) -> bool:
    if not tasks:
        return False  # those that are there go on giving what they have
    return rounds.places != rounds.admitted or tasks != rounds.lineups[-1].tasks


def _line_up(core: Context, job: Job, iteration: Iteration, agreed: _Agreement) -> None:
    """Make the lineups that follow from where all consumers are."""
    first, tasks = agreed.first, wanted_tasks(core, iteration)
    gone = [task for task in agreed.last.tasks if task not in tasks] if agreed.last else []
    for task in gone:
        begin, end, begun = agreed.left_of(task)
        if end > begin:
            _make(core, job, iteration, agreed, first, (task,), (begin,), dropped=begun - end)
            first += end - begin
    dropped = sum(begun - end for begin, end, begun in map(agreed.left_of, gone) if end <= begin)
    turns = tuple(map(agreed.turn_of, tasks))
    _make(core, job, iteration, agreed, first, tasks, turns, dropped=dropped)
    for task in [task for task in iteration.tasks if task not in tasks]:
        jobs.drop_task(core, task)
    core.instruct(e.TellClients(job=job.name, number=iteration.number))
    _announce(core, job, iteration, agreed, first)


def _make(
    core: Context,
    job: Job,
    iteration: Iteration,
    agreed: _Agreement,
    first: int,
    tasks: tuple[str, ...],
    turns: tuple[int, ...],
    dropped: int,
) -> None:
    core.record(
        r.LineupMade(
            job=job.name,
            number=iteration.number,
            first=first,
            tasks=tasks,
            turns=turns,
            needed_from=agreed.needed_from,
            dropped=dropped,
        )
    )


def _announce(core: Context, job: Job, iteration: Iteration, agreed: _Agreement, first: int) -> None:
    rounds = iteration.rounds
    assert rounds is not None
    names = ", ".join(core.state.workers[core.state.tasks[task].worker].name for task in rounds.lineups[-1].tasks)
    core.instruct(e.Announce(level="info", text=f"job {job.name!r}: from round {first:,} on {names} give rounds"))
    dropped = rounds.dropped - agreed.dropped
    if dropped:
        text = f"job {job.name!r}: {dropped} round(s) were dropped, for not all consumers had received them"
        core.instruct(e.Announce(level="warning", text=text))


@dataclass(slots=True)
class _Agreement:
    """What follows from the answers of all consumers to a halt."""

    rounds: Rounds
    table: Sequence[Standing]
    last: Lineup | None = field(init=False)
    first: int = field(init=False)
    dropped: int = field(init=False)
    """Rounds that had been dropped before."""

    def __post_init__(self) -> None:
        self.last = self.rounds.lineups[-1] if self.rounds.lineups else None
        known = [standing.round for standing in self.table]
        self.first = max(*known, self.last.first) if self.last else 0
        self.dropped = self.rounds.dropped

    @property
    def needed_from(self) -> int:
        """The first round that some consumer has still to take."""
        return min((standing.round for standing in self.table if standing.begun), default=self.first)

    def turn_of(self, task: str) -> int:
        """With which of its turns a task begins: the next one, or the first that its worker still has."""
        kept = max(standing.base.get(task, 0) for standing in self.table)
        if self.last is None or task not in self.last.tasks:
            return kept
        return max(kept, next_turn(self.last, task, self.first))

    def left_of(self, task: str) -> tuple[int, int, int]:
        """Of a task that gives no more rounds: its next turn; the first that not all, and that nobody has received."""
        begin = self.turn_of(task)
        received = [standing.received.get(task, 0) if standing.begun else 0 for standing in self.table]
        return begin, max(begin, min(received)), max(begin, *received)


def waits_for(core: Context, job: Job, iteration: Iteration) -> str:
    """Whom the next round waits for, in words; empty where nobody holds it up."""
    rounds, table = iteration.rounds, standings(core, job.name, iteration)
    assert rounds is not None
    if job.paused_by:
        return f"a resume: {job.paused_by} paused the job"
    if not rounds.lineups or rounds.halted:
        lacking = [at for at, standing in enumerate(table) if not standing.client or standing.halt != rounds.halts]
        return _people(core, table, lacking) or ("" if wanted_tasks(core, iteration) else _nobody())
    if not iteration.tasks:
        return _nobody()
    wanted = max(standing.round for standing in table)
    lineup = lineup_of(rounds.lineups, wanted) or rounds.lineups[0]
    task, turn = turn_of(lineup, max(wanted, lineup.first))
    lacking = [at for at, standing in enumerate(table) if standing.received.get(task, 0) <= turn]
    if len(lacking) < len(table):
        return _people(core, table, lacking)
    known = core.state.tasks.get(task)
    worker = core.state.workers[known.worker].name if known else "a worker that is gone"
    return f"worker {worker}, whose pipeline has not produced round {wanted:,} yet"


def _nobody() -> str:
    return "a worker: the service has none"


def _people(core: Context, table: Sequence[Standing], lacking: Sequence[int]) -> str:
    return " and ".join(_person(core, at, table[at]) for at in lacking)


def _person(core: Context, index: int, standing: Standing) -> str:
    name, seconds = f"consumer {index}", duration(core.now - standing.since)
    if standing.client and standing.begun:
        return f"{name}, which has taken {plural(standing.round, 'round')}, the last {seconds} ago"
    if standing.client:
        return f"{name}, which came {seconds} ago and has not begun"
    return f"{name}, which left {seconds} ago" if standing.came else f"{name}, which has not come"
