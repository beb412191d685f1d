"""What became of each element of each pass: books that no dispatcher, worker or client sees.

An element of a DYNAMIC pass is a split of its first provider; of a pass over shards, a place in a shard; else a place
in the whole of one task. The books learn which splits were given from the dispatcher's records, what was made from
workers, and what was consumed from clients. They know all of it at once, and so can tell what nobody else can: whether
something was consumed twice, was left out, or is counted as lost though it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dsnb.wire.messages import IndexRange, TaskPosition, TrainerPosition
from dsnb.wire.ranges import Ranges
from tests.dispatcher.actors import Pipeline, SimClient, Value

Key = tuple[str, Value]
"""An element of a pass: the task or shard that it is of, where that matters, and its value there."""


@dataclass(slots=True)
class TaskBook:
    """One task's sequence of elements."""

    task_id: str
    owner: str
    """What its values are of, in the keys of its elements."""
    sequence: int = 1
    worker: str = ""
    shard: int = -1
    values: list[Value] = field(default_factory=list)
    """What each element is that was made."""
    splits: list[Value] = field(default_factory=list)
    """The splits of the first provider that it was given, in order."""
    left_out: int = 0
    """Of these, the first that a pass had before it was resumed."""
    known: dict[str, Ranges] = field(default_factory=dict)
    """What the dispatcher knows for good to be consumed, by trainer; nobody needs to tell it again."""
    told: dict[str, Ranges] = field(default_factory=dict)
    """What it knows as long as it lives."""

    def note_known(self, positions: Iterable[TrainerPosition], *, for_good: bool) -> None:
        """Learn what the dispatcher was told."""
        table = self.known if for_good else self.told
        for position in positions:
            ranges = table.setdefault(position.trainer_id, Ranges())
            ranges.add(0, position.offset)
            ranges.update((part.first, part.end) for part in position.consumed)

    def is_known(self, trainer: str, index: int) -> bool:
        """Whether the dispatcher knows that an element was consumed."""
        return any(index in table[trainer] for table in (self.known, self.told) if trainer in table)

    def key(self, index: int) -> Key:
        return self.owner, self.values[index]


@dataclass(slots=True)
class PassBook:
    """One pass of a job: which making of it, what was given to whom, and what was consumed."""

    job: str
    number: int
    mode: str
    cached: bool
    pipeline: Pipeline
    rounds: bool = False
    """Whether it is read in rounds, of which these books know nothing."""
    shards: int = 0
    """Into how many shards it is divided; 0 if it is not."""
    given: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    """Which task has each split, by provider and repetition."""
    tasks: dict[str, TaskBook] = field(default_factory=dict)
    """The present sequence of each task that there is."""
    sequences: dict[tuple[str, int], TaskBook] = field(default_factory=dict)
    """All sequences, those of tasks that were dropped or began again too."""
    consumed: dict[tuple[str, Key], str] = field(default_factory=dict)
    """Who consumed each element, by trainer."""
    twice: set[tuple[str, Key]] = field(default_factory=set)
    uncertain: set[tuple[str, Key]] = field(default_factory=set)
    """Elements that were consumed by a client that can tell nobody, and nobody else knows."""
    lost: set[tuple[str, Key]] = field(default_factory=set)
    """Elements of which readers were told that they will not come."""
    vanished: set[tuple[str, Key]] = field(default_factory=set)
    """Elements that a client had and did not consume when it went away."""
    early: bool = False
    """Whether a pipeline came to its end before it had read all."""
    starts: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Where each trainer began in each sequence: what was before is gone."""
    excused: set[str] = field(default_factory=set)
    """Trainers that nobody waits for: their clients died."""
    trainers: set[str] = field(default_factory=set)
    """All that ever read it."""
    whole: set[str] = field(default_factory=set)
    """Those of them that want all of it."""

    @property
    def split(self) -> bool:
        """Whether its elements are splits that tasks are given."""
        return self.mode == "DYNAMIC" and bool(self.pipeline.counts)

    def begin_sequence(self, task_id: str, worker: str, sequence: int, shard: int) -> TaskBook:
        """Open the book of a task that is new, or begins again."""
        owner = "" if self.split else f"shard {shard}" if shard >= 0 else f"{task_id}/{sequence}"
        book = TaskBook(task_id, owner, sequence, worker, shard)
        self.tasks[task_id] = self.sequences[task_id, sequence] = book
        return book

    def expected(self, book: TaskBook) -> list[Key]:
        """The elements of a task: those of all splits that it was given, or all that it made."""
        values = book.splits[book.left_out :] if self.split else book.values
        return [(book.owner, value) for value in values]

    def owed(self, book: TaskBook, trainer: str, clients: Iterable[SimClient]) -> set[tuple[str, Key]]:
        """What a trainer would yet get of a task, if it went on to its end; without one, to where others are.

        What one of these clients has is not owed any more.
        """
        keys, held = self.expected(book), self.held(clients)
        if self.cached and self.pipeline.length is None:
            had = {key for _, key in (*self.consumed, *held)}
            keys = keys[: max([at for at, key in enumerate(keys) if key in had], default=-1) + 1]
        else:
            keys = self.promised(book)
        start = self.starts.get((trainer, book.task_id, book.sequence), 0)
        return {(trainer, key) for key in keys[start:]} - self.consumed.keys() - held

    def promised(self, book: TaskBook) -> list[Key]:
        """The elements of a task, also those that it has yet to make, as far as they are known."""
        if self.split or not (self.mode == "OFF" or self.shards) or self.pipeline.length is None:
            return self.expected(book)
        return [(book.owner, value) for value in range(book.left_out, self.size(book, self.pipeline.length))]

    def size(self, book: TaskBook, length: int) -> int:
        """How many elements a task makes of a whole of this length: all, or each n-th from its shard's number on."""
        return -((book.shard - length) // self.shards) if self.shards else length

    def needing(self, readers: Iterable[SimClient]) -> set[str]:
        """The trainers of these readers, and those that the pass waits for; without those that nobody waits for."""
        away = self.whole if self.pipeline.length is not None else set()
        return ({client.trainer for client in readers} | away) - self.excused

    # ---- what is learnt

    def come(self, trainer: str, *, whole: bool) -> None:
        """Note a reader; a trainer that is new gets nothing of tasks that are gone, and may not want all then."""
        if self.cached and whole:
            self.whole.add(trainer)
        if not self.cached or trainer in self.trainers:
            return
        self.trainers.add(trainer)
        for (task_id, sequence), book in self.sequences.items():
            if self.tasks.get(task_id) is not book and book.values:
                assert not whole, "a trainer that wants all of a pass came to one of which a task is gone"
                self.starts[trainer, task_id, sequence] = len(book.values)

    def give(self, task_id: str, provider: int, repetition: int, splits: Iterable[int]) -> None:
        """Note a run of splits; nobody else may have them."""
        table = self.given.setdefault((provider, repetition), {})
        for split in splits:
            owner = table.get(split, "before")
            assert owner == "before", f"the split {split} was given to {owner} and to {task_id}"
            table[split] = task_id
            if provider == 0:
                self.tasks[task_id].splits.append((repetition, split))

    def check_begin(self, book: TaskBook, begin: TaskPosition, readers: Iterable[SimClient]) -> None:
        """A task is taken over: nothing that somebody needs may lie before where it begins."""
        for trainer in self.needing(client for client in readers if client.joined.complete_only or not self.cached):
            start = self.starts.get((trainer, book.task_id, book.sequence), 0)
            for index in range(start, min(begin.first_index, len(book.values))):
                there = (trainer, book.key(index)) in self.consumed
                assert there, f"element {index} of task {book.task_id} was left out, and {trainer!r} lacks it"
        for position in begin.trainers:
            start = self.starts.get((position.trainer_id, book.task_id, book.sequence), 0)
            for part in (IndexRange(first=start, end=position.offset), *position.consumed):
                for index in range(part.first, part.end):
                    there = (position.trainer_id, book.key(index)) in self.consumed
                    assert there, f"element {index} of task {book.task_id} counts as consumed, and is not"

    def made(self, book: TaskBook, first: int, values: Iterable[Value]) -> None:
        """Note elements that a worker made: the same as any worker before it made there."""
        for index, value in enumerate(values, start=first):
            if index == len(book.values):
                book.values.append(value)
            assert book.values[index] == value, (
                f"element {index} of task {book.task_id} is {value}, and was {book.values[index]}"
            )
            if self.split:
                wanted = book.splits[book.left_out + index]
                assert value == wanted, f"element {index} of task {book.task_id} is {value}, and should be {wanted}"

    def consume(self, client: SimClient, task_id: str, sequence: int, index: int, value: Value) -> None:
        """Note that a user had an element."""
        book = self.sequences[task_id, sequence]
        assert book.values[index] == value, f"{value} came as element {index}, which is {book.values[index]}"
        key = client.trainer, book.key(index)
        if key in self.consumed:
            assert key in self.uncertain, f"{key} was consumed by {self.consumed[key]} and by {client.client_id}"
            self.twice.add(key)
        self.consumed[key] = client.client_id

    # ---- what is left

    def held(self, clients: Iterable[SimClient]) -> set[tuple[str, Key]]:
        """What clients have, or have on their way, and did not consume."""
        found = set()
        for client in clients:
            for hold in (*client.dropped, *client.holds.values()):
                there = [(sequence, index) for sequence, index, _ in hold.buffer]
                there += [(hold.info.sequence_incarnation, item[0]) for item in hold.wire if item is not None]
                for sequence, index in there:
                    found.add((client.trainer, self.sequences[hold.info.task_id, sequence].key(index)))
        return found

    def missing(self, books: Iterable[TaskBook], trainer: str = "") -> set[tuple[str, Key]]:
        """What a trainer has not consumed of these sequences."""
        start = {(task, sequence): at for (name, task, sequence), at in self.starts.items() if name == trainer}
        return {
            (trainer, key)
            for book in books
            for key in self.expected(book)[start.get((book.task_id, book.sequence), 0) :]
            if (trainer, key) not in self.consumed
        }

    def unaccounted(self, trainer: str, clients: Iterable[SimClient]) -> set[tuple[str, Key]]:
        """What a trainer has not consumed, and none of these clients has, and nobody was told to be lost."""
        missing = self.missing(self.sequences.values(), trainer)
        if missing:
            past = [book for book in self.sequences.values() if self.tasks.get(book.task_id) is not book]
            missing -= self.lost | ({(trainer, key) for book in past for key in self.expected(book)} & self.vanished)
        return missing - self.held(clients) if missing else missing

    def check_all_given(self) -> None:
        """At the end of a pass no split is left over."""
        for repetition in range(self.pipeline.repetitions if self.split and not self.early else 0):
            given = self.given.get((0, repetition), {})
            assert len(given) == self.pipeline.counts[0], "the pass is over, and nobody was given some of its splits"
