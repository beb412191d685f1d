"""A window, and books that say of each single element who was sent it and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsnb.worker.window import Taken, Window


@dataclass(slots=True)
class BookedFrame:
    """A frame as it was produced; it stands for itself in the window, so what is taken can be recognised."""

    first: int
    count: int
    charge: int
    failed: bool


@dataclass(slots=True)
class BookedTrainer:
    """`next` is the first element that this trainer was not sent and has not passed."""

    start: int
    since: int
    next: int
    returned: set[int] = field(default_factory=set)
    consumed: list[int] = field(default_factory=list)
    hits: int = 0
    skipped: int = 0
    passed: int = 0


@dataclass(slots=True)
class BookedReader:
    """`outstanding` are the elements that were sent and not consumed, in the order of sending."""

    client: str
    trainer: str
    base: int
    sent: int
    consumed: int
    granted: int
    max_bytes: int = 1 << 30
    outstanding: list[int] = field(default_factory=list)


class Books:
    """Drives a window and compares it, after each call, with what is written here."""

    def __init__(self, *, capacity: int, ahead: int, keep: bool) -> None:
        self.window = Window(capacity=capacity, ahead=ahead, keep=keep)
        self.frames: list[BookedFrame] = []
        self.trainers: dict[str, BookedTrainer] = {}
        self.readers: dict[str, BookedReader] = {}
        self.frame_at: list[BookedFrame] = []
        """The frame of each element."""
        self.hits: set[tuple[str, int]] = set()
        """Elements that were in the window, asked for by another trainer, when this trainer was sent them."""
        self.sound = True
        """Whether all that must hold did hold after the last call."""

    # ---- the producer

    def append(self, count: int, nbytes: int, *, failed: bool = False) -> None:
        frame = BookedFrame(len(self.frame_at), count, max(nbytes, count), failed)
        unsent = [f for f in self.frames if f.first + f.count > self.window.frontier]
        self.window.append(frame, count, nbytes, failed)
        self.frames.append(frame)
        self.frame_at += [frame] * count
        if self.window.keep:
            # Room is made by letting go of what somebody was sent; there is never more than the budget, or than that
            # which nobody was sent, to the frame, together with the new one.
            most = max(self.window.capacity, sum(f.charge for f in unsent) + frame.charge)
            assert self.window.nbytes <= most, "more is in memory than the capacity and what nobody was sent"
        self.check()

    def finish(self) -> None:
        self.window.finish()
        self.check()

    # ---- readers

    def attach(self, client: str, trainer: str, received: int = 0) -> BookedReader:
        self.window.attach(client, trainer, received, received)
        if trainer not in self.trainers:
            self.trainers[trainer] = BookedTrainer(self.window.tail, self.window.head, self.window.tail)
        reader = self.readers[client] = BookedReader(client, trainer, received, received, received, received)
        self.check()
        return reader

    def reattach(self, reader: BookedReader, received: int, consumed: int) -> None:
        self.window.attach(reader.client, reader.trainer, received, consumed)
        self._consume(reader, consumed)
        kept = received - consumed
        self._return(reader, reader.outstanding[kept:])
        del reader.outstanding[kept:]
        reader.sent = reader.granted = received
        self.check()

    def credit(self, reader: BookedReader, granted: int, consumed: int, max_bytes: int = 1 << 30) -> None:
        self.window.credit(reader.client, granted, consumed, max_bytes)
        reader.granted = max(reader.granted, granted)
        reader.max_bytes = min(max_bytes, self.window.capacity // 4) if self.window.keep else max_bytes
        self._consume(reader, consumed)
        self.check()

    def recall(self, reader: BookedReader) -> int:
        left = self.window.recall(reader.client)
        reader.granted = reader.sent
        self.check()
        return left

    def leave(self, reader: BookedReader, consumed: int | None) -> None:
        self.window.leave(reader.client, consumed)
        if consumed is not None:
            self._consume(reader, consumed)
        self._return(reader, reader.outstanding)
        del self.readers[reader.client]
        self.check()

    def take(self, reader: BookedReader) -> Taken | None:
        """Take what is next for a reader, and check that it is what should be next."""
        self.sound = False
        trainer, frontier = self.trainers[reader.trainer], self.window.frontier
        held = self.window.readers[reader.client].nbytes
        may = reader.sent < reader.granted and (not reader.outstanding or held < reader.max_bytes)
        taken = self.window.take(reader.client)
        if not may:
            assert taken is None, "something was sent without credit"
            self.check()
            return None
        self._skip_evicted(trainer)
        if taken is None:
            assert not trainer.returned, "something came back and was not sent again"
            assert trainer.next == self.window.head, "there was something to send"
        else:
            self._book(reader, trainer, taken, frontier)
        self.check()
        return taken

    def read_to_the_end(self, client: str, trainer: str) -> None:
        """Let a new reader consume all that is left for its trainer."""
        reader = self.attach(client, trainer)
        self.credit(reader, 1 << 20, 0)
        while self.take(reader) is not None:
            self.credit(reader, 1 << 20, reader.sent)
        assert self.window.at_end(client), "the end was reached and not told"
        self.leave(reader, reader.sent)

    # ---- the books

    def _skip_evicted(self, trainer: BookedTrainer) -> None:
        """Count what a trainer missed, and pass the errors that were there before it came."""
        tail = self.window.tail
        gone = {index for index in trainer.returned if index < tail}
        # What came back is looked at first: while some of it is left, nobody looks at what else is gone.
        trainer.skipped += len(gone)
        trainer.returned -= gone
        if trainer.returned:
            return
        trainer.skipped += max(0, tail - trainer.next)
        before = max(tail, trainer.next)
        trainer.next = self._ahead(trainer)
        trainer.passed += trainer.next - before

    def _book(self, reader: BookedReader, trainer: BookedTrainer, taken: Taken, frontier: int) -> None:
        frame = self.frame_at[taken.index]
        indices = range(taken.index, taken.index + taken.count)
        assert taken.frame is frame, "the elements are not in that frame"
        assert taken.start == taken.index - frame.first, "the elements are not at that place in the frame"
        assert 0 < taken.count <= frame.count - taken.start, "there are not so many in the frame"
        assert taken.count <= reader.granted - reader.sent, "more was sent than was granted"
        if trainer.returned:
            assert taken.index == min(trainer.returned), "not what came back first"
            assert trainer.returned.issuperset(indices), "an element was sent to two readers"
            trainer.returned -= set(indices)
        else:
            assert taken.index == trainer.next, "an element was left out, or sent twice"
            trainer.next = indices.stop
            self.hits |= {(reader.trainer, index) for index in indices if index < frontier}
        reader.sent += taken.count
        reader.outstanding += indices

    def _consume(self, reader: BookedReader, consumed: int) -> None:
        trainer = self.trainers[reader.trainer]
        used = reader.outstanding[: max(0, consumed - reader.consumed)]
        del reader.outstanding[: len(used)]
        reader.consumed += len(used)
        trainer.consumed += used
        trainer.hits += sum((reader.trainer, index) in self.hits for index in used)

    def _return(self, reader: BookedReader, indices: list[int]) -> None:
        self.trainers[reader.trainer].returned |= set(indices)

    # ---- what must hold

    def check(self) -> None:
        """Everything that must hold between any two calls."""
        self.sound = False
        self.window.validate()
        assert self.window.tail <= self.window.frontier <= self.window.head, "what nobody was sent is gone"
        assert self.window.wants_more() or self.window.finished or self.window.frontier < self.window.head
        for name, trainer in self.trainers.items():
            self._check_trainer(name, trainer)
        for reader in self.readers.values():
            there, trainer = self.window.readers[reader.client], self.trainers[reader.trainer]
            assert (there.sent, there.consumed, there.granted) == (reader.sent, reader.consumed, reader.granted)
            ended = self.window.finished and not trainer.returned and self._ahead(trainer) == self.window.head
            assert self.window.at_end(reader.client) is ended, "the end was told too early or not at all"
        if not self.window.keep:
            self._check_memory()
        self.sound = True

    def _check_trainer(self, name: str, trainer: BookedTrainer) -> None:
        there = self.window.trainers[name]
        outstanding = [
            index for reader in self.readers.values() if reader.trainer == name for index in reader.outstanding
        ]
        parts = len(trainer.consumed) + len(outstanding) + len(trainer.returned) + trainer.skipped + trainer.passed
        assert parts == trainer.next - trainer.start, "consumed, sent, returned, skipped and passed do not make up all"
        assert there.consumed == len(trainer.consumed)
        assert there.hits == trainer.hits
        assert there.misses == len(trainer.consumed) - trainer.hits
        assert there.skipped == trainer.skipped
        place = min([*outstanding, *trainer.returned, self._ahead(trainer)])
        assert self.window.offset(name) == place, "another place than its own"

    def _ahead(self, trainer: BookedTrainer) -> int:
        """What a trainer would get next of what it has not been sent: in memory, past errors from before its time."""
        at = max(trainer.next, self.window.tail)
        while at < min(self.window.head, trainer.since) and self.frame_at[at].failed:
            at += 1
        return at

    def _check_memory(self) -> None:
        """Without the cache a frame is in memory until all of it is consumed, and no longer."""
        consumed = {index for trainer in self.trainers.values() for index in trainer.consumed}
        held = [f for f in self.frames if not consumed.issuperset(range(f.first, f.first + f.count))]
        assert self.window.nbytes == sum(frame.charge for frame in held), "other bytes than those of unconsumed frames"
        assert self.window.done is (self.window.finished and not held), "done before all is consumed, or not then"

    def check_everything_is_accounted_for(self) -> None:
        """When all has been read: no element twice, none without a reason; nothing in memory that nobody can want."""
        for trainer in self.trainers.values():
            assert len(trainer.consumed) == len(set(trainer.consumed)), "an element was consumed twice"
            assert trainer.next == self.window.head
            assert len(trainer.consumed) + trainer.skipped + trainer.passed == self.window.head - trainer.start
        if not self.window.keep:
            assert sorted(self.trainers[""].consumed) == list(range(self.window.head)), "an element was lost"
            assert self.window.nbytes == 0
            assert self.window.done
