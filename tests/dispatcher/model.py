"""What must hold of a dispatcher core, worked out from its records and instructions alone.

The model is told nothing by the core's tables. It reads what a worker, a client or a journal would, and keeps its own
books: who should be here and what each was told, and what became of each element (`books`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers.cached_iterations import is_endless
from dsnb.dispatcher.handlers.positions import start_position_of
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.state import State, Task, replay
from dsnb.errors import DsnbError
from dsnb.wire.messages import (
    ClientReport,
    JoinReply,
    JoinRequest,
    Loss,
    TaskInfo,
    TaskPosition,
    TrainerPosition,
    WorkerReport,
)
from dsnb.wire.ranges import Ranges
from tests.dispatcher.actors import Order, Pipeline, SimClient, SimTask, SimWorker
from tests.dispatcher.books import PassBook, TaskBook

__all__ = ["DispatcherDied", "Model", "SimClient", "SimTask", "SimWorker", "raise_bugs"]


def raise_bugs(decision: e.Decision) -> None:
    """Raise what is nobody's mistake but ours."""
    for wrong in (decision.bug, decision.error):
        if wrong is not None and not isinstance(wrong, DsnbError):
            raise wrong


class DispatcherDied(Exception):
    """What was decided is kept; nobody has heard of it."""


@dataclass(slots=True)
class Seen:
    """How often things happened over all schedules: a machine that never gets somewhere proves nothing there."""

    consumed: int = 0
    twice: int = 0
    taken_over: int = 0
    repeated: int = 0
    behind: int = 0
    """Of those, tasks that were begun behind their first element."""
    given_up: int = 0
    parked: int = 0
    came_back: int = 0
    deaths: int = 0
    passes_over: int = 0


class Model:
    """The books of one service.

    Args:
        config: The core's.
        now: When it begins.
        seen: Counts what happens.
    """

    def __init__(self, config: DispatcherConfig, now: float, seen: Seen | None = None) -> None:
        self.config = config
        self.now = now
        self.seen = seen or Seen()
        self.core = Core(config, now=now)
        self.journal = Journal()
        self.records: list[r.Record] = []
        self.instructions: list[e.Instruction] = []
        """What came of the last event."""
        self.announced: list[str] = []
        """All that people were told."""
        self.pipelines: dict[str, Pipeline] = {}
        self.workers: dict[str, SimWorker] = {}
        self.clients: dict[str, SimClient] = {}
        """All that the dispatcher counts in: some of them may be dead."""
        self.silent: dict[str, SimClient] = {}
        """Clients that went away without a word, and so can tell nobody what they consumed."""
        self.passes: dict[tuple[str, int], PassBook] = {}
        self._archived: set[tuple[str, int]] = set()
        """Passes of which it is known only that they are over; who reads one of them again finds it empty."""
        self._pass_of: dict[str, PassBook] = {}
        self._read_by: dict[str, PassBook] = {}
        self._twin, self._replayed = State(), 0
        self.entropy = 4711
        self.dies = False
        """Whether the dispatcher dies when the next decision is kept: nobody hears of it."""
        self.sound = True
        """Whether all that must hold did hold after the last event."""

    def handle(self, event: e.Event) -> e.Decision:
        """Let the core decide, take in what came of it, and check everything."""
        self.sound = False
        self.entropy += 1  # another one for each event
        decision = self.core.handle(event, self.now, self.entropy)
        raise_bugs(decision)
        self.records += decision.records
        self.journal.append(decision.records)
        if decision.records and len(self.records) % 16 == 0:  # long before it would be due
            self.journal.compact(self.core.state)
        self.instructions = list(decision.instructions)
        self.announced += [told.text for told in decision.instructions if isinstance(told, e.Announce)]
        if decision.error is None:
            self._note_told(event)
        for record in decision.records:
            self._learn(record)
            if isinstance(record, r.ClientJoined) and isinstance(event, JoinRequest):
                book = self.passes[record.job, record.iteration]
                book.come(event.trainer_id, whole=event.complete_only and book.pipeline.length is not None)
        if self.dies:
            raise DispatcherDied
        for instruction in decision.instructions:
            self._obey(instruction)
        if isinstance(event, JoinRequest) and isinstance(decision.reply, JoinReply):
            self._welcome(event, decision.reply)  # nothing is told to a client before it has its answer
        self.check()
        self.sound = True
        return decision

    def restart(self) -> None:
        """Let the dispatcher die and come back from its journal; times are forgotten, connections broken."""
        self.dies = False
        before = self.core.state.export()
        self.core = Core(self.config, self.journal.load(), now=self.now)
        assert self.core.state.export() == before, "what was kept leads to another state"
        for book in self.passes.values():
            for task in book.tasks.values():
                task.told.clear()
        for orphan in self.core.state.clients.keys() - self.clients.keys():  # it never learned that it was let in
            known = self.core.state.clients[orphan]
            joined = JoinRequest(
                dataset_id="", job_name=known.job, mode="", cached=False, trainer_id=known.trainer_id, compression="",
                target_workers="", iteration=0,
            )  # fmt: skip
            trainer = known.trainer_id if self.core.state.jobs[known.job].cached else ""
            self.clients[orphan] = SimClient(orphan, joined, known.job, known.iteration, trainer, dead=True)
            self._read_by[orphan] = self.passes[known.job, known.iteration]
        for one in (*self.workers.values(), *self.clients.values()):
            one.connected, one.silence, one.patience = False, 0.0, self.patience(one)
        for worker in self.workers.values():
            worker.releases.clear()
            worker.reports.clear()
        self.check()
        self.sound = True

    def patience(self, one: SimWorker | SimClient) -> float:
        """How long one may be silent whose connection stands."""
        return (self.config.worker_timeout_ms if isinstance(one, SimWorker) else self.config.client_timeout_ms) / 1000

    def held(self, task: SimTask, provider: int) -> int:
        """How many splits of a provider a task was given, in all its incarnations."""
        tables = [t for (its, _), t in self._pass_of[task.task_id].given.items() if its == provider]
        return sum(owner == task.task_id for table in tables for owner in table.values())

    def splits(self, client: SimClient, provider: int, repetition: int) -> list[int]:
        """The splits of a repetition that were given to anybody, in order."""
        return sorted(self.passes[client.job, client.number].given.get((provider, repetition), ()))

    def lost(self, client: SimClient) -> int:
        """How many elements of a client's pass will not come, by these books."""
        return len(self.passes[client.job, client.number].lost)

    def readers(self, job: str, number: int) -> list[SimClient]:
        """The clients of a pass, as the dispatcher counts them."""
        known = self.core.state.clients
        return [
            client
            for client in self.clients.values()
            if (client.job, client.number) == (job, number)
            and client.client_id in known
            and not known[client.client_id].cancelled_by
        ]

    def is_current(self, task: SimTask | None) -> bool:
        """Whether a task is at a worker that the dispatcher counts on."""
        return task is not None and any(worker.tasks.get(task.task_id) is task for worker in self.workers.values())

    # ---- what clients and workers do

    def note_made(self, task: SimTask, noted: int) -> None:
        """Learn of what a task made since it had made so many."""
        book = self._pass_of.get(task.task_id)
        if book is not None and task.task_id in book.tasks:
            book.made(book.tasks[task.task_id], task.first + noted, task.values[noted:])

    def note_consumed(self, client: SimClient, task_id: str, sequence: int, number: int, value: object) -> None:
        """Learn of what a client's user had."""
        book = self._read_by[client.client_id]
        twice = len(book.twice)
        book.consume(client, task_id, sequence, number, value)
        client.elements += 1
        self.seen.consumed += 1
        self.seen.twice += len(book.twice) - twice

    def fall_silent(self, client: SimClient) -> None:
        """A client went away without a word: what nobody else knows that it consumed may come again."""
        self.silent[client.client_id] = client
        book = self._read_by[client.client_id]
        for hold in client.holds.values():
            current = self.is_current(hold.link)
            told = hold.told if current else 0
            consumed = set(hold.order[told:])
            if not current:
                consumed |= {
                    (hold.info.sequence_incarnation, index) for first, end in hold.had for index in range(first, end)
                }
            for sequence, index in consumed:
                task = book.sequences[hold.info.task_id, sequence]
                if not task.is_known(client.trainer, index):
                    book.uncertain.add((client.trainer, task.key(index)))
        self.vanish(client, lost=True)

    def vanish(self, client: SimClient, *, lost: bool = False) -> None:
        """A client is gone, and what it had and did not consume with it; data with an end wait for a lost one."""
        book = self._read_by[client.client_id]
        book.vanished |= book.held([client])
        others = {c.trainer for c in self.readers(client.job, client.number) if c is not client}
        if book.cached and client.trainer not in others and (not lost or book.pipeline.length is None):
            book.excused.add(client.trainer)

    def is_settled(self, book: PassBook, trainer: str, task: TaskBook, ranges: Iterable[tuple[int, int]]) -> None:
        """These elements are known to be consumed from now on: they do not come again, unless somebody has them."""
        known = {(trainer, task.key(index)) for first, end in ranges for index in range(first, end)} & book.uncertain
        if known:
            book.uncertain -= known - book.held(self.clients.values())

    def _note_told(self, event: e.Event) -> None:
        """What the dispatcher knows of consumption as long as it lives."""
        if isinstance(event, WorkerReport):
            for report in event.tasks:
                task = self.core.state.tasks.get(report.task_id)
                if task is not None and task.worker == event.uid and task.incarnation == report.incarnation:
                    known = [
                        TrainerPosition(trainer_id=t.trainer_id, consumed=t.consumed_ranges) for t in report.trainers
                    ]
                    self._pass_of[task.task_id].tasks[task.task_id].note_known(known, for_good=False)
        elif isinstance(event, ClientReport) and not event.leaving and event.client_id in self.clients:
            trainer = self.clients[event.client_id].trainer
            for holding in event.holdings:
                book = self._pass_of.get(holding.task_id)
                if book is not None and holding.task_id in book.tasks:
                    position = TrainerPosition(trainer_id=trainer, consumed=holding.consumed)
                    book.tasks[holding.task_id].note_known([position], for_good=False)

    # ---- what is learnt of records

    def _learn(self, record: r.Record) -> None:
        match record:
            case r.IterationCreated():
                self._learn_pass(record)
            case r.TaskCreated():
                self._learn_task(record)
            case r.SplitsGiven() | r.SplitsReported():
                grant = record.grant
                splits = range(grant.first, grant.end)
                self._pass_of[record.task_id].give(record.task_id, grant.provider, grant.repetition, splits)
            case r.TaskProgressed():
                self._learn_progress(record)
            case r.TaskAssigned():
                self._learn_assigned(record)
            case r.TaskLost():
                self._check_loss(record.loss)
            case r.TaskEnded():
                self._check_not_needed(record.task_id)
            case r.TaskDropped():
                self._check_not_needed(record.task_id)
                book = self._pass_of.pop(record.task_id)
                del book.tasks[record.task_id]
            case r.WorkerJoined():
                self.workers[record.uid].held = record.held
            case r.WorkerDraining():
                self.workers[record.uid].draining = True
            case r.WorkersReplaced():
                for worker in self.workers.values():
                    worker.held = False
                    worker.replaced |= worker.uid in record.uids
            case r.WorkerLeft():
                self._lose_knowledge(record.uid)
            case r.IterationFinished():
                self._check_whole(self.passes[record.job, record.iteration])
            case r.IterationDropped():
                self.passes.pop((record.job, record.iteration), None)  # it may be known only that it was over
            case r.IterationArchived():
                del self.passes[record.job, record.iteration]
                self._archived.add((record.job, record.iteration))
            case r.JobForgotten() | r.JobCancelled():
                for key in [key for key in self.passes if key[0] == record.name]:
                    del self.passes[key]

    def _learn_pass(self, record: r.IterationCreated) -> None:
        job = next(one for one in reversed(self.records) if isinstance(one, r.JobCreated) and one.name == record.job)
        book = PassBook(record.job, record.iteration, job.mode, job.cached, self.pipelines[job.dataset_id])
        book.rounds = job.num_consumers > 0
        book.shards = record.num_shards
        self.passes[record.job, record.iteration] = book
        for provider, (repetition, following) in enumerate(record.providers):
            book.given[provider, repetition] = dict.fromkeys(range(following), "before")

    def _learn_task(self, record: r.TaskCreated) -> None:
        self._check_takes_work(record.worker)
        book = self._pass_of[record.task_id] = self.passes[record.job, record.iteration]
        task = book.begin_sequence(record.task_id, record.worker, 1, record.shard)
        if record.start_position is not None:
            task.left_out = record.start_position.skip
            for part in record.start_position.splits:
                provider, repetition, first, end = part.provider, part.repetition, part.first, part.end
                book.give(record.task_id, provider, repetition, range(first, end))

    def _check_takes_work(self, uid: str) -> None:
        worker = self.workers[uid]
        available = not (worker.draining or worker.replaced or worker.held)
        assert available, "a worker got a task that is to get none"

    def _learn_progress(self, record: r.TaskProgressed) -> None:
        task = self._pass_of[record.task_id].tasks[record.task_id]
        if record.resume_position is not None:
            for trainer in {*task.told, *task.known, ""}:
                told = task.told.get(trainer, Ranges())
                if trainer == "" or told.gap(0)[0] >= record.resume_position.index:
                    task.known.setdefault(trainer, Ranges()).add(0, record.resume_position.index)

    def _learn_assigned(self, record: r.TaskAssigned) -> None:
        book = self._pass_of[record.task_id]
        task, begin = book.tasks[record.task_id], record.start_position
        self._check_takes_work(record.worker)
        if begin is None:
            self._check_not_needed(record.task_id)
            state = self.core.state.tasks[record.task_id]
            book.begin_sequence(record.task_id, record.worker, state.sequence_incarnation, state.shard)
            return
        if not begin.taken_over:
            self._learn_repeated(record.task_id, record.worker, begin)
            return
        task.worker = record.worker
        self.seen.taken_over += 1
        self.seen.behind += begin.first_index > 0
        for part in begin.splits:
            table = book.given[part.provider, part.repetition]
            owners = {table[split] for split in range(part.first, part.end)}
            assert owners <= {record.task_id}, "a task has others' splits"
        readers = self.readers(book.job, book.number)
        book.check_begin(task, begin, readers)
        task.note_known(begin.trainers, for_good=True)
        for position in begin.trainers:
            consumed = [(0, position.offset), *((part.first, part.end) for part in position.consumed)]
            ends = [(first, min(end, len(task.values))) for first, end in consumed]
            self.is_settled(book, position.trainer_id, task, ends)

    def _learn_repeated(self, task_id: str, worker: str, begin: TaskPosition) -> None:
        """A task makes again what it had not finished: all that readers lack is there, and may come twice."""
        book, state = self._pass_of[task_id], self.core.state.tasks[task_id]
        missing = book.missing([book.tasks[task_id]]) - book.held(self.readers(book.job, book.number)) - book.lost
        again = book.begin_sequence(task_id, worker, state.sequence_incarnation, state.shard)
        again.splits += [
            (part.repetition, split)
            for part in begin.splits
            if part.provider == 0
            for split in range(part.first, part.end)
        ]
        keys = {("", key) for key in book.promised(again)}
        assert missing <= keys or not book.split, f"nobody makes {sorted(missing - keys, key=repr)[:5]} again"
        book.uncertain |= keys
        self.seen.repeated += 1

    def _lose_knowledge(self, uid: str) -> None:
        """A worker is gone: what it alone knew of clients that are gone as well may come again."""
        for book in self.passes.values():
            for task in [task for task in book.tasks.values() if task.worker == uid]:
                for index in range(len(task.values)):
                    for trainer in {client.trainer for client in self.silent.values()}:
                        key = trainer, task.key(index)
                        if book.consumed.get(key) in self.silent and not task.is_known(trainer, index):
                            book.uncertain.add(key)

    def _check_loss(self, loss: Loss) -> None:
        """A task was given up: what does not arrive is counted, no more and no less."""
        self.seen.given_up += 1
        book = self._pass_of[loss.task_id]
        if loss.task_id not in book.tasks or book.rounds:
            return
        task = book.tasks[loss.task_id]
        readers = self.readers(book.job, book.number)
        missing = book.owed(task, loss.trainer_id, readers)
        fuzzy = len(book.uncertain)
        if loss.elements >= 0 and loss.trainer_id not in book.excused:  # else it left, and nothing is kept for it
            told = f"{loss.elements} elements were told to be lost, and {len(missing)} are"
            assert len(missing) <= loss.elements <= len(missing) + fuzzy, told
        book.lost |= missing

    def _check_not_needed(self, task_id: str) -> None:
        """A task goes or begins anew: its readers have all of it, or were told what they lack."""
        book = self._pass_of[task_id]
        readers = self.readers(book.job, book.number)
        cancelled = book.job not in self.core.state.jobs
        if task_id not in book.tasks or cancelled or not readers or book.rounds:
            return
        for trainer in book.needing(readers):
            task = book.tasks[task_id]
            endless = book.cached and book.pipeline.length is None
            left = book.owed(task, trainer, readers) if endless else book.missing([task], trainer) - book.held(readers)
            left -= book.lost
            assert not left, f"task {task_id} has elements that {trainer!r} needs: {sorted(left, key=repr)[:5]}"

    def _check_whole(self, book: PassBook) -> None:
        """A pass is finished: each element was consumed once, or is known to be lost."""
        if book.rounds or (not book.tasks and (book.job, book.number) in self._archived):
            return
        self.seen.passes_over += 1
        readers = self.readers(book.job, book.number)
        for trainer in book.needing(readers) if book.cached else [""]:
            left = book.unaccounted(trainer, readers)
            assert not left, f"the pass is finished, and {trainer!r} lacks {sorted(left, key=repr)[:5]}"
        book.check_all_given()

    def check_over(self, client: SimClient) -> None:
        """A client was told that its pass is over for it: nothing is left that it should get."""
        book = self._read_by[client.client_id]
        if client.trainer in book.excused:
            return
        others = [other for other in self.readers(client.job, client.number) if other is not client]
        left = book.unaccounted(client.trainer, others)
        assert not left, f"the pass is over for {client.client_id}, which lacks {sorted(left, key=repr)[:5]}"
        book.check_all_given()

    # ---- what follows from instructions

    def _welcome(self, event: JoinRequest, joined: JoinReply) -> None:
        client = SimClient(joined.client_id, event, joined.job_name, joined.iteration, heard=joined.loss_count)
        client.trainer = event.trainer_id if event.cached else ""
        client.before = {holding.task_id: holding for holding in event.holdings}
        client.patience = self.patience(client)
        self.clients[client.client_id] = client
        self._read_by[client.client_id] = self.passes[client.job, client.number]
        before = self.silent.get(event.previous_client_id)
        if before is not None:
            client.losses, client.heard = before.losses, before.heard
        self.show(client)
        self.catch_up(client)
        client.follow()

    def _obey(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.StartTask() | e.UpdateTask():
                self._start(instruction)
            case e.DropTask():
                worker = self.workers.get(instruction.worker)
                if worker is not None and worker.connected and instruction.task_id in worker.tasks:
                    worker.tasks.pop(instruction.task_id).stopped = True
            case e.ReleaseClient():
                worker = self.workers.get(instruction.worker)
                if worker is not None and worker.connected:
                    worker.releases.append(instruction.release)
            case e.SendDrainOrder():
                worker = self.workers.get(instruction.worker)
                if worker is not None and worker.connected:
                    worker.leaving = True
            case e.DisconnectWorker():
                self.lose(self.workers.pop(instruction.worker))
            case e.NotifyCancelled():
                if self.clients[instruction.client_id].connected:
                    self.clients[instruction.client_id].cancelled = instruction.cancelled_by
            case e.NotifyClients():
                for client in self._told(instruction):
                    self.show(client)
            case e.NotifyLoss():
                for client in self._told(instruction):
                    client.losses.append(instruction.loss)
                    client.heard += 1

    def lose(self, worker: SimWorker) -> None:
        """A worker's process ends: nothing more comes of its tasks than what is on its way."""
        worker.dead, worker.connected = True, False
        for task in worker.tasks.values():
            task.stopped = True

    def _start(self, told: e.StartTask | e.UpdateTask) -> None:
        """Let a worker have its order for a task; one that it has already is only paused or goes on."""
        worker, task = self.workers.get(told.worker), self.core.state.tasks.get(told.task_id)
        if worker is None or task is None or not worker.connected:
            return
        paused = bool(self.core.state.jobs[task.job].paused_by)
        known = worker.tasks.get(task.task_id)
        if known is None or known.incarnation != task.incarnation:
            if known is not None:
                known.stopped = True
            iteration = self.core.state.iteration(task.job, task.iteration)
            known = SimTask(self._order(task), len(iteration.providers), paused=paused)
            worker.tasks[task.task_id] = known
        known.paused = paused

    def _order(self, task: Task) -> Order:
        job = self.core.state.jobs[task.job]
        iteration = job.iterations[task.iteration]
        return Order(
            task_id=task.task_id,
            incarnation=task.incarnation,
            mode=job.mode,
            cached=job.cached,
            endless=is_endless(self.core, job),
            shard=max(0, task.shard),
            shards=len(iteration.shards),
            position=start_position_of(iteration, task),
            pipeline=self.pipelines[job.dataset_id],
        )

    def _told(self, told: e.NotifyClients | e.NotifyLoss) -> Iterable[SimClient]:
        place = told.job, told.iteration
        return [c for c in self.clients.values() if c.connected and not c.cancelled and (c.job, c.number) == place]

    def show(self, client: SimClient) -> None:
        """Tell a client how things are, as the shell does when it is told to."""
        state = self.core.state
        known = state.clients.get(client.client_id)
        if known is not None and known.cancelled_by:
            client.cancelled = known.cancelled_by
            return
        job = state.jobs.get(client.job)
        if job is not None and client.number in job.iterations:
            iteration = job.iterations[client.number]
            client.infos = {name: self._info(state.tasks[name]) for name in iteration.tasks}
            client.finished = iteration.finished

    def _info(self, task: Task) -> TaskInfo:
        """A task as the shell tells clients of it."""
        cached = self.core.state.jobs[task.job].cached
        return TaskInfo(
            task_id=task.task_id,
            worker_uid=task.worker,
            incarnation=task.incarnation,
            ended=task.ended,
            unassigned=task.unassignment is not None,
            needed_from=task.resume_position.index if task.resume_position is not None and not cached else 0,
            sequence_incarnation=task.sequence_incarnation,
        )

    def catch_up(self, client: SimClient) -> None:
        """Tell a client that opens its stream again of the losses that it has not heard of."""
        job = self.core.state.jobs.get(client.job)
        if job is not None and client.number in job.iterations and not client.cancelled:
            losses = job.iterations[client.number].losses
            client.losses += losses[client.heard :]
            client.heard = len(losses)

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
            assert self._twin == self.core.state, "the journal leads to another state"

    def _check_losses_heard(self) -> None:
        """Each client that follows knows of each loss once, whatever broke meanwhile."""
        for client in self.clients.values():
            job = self.core.state.jobs.get(client.job)
            if client.connected and not client.cancelled and job is not None and client.number in job.iterations:
                losses = job.iterations[client.number].losses
                assert client.heard == len(losses), "a client was not told of a loss, or twice"
                assert client.losses == losses[len(losses) - len(client.losses) :], "a client was told another story"

    def _check_passes(self) -> None:
        state = self.core.state
        for known in state.jobs.values():
            kept = any(iteration.orphaned for iteration in known.iterations.values())
            assert known.clients or kept or not known.anonymous, "an anonymous job outlives its client"
        for (job, number), book in self.passes.items():
            iteration = state.iteration(job, number)
            running = [task for task in iteration.tasks if not state.tasks[task].ended]
            assert iteration.finished or running or not iteration.tasks, "all tasks have ended, and the pass goes on"
            for at, provider in enumerate(iteration.providers):
                table = book.given.get((at, provider.repetition), {})
                assert table.keys() == set(range(provider.next)), "given and not given do not make up all splits"

    def _check_workers(self) -> None:
        state = self.core.state
        assert state.workers.keys() == self.workers.keys(), "the workers that are here are not those that were heard of"
        for worker in self.workers.values():
            if worker.connected:
                there = {task.task_id: task.incarnation for task in state.tasks_of(worker.uid)}
                has = {task.task_id: task.incarnation for task in worker.tasks.values()}
                assert has == there, "a worker has other tasks than it should"
                assert worker.leaving == state.workers[worker.uid].draining, "a worker was not told to leave"
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
        state, live = self.core.state, self.core.transient
        left = {job.name for job in state.jobs.values() if not job.clients}
        assert live.jobs_unused_since.keys() == left, "other jobs wait to be collected than those that nobody reads"
        passes = {(job.name, i.number): i for job in state.jobs.values() for i in job.iterations.values()}
        unread = {
            key for key, it in passes.items() if not it.clients and (it.tasks or not it.finished) and not it.orphaned
        }
        done = {key for key, pass_ in passes.items() if not pass_.clients}
        assert unread <= live.iterations_unread_since.keys() <= done, (
            "other passes wait to be collected than those that nobody reads"
        )
        assert live.progress.keys() <= state.tasks.keys(), "progress is kept of a task that is gone"
        halted = {task.task_id for task in state.tasks.values() if task.unassignment is not None}
        assert live.holdings.keys() <= halted, "holdings are kept of a task that is at work"
        assert live.disconnected_clients <= state.clients.keys(), (
            "a client is gone, and remembered as one whose connection broke"
        )
        assert live.iterations_without_departures <= passes.keys(), "a pass is gone, and remembered as undisturbed"
        workers = state.workers.keys()
        assert live.confirmed_releases.keys() | live.sent_releases.keys() <= workers, "a worker is gone, and awaited"
