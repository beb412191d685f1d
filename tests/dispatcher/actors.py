"""Workers and clients as a dispatcher meets them, without threads, sockets or time.

A worker's task has a worker's real window over a pipeline of the plainest kind: it makes one element of each split of
its first provider, in the order in which the task was given them; or, where nothing is split, the numbers from 0 on. It
begins where its order says, and knows nothing else of what was before. A client has what a client has: what is on its
way to it, what it received in order, and how much of that its user consumed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.pipeline.engine.resume_point import ResumePoint, from_text, to_text
from dsnb.wire.messages import (
    CachePolicy,
    ClientRelease,
    EndedTask,
    FinishedSplits,
    IndexRange,
    JoinRequest,
    LinkReport,
    Loss,
    LostReader,
    ResumePosition,
    SplitGrant,
    SplitsReply,
    TaskHolding,
    TaskInfo,
    TaskPosition,
    TaskReport,
    TrainerReport,
    WorkerReport,
)
from dsnb.wire.ranges import Ranges
from dsnb.worker.shared_log import SharedLog

Value = Any
"""What an element is: the repetition and the number of its split, or its place in what is not split."""

SLOW = 1 << 20
"""Milliseconds of work that nobody wants to see done again."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a registered dataset makes.

    Attributes:
        counts: The splits of each provider.
        repetitions: How often it reads them.
        length: The number of elements where nothing is split; None for no end.
        step: It can be begun behind any number of splits that this divides; with 0 at the beginning only.
        slow: Whether it takes so long that its work is not done again.
    """

    counts: tuple[int, ...] = ()
    repetitions: int = 1
    length: int | None = 20
    step: int = 1
    slow: bool = False


@dataclass(slots=True)
class Place:
    """How far a task has asked one provider."""

    repetition: int = 0
    cursor: int = 0
    asked: list[tuple[tuple[int, int], SplitsReply]] = field(default_factory=list)
    pulled: list[int] = field(default_factory=list)
    """The repetition of each split that it got."""
    used: int = 0
    """Splits that are in elements."""
    unanswered: bool = False
    """Whether it asked and got no answer: it asks again then, before anything else."""


@dataclass(slots=True)
class Sent:
    """What a task sent to a client: how many elements in all, and whether it told it of the end."""

    count: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told of a task."""

    task_id: str
    incarnation: int
    mode: str
    cached: bool
    endless: bool
    shard: int
    shards: int
    position: TaskPosition | None
    pipeline: Pipeline


class SimTask:
    """One incarnation of a task, at one worker."""

    def __init__(self, order: Order, providers: int, *, paused: bool) -> None:
        self.order, self.paused = order, paused
        position = order.position or TaskPosition()
        self.first = position.first_index if position.taken_over else 0
        self.window = SharedLog(
            capacity=1 << 30, read_ahead_bytes=1 << 30, keep=order.cached, keep_all=not order.endless, first=self.first
        )
        if position.taken_over:
            self.window.take_over(position.trainers)
        point = from_text(position.pipeline_position) if position.pipeline_position else ResumePoint(skip=position.skip)
        self._left_out = point.skip
        self._at = point.counter
        self._begun = [Place() for _ in range(providers)]
        for source in point.sources():
            self._begun[source.provider].repetition = source.repetition
        self.places = [Place(repetition=place.repetition) for place in self._begun]
        self._had = _by_cursor(position)
        self.values: list[Value] = []
        """What it made."""
        self._pulled = 0
        self._beside: list[tuple[int, ...]] = []
        """How many splits of each provider are in the elements up to each of those."""
        self.sent: dict[str, Sent] = {}
        self.stopped = False
        self.repeated = 0
        self.lost_readers: dict[str, int] = {}
        if position.ended:
            self.finish()

    @property
    def task_id(self) -> str:
        return self.order.task_id

    @property
    def incarnation(self) -> int:
        return self.order.incarnation

    @property
    def ended(self) -> bool:
        """Whether the pipeline has come to its end."""
        return self.window.finished

    # ---- the pipeline

    def known(self, provider: int) -> SplitsReply | None:
        """The next run of a provider, if this task was given it before this incarnation began."""
        place = self.places[provider]
        run = self._had.pop((provider, place.repetition, place.cursor), None)
        return None if run is None else SplitsReply(first=run[0], end=run[1])

    def replays(self, provider: int) -> bool:
        """Whether it has yet to make what an earlier incarnation made, or to get an answer to what it asked."""
        return self.places[provider].unanswered or any(at == provider for at, _, _ in self._had)

    def take(self, provider: int, answer: SplitsReply) -> None:
        """Get a run of splits, or the end of a repetition; make of it what can be made."""
        place = self.places[provider]
        if answer.done:
            place.repetition, place.cursor = place.repetition + 1, 0
            return
        place.cursor += answer.end - answer.first
        place.pulled += [place.repetition] * (answer.end - answer.first)
        if provider == 0:
            self._make_of([(place.repetition, split) for split in range(answer.first, answer.end)])

    def _make_of(self, splits: list[tuple[int, int]]) -> None:
        for _ in splits:
            for place in self.places:
                place.used = min(place.used + 1, len(place.pulled))
            self._beside.append(tuple(place.used for place in self.places))
        behind = max(0, self._left_out - self._pulled)
        self._pulled += len(splits)
        self._append(splits[behind:])

    def give_up_repetition(self) -> None:
        """Go on with the next repetition of all providers, as at the end of a zip's shorter side."""
        repetition = 1 + max(place.repetition for place in self.places)
        for place in self.places:
            place.repetition, place.cursor, place.used = repetition, 0, len(place.pulled)

    def make(self, count: int) -> None:
        """Make elements where nothing is split."""
        begin = self._at + self._left_out + self.window.head - self.first
        end = begin + count if self.length is None else min(begin + count, self.length)
        self._append(list(range(begin, end)))

    @property
    def length(self) -> int | None:
        """The number of elements, where nothing is split and there is an end."""
        whole = self.order.pipeline.length
        return len(range(self.order.shard, whole, self.order.shards)) if self.order.shards and whole else whole

    def _append(self, values: list[Value]) -> None:
        if values:
            self.values += values
            self.window.append(values, len(values), len(values))

    def finish(self) -> None:
        """Come to the end."""
        if not self.window.finished:
            self.window.finish()

    # ---- readers

    def open(self, client_id: str, trainer: str, received: int, consumed: int, had: Iterable[tuple[int, int]]) -> None:
        """Let a client read, for the first time or again."""
        manner = CachePolicy(on_lag="wait") if self.order.cached else CachePolicy()
        self.window.attach(client_id, trainer, received, consumed, manner)
        self.repeated += self.window.reconcile(trainer, had)
        self.sent[client_id] = Sent(received)
        self.window.credit(client_id, 0, consumed, 1 << 30)

    def send(self, client_id: str, most: int, consumed: int) -> list[tuple[int, Value] | None]:
        """Send a client so many elements more, with their numbers; None for the end."""
        if self.paused or self.stopped or client_id not in self.sent:
            return []
        sent = self.sent[client_id]
        self.window.credit(client_id, sent.count + most, 0, 1 << 30, taken=consumed)
        out: list[tuple[int, Value] | None] = []
        for taken in self.window.take_all(client_id):
            made: Any = taken.frame
            values = made[taken.start : taken.start + taken.count]
            out += [(taken.index + at, value) for at, value in enumerate(values)]
        sent.count += len(out)
        sent.ended = sent.ended and not out
        if self.window.at_end(client_id) and not sent.ended:
            sent.ended = True
            out.append(None)
        return out

    def acknowledge(self, client_id: str, consumed: int) -> None:
        """Learn how much a client consumed."""
        if client_id in self.sent and not self.stopped:
            self.window.credit(client_id, 0, consumed, 1 << 30)

    def leave(self, client_id: str, consumed: int | None = None, *, died: bool = False) -> None:
        """Let a client go; by its own word, or by the dispatcher's."""
        self.sent.pop(client_id, None)
        if died:
            self.lost_readers[client_id] = max(consumed or 0, self.window.consumed_by(client_id))
        self.window.leave(client_id, consumed)
        if died:
            self.window.remove_unread_trainers()

    # ---- what is told

    def report(self) -> TaskReport:
        """How far it is, and what it has."""
        window = self.window
        window.validate()
        offsets = {name: window.offset(name) for name in window.trainers}
        return TaskReport(
            task_id=self.task_id,
            incarnation=self.incarnation,
            clients=tuple(window.readers),
            closing=window.closing,
            grants=tuple(self.grants()),
            splits_done=self._done(max(offsets.values(), default=0)),
            resume_position=self._resume() if window.trainers else None,  # a pipeline begins with its first reader
            trainers=tuple(
                TrainerReport(
                    trainer_id=name,
                    offset=offset,
                    consumed_ranges=window.trainer_report(name).consumed_ranges,
                )
                for name, offset in offsets.items()
            ),
            exhausted=window.exhausted,
            links=tuple(
                LinkReport(
                    client_id=client,
                    sent=sent.count,
                    at_end=self.ended and client in window.readers and window.at_end(client),
                )
                for client, sent in self.sent.items()
            ),
            missing_elements=window.short_by,
            repeated=self.repeated,
            lost_readers=tuple(LostReader(client_id=c, consumed=n) for c, n in self.lost_readers.items()),
        )

    def _done(self, consumed: int) -> tuple[int, ...]:
        if self.ended and consumed >= self.window.head:
            return tuple(len(place.pulled) for place in self.places)
        behind = min(len(self._beside), max(0, self._left_out + consumed - self.first))
        return self._beside[behind - 1] if behind else (0,) * len(self.places)

    def _resume(self) -> ResumePosition:
        window, step = self.window, self.order.pipeline.step
        index = window.resume_index()
        assert index is not None
        behind = self._left_out + index - self.first
        mark = behind - behind % step if step else 0
        if self.places:
            point = ResumePoint(skip=behind - mark, inputs=tuple(self._sources(mark)))
        else:
            point = ResumePoint(skip=behind - mark, counter=self._at + mark)
        return ResumePosition(
            index=index,
            pipeline_position=to_text(point),
            splits=tuple(
                FinishedSplits(provider=source.provider, repetition=source.repetition, count=source.finished_splits)
                for source in point.sources()
            ),
            repeated_ms=SLOW if self.order.pipeline.slow else 0,
        )

    def _sources(self, mark: int) -> Iterable[ResumePoint]:
        """Where each source goes on when so many splits of the first one are behind for good."""
        used = self._beside[mark - 1] if mark else (0,) * len(self.places)
        for provider, count in enumerate(used):
            pulled, begun = self.places[provider].pulled, self._begun[provider].repetition
            repetition = pulled[count - 1] if count else begun
            splits = Counter(pulled[:count])[repetition]
            yield ResumePoint(provider=provider, repetition=repetition, finished_splits=splits)

    def grants(self) -> list[SplitGrant]:
        """The last run of each provider that it knows of."""
        runs = {at: [x for x in place.asked if not x[1].done][-1:] for at, place in enumerate(self.places)}
        return [
            SplitGrant(
                provider=at,
                repetition=asked[0],
                cursor=asked[1],
                first=run.first,
                end=run.end,
            )
            for at, found in runs.items()
            for asked, run in found
        ]


def _by_cursor(position: TaskPosition) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Runs by provider, repetition, and how many splits of that there are before."""
    cursors: Counter[tuple[int, int]] = Counter()
    found = {}
    for run in position.splits:
        place = run.provider, run.repetition
        found[*place, cursors[place]] = run.first, run.end
        cursors[place] += run.end - run.first
    return found


def _index_ranges(ranges: Iterable[tuple[int, int]], behind: int = 0) -> tuple[IndexRange, ...]:
    return tuple(IndexRange(first=first, end=end) for first, end in ranges if end > behind)


@dataclass(slots=True)
class SimWorker:
    """A worker; `silence` is how long it was not heard of, `patience` how long that may be.

    It gets nothing more to do when the dispatcher counts it as `draining`, and is `leaving` when it knows that.
    """

    uid: str
    address: str
    connected: bool = True
    draining: bool = False
    leaving: bool = False
    held: bool = False
    replaced: bool = False
    dead: bool = False
    silence: float = 0.0
    patience: float = 0.0
    tasks: dict[str, SimTask] = field(default_factory=dict)
    releases: deque[ClientRelease] = field(default_factory=deque)
    """Orders to let clients go that are on their way to it."""
    released: int = 0
    reports: deque[WorkerReport] = field(default_factory=deque)
    """Reports that are on their way from it."""

    def obey(self) -> None:
        """Let go of the clients that it was told of."""
        while self.releases:
            order = self.releases.popleft()
            for task in self.tasks.values():
                known = [one.received for one in order.holdings if one.task_id == task.task_id]
                task.leave(order.client_id, known[0] if known else None, died=order.died)
            self.released = max(self.released, order.number)

    def write_report(self) -> None:
        """Put down how things are; it arrives later."""
        tasks = self.tasks.values()
        self.reports.append(
            WorkerReport(
                uid=self.uid,
                ended=tuple(task.task_id for task in tasks if task.window.done),
                tasks=tuple(task.report() for task in tasks),
                last_release=self.released,
            )
        )

    def arrival(self) -> e.WorkerArrives:
        """What it sends first when it opens its control stream."""
        tasks = tuple(
            TaskReport(task_id=task.task_id, incarnation=task.incarnation, grants=tuple(task.grants()))
            for task in self.tasks.values()
        )
        report = WorkerReport(uid=self.uid, address=self.address, isolation="thread", pid=1, tasks=tasks)
        return e.WorkerArrives(report=report)


class SimHold:
    """A client's side of one task."""

    def __init__(self, info: TaskInfo, had: tuple[tuple[int, int], ...] = ()) -> None:
        self.info = info
        self.link: SimTask | None = None
        self.wire: deque[tuple[int, Value] | None] = deque()
        """What is on its way; None for the end."""
        self.buffer: deque[tuple[int, int, Value]] = deque()
        """What was received and not consumed: sequence, number and value."""
        self.done = Ranges(had)
        """What the user consumed of the present sequence."""
        self.had = had
        """What it consumed before it was given up and came back."""
        self.received = self.told = 0
        self.order: list[tuple[int, int]] = []
        """All that was consumed, as sequence and number; the worker was told of the first `told`."""
        self.ended = False

    @property
    def consumed(self) -> int:
        return len(self.order)

    def consume(self) -> tuple[int, int, Value]:
        """Let the user have the first of what was received."""
        sequence, number, value = self.buffer.popleft()
        self.order.append((sequence, number))
        if sequence == self.info.sequence_incarnation:
            self.done.add(number, number + 1)
        return sequence, number, value

    def holding(self, incarnation: int) -> TaskHolding:
        """What it consumed, and what it has to consume."""
        held = [number for sequence, number, _ in self.buffer if sequence == self.info.sequence_incarnation]
        return TaskHolding(
            task_id=self.info.task_id,
            incarnation=incarnation,
            received=self.received,
            consumed=_index_ranges(self.done, self.info.needed_from),
            held=_index_ranges(_in_order(held)),
        )

    def disconnect(self, client_id: str, *, keep: bool = False) -> None:
        """Read no more from where it reads now; with `keep`, the client goes on to consume what it received."""
        if self.link is not None and not self.link.stopped:
            self.link.leave(client_id, self.received if keep else self.consumed)
        self.link = None
        self.wire.clear()

    def follow(self, client_id: str, info: TaskInfo) -> None:
        """Learn how the task is now."""
        if (self.info.incarnation, self.info.worker_uid) == (info.incarnation, info.worker_uid):
            return
        self.disconnect(client_id, keep=True)
        if self.info.sequence_incarnation != info.sequence_incarnation:
            self.done, self.had = Ranges(), ()
        self.info, self.ended = info, False


def _in_order(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as ranges, in their own order."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return ranges


@dataclass(slots=True)
class SimClient:
    """A client and what it was told: the tasks of its pass, losses, whether it is over."""

    client_id: str
    joined: JoinRequest
    job: str
    number: int
    trainer: str = ""
    """Whose place it shares in its tasks' windows."""
    connected: bool = True
    suspended: bool = False
    dead: bool = False
    silence: float = 0.0
    patience: float = 0.0
    infos: dict[str, TaskInfo] = field(default_factory=dict)
    holds: dict[str, SimHold] = field(default_factory=dict)
    dropped: list[SimHold] = field(default_factory=list)
    """Those of tasks that are gone, of which it has elements yet."""
    before: dict[str, TaskHolding] = field(default_factory=dict)
    """What it consumed before it was given up and came back, by task."""
    finished: bool = False
    over: bool = False
    """Whether it asked for the end and was told that its pass is over."""
    losses: list[Loss] = field(default_factory=list)
    """What it was told of losses, in order."""
    heard: int = 0
    """How many losses of the pass it knows of, those before it joined included."""
    cancelled: str = ""
    """Who cancelled its job, as it was told."""
    elements: int = 0
    """How many elements its user had."""
    digest: bytes = b""
    """What it says of their contents."""

    @property
    def tasks(self) -> dict[str, tuple[int, str]]:
        """Its tasks, as it was told, with incarnation and worker."""
        return {task_id: (info.incarnation, info.worker_uid) for task_id, info in self.infos.items()}

    @property
    def active(self) -> bool:
        """Whether its process runs."""
        return not self.suspended and not self.dead

    def follow(self) -> None:
        """Read the tasks that it was told of, and no others."""
        for task_id in self.holds.keys() - self.infos.keys():
            hold = self.holds.pop(task_id)
            hold.disconnect(self.client_id, keep=True)
            self.dropped += [hold] if hold.buffer else []
        for task_id, info in self.infos.items():
            if task_id in self.holds:
                self.holds[task_id].follow(self.client_id, info)
                continue
            had = self.before.get(task_id)
            fits = (
                had is not None and had.incarnation >= info.sequence_incarnation
            )  # else its elements are numbered anew
            self.holds[task_id] = SimHold(info, tuple((part.first, part.end) for part in had.consumed) if fits else ())

    def holdings(self) -> tuple[TaskHolding, ...]:
        """Take nothing more of halted tasks; what it has of each."""
        halted = [info for info in self.infos.values() if info.unassigned]
        self.follow()
        return tuple(self.holds[info.task_id].holding(info.incarnation) for info in halted)

    def consumed_holdings(self, *, leaving: bool = False) -> tuple[TaskHolding, ...]:
        """What it consumed of each task, and what it has of those that are gone, or may be."""
        consumed = []
        for hold in self.holds.values():
            holding = hold.holding(hold.info.incarnation)
            held = holding.held if leaving and hold.info.unassigned else ()
            consumed.append(replace(holding, received=hold.consumed, held=held))
        dropped = [replace(hold.holding(hold.info.incarnation), consumed=()) for hold in self.dropped if hold.buffer]
        return (*consumed, *dropped)

    def receive(self, most: int) -> None:
        """Take in what is on its way."""
        for hold in self.holds.values():
            while hold.wire and most > 0:
                item = hold.wire.popleft()
                if item is None:
                    hold.ended = True
                    continue
                hold.buffer.append((hold.info.sequence_incarnation, *item))
                hold.received += 1
                hold.ended = False
                most -= 1

    @property
    def at_end(self) -> bool:
        """Whether all tasks that it knows of have ended for it, and it has nothing left."""
        holds = self.holds.values()
        there = all(hold.ended and not hold.buffer for hold in holds) and not any(hold.buffer for hold in self.dropped)
        return (bool(holds) or self.finished) and there

    def ended_tasks(self) -> tuple[EndedTask, ...]:
        """The tasks that told it of their end."""
        return tuple(
            EndedTask(task_id=task_id, incarnation=hold.info.incarnation, received=hold.received)
            for task_id, hold in self.holds.items()
            if hold.ended
        )

    def acknowledge(self) -> None:
        """Tell workers what was consumed."""
        for hold in self.holds.values():
            if hold.link is not None:
                hold.link.acknowledge(self.client_id, hold.consumed)
                if not hold.link.stopped:
                    hold.told = hold.consumed
