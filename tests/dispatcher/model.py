"""What must hold of a dispatcher core, worked out from its records and instructions alone.

The model is told nothing by the core's tables. It reads what a worker, a client or a journal would, keeps its own books
(who was given which split, who should be here, what each client was told), and compares them with the core's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.runs import Loss
from dsnb.dispatcher.state import State, replay
from dsnb.errors import DsnbError


def raise_bugs(decision: e.Decision) -> None:
    """Raise what is nobody's mistake but ours."""
    for wrong in (decision.bug, decision.error):
        if wrong is not None and not isinstance(wrong, DsnbError):
            raise wrong


class DispatcherDied(Exception):
    """What was decided is kept; nobody has heard of it."""


Generation = int
"""Which making of an iteration: one that was dropped and is asked for again is another."""


@dataclass(slots=True)
class Place:
    """How far a task has asked one provider."""

    repetition: int = 0
    cursor: int = 0
    asked: list[tuple[tuple[int, int], e.Splits]] = field(default_factory=list)


@dataclass(slots=True)
class SimTask:
    """A task as its worker knows it: `done` counts the splits of each provider whose elements were consumed."""

    task_id: str
    incarnation: int
    places: list[Place]
    done: list[int]
    ended: bool = False
    paused: bool = False


@dataclass(slots=True)
class SimWorker:
    """A worker; `silence` is how long it was not heard of, `patience` how long that may be."""

    uid: str
    address: str
    connected: bool = True
    draining: bool = False
    silence: float = 0.0
    patience: float = 0.0
    tasks: dict[str, SimTask] = field(default_factory=dict)


@dataclass(slots=True)
class SimClient:
    """A client and what it was told: its tasks as (incarnation, worker), losses, whether the pass is over."""

    client_id: str
    job: str
    number: int
    connected: bool = True
    silence: float = 0.0
    patience: float = 0.0
    tasks: dict[str, tuple[int, str]] = field(default_factory=dict)
    finished: bool = False
    losses: list[Loss] = field(default_factory=list)
    """What it was told of losses, in order."""
    heard: int = 0
    """How many losses of the pass it knows of, those before it joined included."""
    cancelled: str = ""
    """Who cancelled its job, as it was told."""


@dataclass(frozen=True, slots=True)
class Before:
    """A task as it was before an event: `in_hand` counts the splits of each provider that are given and not done."""

    generation: Generation
    worker: str
    clients: frozenset[str]
    ended: bool
    in_hand: dict[int, int]


class Model:
    """The books of one service.

    Args:
        config: The core's.
        now: When it begins.
    """

    def __init__(self, config: DispatcherConfig, now: float) -> None:
        self.config = config
        self.now = now
        self.core = Core(config, now=now)
        self.journal = Journal()
        self.records: list[r.Record] = []
        self.instructions: list[e.Instruction] = []
        self.workers: dict[str, SimWorker] = {}
        self.clients: dict[str, SimClient] = {}
        self.given: dict[Generation, dict[tuple[int, int], dict[int, tuple[str, int]]]] = {}
        """Who has each split, by provider and repetition."""
        self._lost: dict[tuple[Generation, int], int] = {}
        self._reported: dict[str, tuple[int, ...]] = {}
        self._generations: dict[tuple[str, int], Generation] = {}
        self._made = 0
        self._twin, self._replayed = State(), 0
        self.dies = False
        """Whether the dispatcher dies when the next decision is kept: nobody hears of it."""
        self.sound = True
        """Whether all that must hold did hold after the last event."""

    def handle(self, event: e.Event) -> e.Decision:
        """Let the core decide, take in what came of it, and check everything."""
        self.sound = False
        before = {task_id: self._before(task_id) for task_id in self.core.state.tasks}
        decision = self.core.handle(event, self.now)
        raise_bugs(decision)
        self.records += decision.records
        self.journal.append(decision.records)
        if decision.records and len(self.records) % 16 == 0:  # long before it would be due
            self.journal.compact(self.core.state)
        self.instructions = list(decision.instructions)
        for record in decision.records:
            self._learn(record, before)
        if self.dies:
            raise DispatcherDied
        if isinstance(decision.reply, e.Joined):
            self._welcome(decision.reply)
        for instruction in decision.instructions:
            self._obey(instruction)
        self._check_losses_told(before)
        self._forget_iterations()
        self.check()
        self.sound = True
        return decision

    def report_done(self, done: dict[str, tuple[int, ...]]) -> None:
        """Learn how many splits of each provider tasks are done with, as the core is about to."""
        self._reported.update(done)

    def restart(self) -> None:
        """Let the dispatcher die and come back from its journal; times are forgotten, connections broken."""
        self.dies = False
        before = self.core.state.export()
        self.core = Core(self.config, self.journal.load(), now=self.now)
        assert self.core.state.export() == before, "what was kept leads to another state"
        for orphan in self.core.state.clients.keys() - self.clients.keys():  # it never learned that it was let in
            known = self.core.state.clients[orphan]
            self.clients[orphan] = SimClient(orphan, known.job, known.number)
        for one in (*self.workers.values(), *self.clients.values()):
            one.connected, one.silence, one.patience = False, 0.0, self.patience(one)
        self._forget_iterations()
        self.check()
        self.sound = True

    def patience(self, one: SimWorker | SimClient) -> float:
        """How long one may be silent whose connection stands."""
        return (self.config.worker_timeout_ms if isinstance(one, SimWorker) else self.config.client_timeout_ms) / 1000

    def held(self, task: SimTask, provider: int) -> int:
        """How many splits of a provider a task was given."""
        owner = (task.task_id, task.incarnation)
        tables = [t for given in self.given.values() for (its, _), t in given.items() if its == provider]
        return sum(who == owner for table in tables for who in table.values())

    def splits(self, client: SimClient, provider: int, repetition: int) -> list[int]:
        """The splits of a repetition that were given to anybody, in order."""
        generation = self._generations[client.job, client.number]
        return sorted(self.given.get(generation, {}).get((provider, repetition), ()))

    def lost(self, client: SimClient, provider: int = 0) -> int:
        """How many splits of a client's pass were lost, by these books."""
        return self._lost.get((self._generations[client.job, client.number], provider), 0)

    # ---- what is learnt

    def _before(self, task_id: str) -> Before:
        task = self.core.state.tasks[task_id]
        generation = self._generations[task.job, task.number]
        clients = frozenset(self.core.state.iteration(task.job, task.number).clients)
        # Of a task that has ended its readers have had everything.
        in_hand = {} if task.ended else self._in_hand(generation, task_id, task.incarnation)
        return Before(generation, task.worker, clients, task.ended, in_hand)

    def _in_hand(self, generation: Generation, task_id: str, incarnation: int) -> dict[int, int]:
        count: dict[int, int] = {}
        for (provider, _), table in self.given.get(generation, {}).items():
            count[provider] = count.get(provider, 0) + sum(who == (task_id, incarnation) for who in table.values())
        for provider, done in enumerate(self._reported.get(task_id, ())):
            count[provider] = count.get(provider, 0) - done
        return count

    def _learn(self, record: r.Record, before: dict[str, Before]) -> None:
        match record:
            case r.IterationCreated():
                self._made += 1
                self._generations[record.job, record.number] = self._made
                self._learn_resumed(record)
            case r.TaskCreated():
                assert not self.workers[record.worker].draining, "a draining worker got a task"
                self._learn_had(record)
            case r.SplitsGiven():
                self._learn_given(record)
            case r.TaskDropped():
                self._reported.pop(record.task_id, None)
                self._check_not_needed(before.get(record.task_id))
            case r.TaskRestarted():
                self._reported.pop(record.task_id, None)
            case r.WorkerLeft():
                for task in before.values():
                    if task.worker == record.uid:
                        for provider, count in task.in_hand.items():
                            key = (task.generation, provider)
                            self._lost[key] = self._lost.get(key, 0) + count

    def _learn_given(self, record: r.SplitsGiven) -> None:
        task = self.core.state.tasks[record.task_id]
        given = self.given.setdefault(self._generations[task.job, task.number], {})
        table = given.setdefault((record.provider, record.repetition), {})
        assert not self.workers[task.worker].draining, "a draining worker got splits"
        for split in range(record.first, record.end):
            assert split not in table, f"the split {split} was given to {table[split]} and to {record.task_id}"
            table[split] = (record.task_id, task.incarnation)

    def _learn_resumed(self, record: r.IterationCreated) -> None:
        """What was given before a pass was resumed was given, to its tasks or to some that are long gone."""
        given = self.given.setdefault(self._generations[record.job, record.number], {})
        for provider, (repetition, following) in enumerate(record.providers):
            given[provider, repetition] = dict.fromkeys(range(following), ("before", 0))

    def _learn_had(self, record: r.TaskCreated) -> None:
        given = self.given.setdefault(self._generations[record.job, record.number], {})
        for provider, repetition, first, end in record.begin.runs if record.begin else ():
            table = given.setdefault((provider, repetition), {})
            for split in range(first, end):
                assert table.get(split, ("before", 0))[0] == "before", f"two tasks had the split {split}"
                table[split] = (record.task_id, 1)

    def _check_not_needed(self, task: Before | None) -> None:
        if task is not None and task.worker in self.core.state.workers and self._read(task):
            assert not any(task.in_hand.values()), "a task was dropped that its readers had not read to the end"

    def _read(self, task: Before) -> bool:
        """Whether somebody who read the task is still there."""
        known = self.core.state.clients
        return any(client in known and not known[client].cancelled for client in task.clients)

    def _welcome(self, joined: e.Joined) -> None:
        client = SimClient(joined.client_id, joined.job, joined.number, heard=joined.losses)
        client.patience = self.patience(client)
        self.clients[client.client_id] = client
        self.show(client)

    def _obey(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.StartTask():
                self._start(instruction)
            case e.DropTask():
                worker = self.workers.get(instruction.worker)
                if worker is not None and worker.connected:
                    worker.tasks.pop(instruction.task_id, None)
            case e.TellTask():
                self._tell(instruction)
            case e.TellDrain():
                if (worker := self.workers.get(instruction.worker)) is not None:
                    worker.draining = True
            case e.TurnAway():
                del self.workers[instruction.worker]
            case e.TellCancelled():
                if self.clients[instruction.client_id].connected:
                    self.clients[instruction.client_id].cancelled = instruction.by
            case e.TellClients():
                for client in self._told(instruction):
                    self.show(client)
            case e.TellLoss():
                for client in self._told(instruction):
                    told = instruction
                    client.losses.append(Loss(told.task_id, told.worker, told.splits, told.reason))
                    client.heard += 1

    def _start(self, order: e.StartTask) -> None:
        worker, task = self.workers.get(order.worker), self.core.state.tasks.get(order.task_id)
        if worker is None or task is None or not worker.connected or task.task_id in worker.tasks:
            return
        count = len(self.core.state.iteration(task.job, task.number).providers)
        places = [Place() for _ in range(count)]
        paused = bool(self.core.state.jobs[task.job].paused_by)
        worker.tasks[task.task_id] = SimTask(task.task_id, task.incarnation, places, [0] * count, paused=paused)

    def _tell(self, told: e.TellTask) -> None:
        worker, task = self.workers.get(told.worker), self.core.state.tasks.get(told.task_id)
        if worker is not None and worker.connected and task is not None:
            worker.tasks[task.task_id].paused = bool(self.core.state.jobs[task.job].paused_by)

    def _told(self, told: e.TellClients | e.TellLoss) -> Iterable[SimClient]:
        place = told.job, told.number
        return [c for c in self.clients.values() if c.connected and not c.cancelled and (c.job, c.number) == place]

    def show(self, client: SimClient) -> None:
        """Tell a client how things are, as the shell does when it is told to."""
        known = self.core.state.clients.get(client.client_id)
        if known is not None and known.cancelled:
            client.cancelled = known.cancelled
            return
        job = self.core.state.jobs.get(client.job)
        if job is not None and client.number in job.iterations:
            iteration = job.iterations[client.number]
            tasks = [self.core.state.tasks[name] for name in iteration.tasks]
            client.tasks = {task.task_id: (task.incarnation, task.worker) for task in tasks}
            client.finished = iteration.finished

    def catch_up(self, client: SimClient) -> None:
        """Tell a client that opens its stream again of the losses that it has not heard of."""
        job = self.core.state.jobs.get(client.job)
        if job is not None and client.number in job.iterations and not client.cancelled:
            losses = job.iterations[client.number].losses
            client.losses += losses[client.heard :]
            client.heard = len(losses)

    def _forget_iterations(self) -> None:
        jobs = self.core.state.jobs
        for name, number in list(self._generations):
            if name not in jobs or number not in jobs[name].iterations:
                self.given.pop(self._generations.pop((name, number)), None)

    # ---- what must hold

    def check(self) -> None:
        """Everything that must hold between any two events."""
        self.core.validate()
        self._check_journal()
        self._check_passes()
        self._check_workers()
        self._check_clients()
        self._check_nothing_remains()
        self._check_losses_heard()

    def _check_journal(self) -> None:
        if len(self.records) != self._replayed:
            self._replayed, self._twin = len(self.records), replay(self.records[self._replayed :], self._twin)
        # Byte for byte they are compared at each restart and at the end, which costs more.
        assert vars(self._twin) == vars(self.core.state), "the journal leads to another state"

    def _check_losses_heard(self) -> None:
        """Whoever follows knows of each loss once, whatever broke meanwhile."""
        for client in self.clients.values():
            job = self.core.state.jobs.get(client.job)
            if client.connected and not client.cancelled and job is not None and client.number in job.iterations:
                losses = job.iterations[client.number].losses
                assert client.heard == len(losses), "a client was not told of a loss, or twice"
                assert client.losses == losses[len(losses) - len(client.losses) :], "a client was told another story"

    def _check_losses_told(self, before: dict[str, Before]) -> None:
        """Whoever reads from a worker that is gone hears of it, task by task."""
        told = {instruction.task_id for instruction in self.instructions if isinstance(instruction, e.TellLoss)}
        for task_id, task in before.items():
            if task.worker not in self.core.state.workers and not task.ended and self._read(task):
                assert task_id in told, "a worker took data with it, and its readers were not told"

    def _check_passes(self) -> None:
        for known in self.core.state.jobs.values():
            assert known.clients or not known.anonymous, "an anonymous job outlives its client"
        for (job, number), generation in self._generations.items():
            iteration = self.core.state.iteration(job, number)
            running = [task for task in iteration.tasks if not self.core.state.tasks[task].ended]
            assert iteration.finished or running or not iteration.tasks, "all tasks have ended, and the pass goes on"
            for at, provider in enumerate(iteration.providers):
                table = self.given.get(generation, {}).get((at, provider.repetition), {})
                assert table.keys() == set(range(provider.next)), "given and not given do not make up all splits"
                assert provider.lost == self._lost.get((generation, at), 0), "losses are miscounted"

    def _check_workers(self) -> None:
        state = self.core.state
        assert state.workers.keys() == self.workers.keys(), "the workers that are here are not those that were heard of"
        for worker in self.workers.values():
            if worker.connected:
                there = {task.task_id: task.incarnation for task in state.tasks_of(worker.uid)}
                has = {task.task_id: task.incarnation for task in worker.tasks.values()}
                assert has == there, "a worker has other tasks than it should"
                for task in worker.tasks.values():
                    held = bool(state.jobs[state.tasks[task.task_id].job].paused_by)
                    assert task.paused == held, "a task goes on that should not, or waits for no reason"

    def _check_clients(self) -> None:
        known = self.core.state.clients.keys()
        assert known == self.clients.keys(), "the clients that are here are not those that were heard of"
        for client in self.clients.values():
            if client.connected:
                told = client.tasks, client.finished, client.cancelled
                self.show(client)
                assert told == (client.tasks, client.finished, client.cancelled), "a client was not told how things are"

    def _check_nothing_remains(self) -> None:
        state, live = self.core.state, self.core.live
        left = {job.name for job in state.jobs.values() if not job.clients}
        assert live.unused.keys() == left, "other jobs wait to be collected than those that nobody reads"
        passes = {(job.name, i.number): i for job in state.jobs.values() for i in job.iterations.values()}
        unread = {key for key, pass_ in passes.items() if not pass_.clients and (pass_.tasks or not pass_.finished)}
        done = {key for key, pass_ in passes.items() if not pass_.clients}
        assert unread <= live.unread.keys() <= done, "other passes wait to be collected than those that nobody reads"
