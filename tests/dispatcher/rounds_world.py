"""The three cores of coordinated reads with a simulated network between them: dispatcher, workers and consumers.

Each connection keeps its messages in order; which one delivers next is whoever drives this world's choice.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dsnb.client.position import decode_position, encode_rounds
from dsnb.client.rounds import ConsumerRounds
from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers import orders, positions
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.state import State, replay
from dsnb.errors import FailedPreconditionError
from dsnb.pipeline.operation import INFINITE_CARDINALITY
from dsnb.wire.messages import (
    ClientReport,
    ControlRequest,
    DatasetInfo,
    IterationPosition,
    JoinRequest,
    TaskReport,
    WorkerReport,
)
from dsnb.wire.schedule import RoundsUpdate, consumer_name
from dsnb.worker.round_log import RoundLog
from tests.dispatcher.model import raise_bugs

Task = str
_WHOLE = 1 << 60
"""More elements than any task has."""


class SimConsumer:
    """One client of an index, with its connections: each a queue up and a queue down."""

    def __init__(self, index: int, consumers: int, client: str) -> None:
        self.index = index
        self.client = client
        self.iteration = 0
        self.rounds = ConsumerRounds(index, consumers)
        self.up: deque[Any] = deque()
        self.down: deque[tuple[tuple[Task, ...], RoundsUpdate]] = deque()
        self.links: dict[Task, tuple[deque[Any], deque[Any]]] = {}
        self.answered = 0
        self.acknowledged: dict[Task, tuple[int, int]] = {}
        self.took: dict[int, tuple[Task, int, int]] = {}
        self.filled: set[int] = set()
        """The rounds in which it got an element that another one has too."""


class World:
    """One job of so many consumers.

    Args:
        consumers: How many there are.
        at_end: What becomes of the last round; empty for data without an end.
        credit: How many rounds of a task may wait for a consumer.
        pace: Consumers take a round in one of so many moves.
    """

    def __init__(self, consumers: int, at_end: str = "", credit: int = 3, pace: int = 1) -> None:
        self.count = consumers
        self.at_end = at_end
        self.credit = credit
        self.pace = pace
        self.lengths: dict[Task, int] = {}
        """The number of elements of some tasks."""
        self._moves = 0
        self.given: dict[tuple[Task, int], tuple[int, int]] = {}
        """For each element: the iteration and round that it was in."""
        self.records: list[Record] = []
        self.config = DispatcherConfig()
        self.core = Core(self.config, State())
        self.workers: dict[str, dict[Task, RoundLog]] = {}
        self.consumers: dict[int, SimConsumer] = {}
        self.joined: set[int] = set()
        """The consumers that ever had a client."""
        self.came_again = False
        self._made = 0
        registered = self.handle(
            e.RegisterDataset(
                dataset_id="",
                definition="d",
                info=DatasetInfo(fingerprint="f", compression="AUTO", cardinality=INFINITE_CARDINALITY, pipeline="p"),
            )
        )
        self.dataset: str = registered.dataset_id

    # ---- the dispatcher

    def handle(self, event: e.Event) -> Any:
        decision = self.core.handle(event, 0.0)
        raise_bugs(decision)
        if decision.error is not None:
            raise decision.error
        self.records += decision.records
        for instruction in decision.instructions:
            if isinstance(instruction, e.StartTask) and instruction.worker in self.workers:
                tasks = self.workers[instruction.worker]
                tasks.setdefault(instruction.task_id, RoundLog(consumers=self.count, read_ahead_bytes=1 << 10))
            elif isinstance(instruction, e.DropTask):
                self.workers.get(instruction.worker, {}).pop(instruction.task_id, None)
            elif isinstance(instruction, e.UpdateTask):
                self.divide_leftovers(instruction.task_id)
            elif isinstance(instruction, e.NotifyClients):
                self.tell(*self.consumers.values())
        self.core.validate()
        return decision.reply

    def tell(self, *consumers: SimConsumer) -> None:
        job = self.core.state.jobs["job"]
        for consumer in consumers:
            iteration = job.iterations.get(consumer.iteration)
            if iteration is not None and consumer.client in iteration.clients:
                update = orders.client_update(self.core, "job", consumer.iteration).rounds
                assert update is not None
                consumer.down.append((tuple(iteration.tasks), update))

    def divide_leftovers(self, task: Task) -> None:
        """A worker hears who gets the leftovers of its task."""
        core, known = self.sequence(task), self.core.state.tasks.get(task)
        leftovers = orders.task_order(self.core, known).leftovers if known is not None else None
        if core is not None and leftovers is not None:
            core.divide_leftovers(leftovers)

    def length(self, task: Task) -> int | None:
        """How many elements a task has; None for endless ones."""
        return self.lengths.get(task, int(task) * 7 % 23) if self.at_end else None

    def restart(self) -> None:
        """The dispatcher dies and comes back; all follow it again."""
        state = replay(self.records)
        assert state.export() == self.core.state.export()
        self.core = Core(self.config, state)
        for uid in self.workers:
            self.worker_reports(uid)
            for task in self.workers[uid]:
                self.divide_leftovers(task)  # a worker that connects again is sent its orders
        for consumer in self.consumers.values():
            consumer.up.clear()
            consumer.down.clear()
            self.report(consumer)
        if self.consumers:
            self.tell(*self.consumers.values())

    # ---- who is there

    def add_worker(self) -> None:
        self._made += 1
        uid = f"w{self._made}"
        self.workers[uid] = {}
        self.handle(e.WorkerArrives(report=WorkerReport(uid=uid, address=uid, isolation="thread", pid=1)))

    def worker_reports(self, uid: str) -> None:
        reports = tuple(
            TaskReport(task_id=task, state="ended" if log.finished else "running", head=log.head, incarnation=1)
            for task, log in self.workers[uid].items()
        )
        self.handle(WorkerReport(uid=uid, tasks=reports))

    def kill_worker(self, at: int) -> None:
        uid = list(self.workers)[at % len(self.workers)]
        tasks = self.workers.pop(uid)
        for consumer in self.consumers.values():
            for task in tasks:
                consumer.links.pop(task, None)
        self.handle(e.WorkerLeaves(uid=uid, exit_reason="killed"))

    def drain_worker(self, at: int) -> None:
        self.handle(e.WorkerDrains(uid=list(self.workers)[at % len(self.workers)]))

    def join(self, index: int, position: IterationPosition | None = None) -> None:
        """A consumer comes; one that is there already has died without a word."""
        self.came_again |= index in self.joined  # not what the dispatcher knows: it forgets that when it dies
        self.joined.add(index)
        joined = self.handle(
            JoinRequest(
                dataset_id=self.dataset, job_name="job", mode="OFF", cached=False, trainer_id=consumer_name(index),
                compression="AUTO", target_workers="AUTO", iteration=0, num_consumers=self.count, consumer_index=index,
                at_end=self.at_end or "drop", position=position,
            )
        )  # fmt: skip
        consumer = self.consumers[index] = SimConsumer(index, self.count, joined.client_id)
        consumer.iteration = joined.iteration
        self.tell(consumer)

    def leave(self, index: int) -> None:
        """A consumer says goodbye, and where it is."""
        consumer = self.consumers.pop(index, None)
        if consumer is not None:
            self.handle(ClientReport(client_id=consumer.client, consumer=consumer.rounds.report(), leaving=True))

    def cancel(self) -> None:
        """The job is cancelled, and each consumer hears of it and leaves."""
        self.handle(ControlRequest(action="cancel", name="job", requested_by="anna"))
        self.given.clear()
        for index in list(self.consumers):
            self.leave(index)

    # ---- messages

    def hear(self, consumer: SimConsumer) -> None:
        """A consumer takes in what the dispatcher said, and opens and closes tasks accordingly."""
        if not consumer.down:
            return
        tasks, update = consumer.down.popleft()
        consumer.rounds.set_tasks(tasks)
        consumer.rounds.receive_update(update)
        for task in consumer.links.keys() - set(tasks):
            del consumer.links[task]
        for task in tasks:
            if task not in consumer.links:
                self.open(consumer, task)
        self.answer(consumer)

    def open(self, consumer: SimConsumer, task: Task) -> None:
        core = self.sequence(task)
        if core is None:
            return
        turns = consumer.rounds.task_rounds(task)
        core.attach(consumer.client, consumer_name(consumer.index), turns.received, turns.consumed)
        consumer.links[task] = (deque(), deque([core.unreported_progress(consumer.client)]))
        self.say(consumer, task)

    def sequence(self, task: Task) -> RoundLog | None:
        return next((tasks[task] for tasks in self.workers.values() if task in tasks), None)

    def answer(self, consumer: SimConsumer) -> None:
        halt = consumer.rounds.report().halt
        if halt and halt != consumer.answered:
            self.report(consumer)

    def report(self, consumer: SimConsumer) -> None:
        consumer.up.append(consumer.rounds.report())
        consumer.answered = consumer.up[-1].halt

    def tell_dispatcher(self, consumer: SimConsumer) -> None:
        if consumer.up:
            self.handle(ClientReport(client_id=consumer.client, consumer=consumer.up.popleft()))

    def say(self, consumer: SimConsumer, task: Task) -> None:
        """A consumer acknowledges."""
        turns = consumer.rounds.task_rounds(task)
        if consumer.acknowledged.get(task) != (turns.received, turns.consumed):
            consumer.acknowledged[task] = turns.received, turns.consumed
            consumer.links[task][0].append((turns.consumed + self.credit, turns.consumed, turns.received))

    def move(self, consumer: SimConsumer, task: Task) -> None:
        """One message each way between a consumer and a worker."""
        core, (up, down) = self.sequence(task), consumer.links[task]
        if core is None or consumer.client not in core.readers:
            return
        self.say(consumer, task)
        if up:
            granted, consumed, received = up.popleft()
            core.credit(consumer.client, granted, consumed, 1 << 30, received=received)
        while (taken := core.take(consumer.client)) is not None:
            first: Any = taken.frame
            down.append([taken.index // self.count, first + taken.start])
        if (news := core.unreported_progress(consumer.client)) is not None:
            down.append(news)
        if down:
            item = down.popleft()
            if isinstance(item, tuple):
                consumer.rounds.progress(task, *item)
            else:
                consumer.rounds.deliver(task, item[0], (task, *item), 1)
            self.say(consumer, task)
            self.answer(consumer)
        core.validate()

    def produce(self, task: Task) -> None:
        core, length = self.sequence(task), self.length(task)
        if core is None or not core.wants_more():
            return
        count = 1 + self.count // 2
        if length is not None:
            count = min(count, length - core.head)
        if count:
            frame: Any = core.head  # stands for the frame that begins with this element
            core.append(frame, count, 8)
        else:
            core.finish()
            for uid, tasks in self.workers.items():
                if task in tasks:
                    self.worker_reports(uid)

    # ---- rounds

    def take(self, consumer: SimConsumer) -> None:
        missed = consumer.rounds.skip_missed()
        assert not missed or self.came_again, "a round went without a consumer that was there all the time"
        if not consumer.rounds.ready:
            return
        number, filler = consumer.rounds.next_round, consumer.rounds.is_filler
        found = consumer.rounds.take()
        consumer.took[number] = found
        if filler:
            consumer.filled.add(number)
        task, _, element = found
        before = self.given.setdefault((task, element), (consumer.iteration, number))
        assert filler or self.came_again or before == (consumer.iteration, number), (
            f"{found} came in {before} and in {(consumer.iteration, number)}"
        )
        for other in self.consumers.values():
            if other.iteration == consumer.iteration and number in other.took:
                assert self._one_round(other.took[number], found), f"round {number} is of two turns"

    def _one_round(self, one: tuple[Task, int, int], other: tuple[Task, int, int]) -> bool:
        """Whether two consumers may have these in one round: of one turn, or both left over."""
        return one[:2] == other[:2] or (self._is_left_over(one) and self._is_left_over(other))

    def _is_left_over(self, item: tuple[Task, int, int]) -> bool:
        length = self.length(item[0])
        return length is not None and item[2] >= length - length % self.count

    def check_positions(self) -> None:
        """A consumer's position after any of its rounds divides what all consumers take into before and after."""
        for consumer in self.consumers.values():
            taken = consumer.rounds.taken
            if self.came_again or taken.first_round or consumer.rounds.missed:
                continue
            together = [one for one in self.consumers.values() if one.iteration == consumer.iteration]
            for count in {0, 1, taken.total // 3, taken.total // 2, max(0, taken.total - 1), taken.total}:
                behind = self.position(consumer, count)
                if behind is None:
                    continue
                for other in together:
                    for number, (task, _, element) in other.took.items():
                        if number >= taken.total or (number >= count and number in other.filled):
                            continue  # not known here; or given to another one before
                        is_behind = element < behind.get(task, _WHOLE)
                        assert is_behind == (number < count), (count, behind, task, element)

    def position(self, consumer: SimConsumer, count: int) -> dict[Task, int] | None:
        """How many elements of each task lie before a consumer's position; all of a task that is not in it.

        None if there is no such position.
        """
        rounds = consumer.rounds
        behind, now = rounds.taken.elements_after(count), rounds.taken.elements_after(rounds.taken.total)
        to_come = rounds.tasks_to_come() | {task for task, turn in now.items() if turn > behind.get(task, 0)}
        if consumer.client not in self.core.state.clients:
            return None
        answer = positions.iteration_position(self.core, consumer.client)
        try:
            encoded = encode_rounds(consumer.iteration, count, behind, to_come, answer)
        except FailedPreconditionError:
            return None
        position = decode_position(encoded).position
        if positions.at_beginning(position):
            return {task: 0 for task, _ in self.given}
        # The entropy of a task, which tells its sequence from others, follows from its id here.
        return {str(task.entropy - position.entropy): task.skip for task in position.tasks}

    def everything_moves(self) -> None:
        """Each connection delivers, each pipeline produces, each consumer takes what it can."""
        self._moves += 1
        for consumer in list(self.consumers.values()):
            self.hear(consumer)
            self.tell_dispatcher(consumer)
            for task in list(consumer.links):
                self.move(consumer, task)
            if self._moves % self.pace == 0:
                self.take(consumer)
        for tasks in list(self.workers.values()):
            for task in list(tasks):
                self.produce(task)

    def come_to_rest(self) -> None:
        """Faults are over: whoever is missing comes, and rounds go on."""
        self.check_positions()
        if all(worker.draining for worker in self.core.state.workers.values()):
            self.add_worker()
        for index in range(self.count):
            if index not in self.consumers:
                self.join(index)
        if self.at_end:
            self.read_to_the_end()
            return
        self.pace = 1
        goal = {index: len(consumer.took) + 12 for index, consumer in self.consumers.items()}
        for _ in range(600):
            if all(len(self.consumers[index].took) >= wanted for index, wanted in goal.items()):
                break
            self.everything_moves()
        self.check_positions()
        stuck = {index: (c.rounds.next_round, c.rounds.report()) for index, c in self.consumers.items()}
        assert all(len(self.consumers[i].took) >= wanted for i, wanted in goal.items()), f"rounds do not go on: {stuck}"

    def read_to_the_end(self) -> None:
        """All consumers read the newest iteration, and those before it, to their ends."""
        newest = max(consumer.iteration for consumer in self.consumers.values())
        self.pace = 1
        for _ in range(1200):
            if all(consumer.iteration > newest for consumer in self.consumers.values()):
                break
            self.everything_moves()
            for index, consumer in list(self.consumers.items()):
                if consumer.rounds.ended:
                    self.check_positions()
                    self.leave(index)
                    self.join(index)
        stuck = {i: (c.iteration, c.rounds.next_round, c.rounds.report()) for i, c in self.consumers.items()}
        assert all(consumer.iteration > newest for consumer in self.consumers.values()), f"no end: {stuck}"
        finished = self.core.state.jobs["job"].iterations[newest]
        assert finished.finished, "all have read to the end, and the pass is not over"
