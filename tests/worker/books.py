"""A window, and books that say of each single element who was sent it and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import cast

from dsnb.transfer.protocol import FIRST_GRANT, FrameSlice
from dsnb.wire.messages import CachePolicy
from dsnb.worker.shared_log import SharedLog


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
    owners: dict[int, str] = field(default_factory=dict)
    """Whom those are for alone that did not arrive."""
    consumed: set[int] = field(default_factory=set)
    hits: int = 0
    skipped: int = 0
    late: int = 0
    """Skipped elements that were evicted before it came."""
    passed: int = 0
    seen_consumed: int = 0

    def returned_for(self, client: str) -> set[int]:
        return {index for index in self.returned if self.owners.get(index, client) == client}


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


class Disk:
    """Where frames are spilled, with room for so many bytes; it knows what is there."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.frames: dict[int, BookedFrame] = {}
        self.nbytes = 0
        self.was_full = False

    def put(self, frame: BookedFrame) -> int | None:
        assert frame.first not in self.frames, "a frame was spilled twice"
        if not self.has_room():
            return None
        self.frames[frame.first] = frame
        self.nbytes += frame.charge
        return frame.first

    def get(self, place: int) -> BookedFrame:
        return self.frames[place]

    def drop(self, place: int) -> None:
        self.nbytes -= self.frames.pop(place).charge

    def has_room(self) -> bool:
        self.was_full |= self.nbytes >= self.limit
        return self.nbytes < self.limit


class Books:
    """Drives a window and compares it with what is written here.

    After each call everything is looked at; or, with `stepwise`, only the trainer that it was about, by which a call
    costs no more the longer the schedule is. Who drives it so calls `check` after each step.
    """

    def __init__(
        self, *, capacity: int, ahead: int, keep: bool, disk: int = 0, whole: bool = False, stepwise: bool = False
    ) -> None:
        self.stepwise = stepwise
        self.disk = Disk(disk)
        self.window = SharedLog(capacity=capacity, read_ahead_bytes=ahead, keep=keep, keep_all=whole, store=self.disk)
        self.whole = whole
        self.manners: dict[str, CachePolicy] = {}
        self.moved_on: set[str] = set()
        """Trainers that may miss something: they skip, or were dismissed or moved on at some time."""
        self.unread: set[str] = set()
        """Trainers that are awaited, and of whom nobody has come yet."""
        self.frames: list[BookedFrame] = []
        self.trainers: dict[str, BookedTrainer] = {}
        self.readers: dict[str, BookedReader] = {}
        self.frame_at: list[BookedFrame] = []
        """The frame of each element."""
        self.unconsumed: dict[int, int] = {}
        """Without the cache: how many elements of each frame nobody has consumed, by its first; those of them alone."""
        self.unconsumed_bytes = 0
        self.largest = 0
        self.hits: set[tuple[str, int]] = set()
        """Elements that were in the window, asked for by another trainer, when this trainer was sent them."""
        self.sound = True
        """Whether all that must hold did hold after the last call."""
        self.all_stays = whole
        """Whether every element is kept, because a trainer that wants all of them may still join."""

    # ---- the producer

    def append(self, count: int, nbytes: int, *, failed: bool = False) -> None:
        frame = BookedFrame(len(self.frame_at), count, max(nbytes, count), failed)
        needed_from, tail = self._needed_from(), self.window.tail
        beyond = takewhile(lambda f: f.first + f.count > needed_from, reversed(self.frames))
        unsent = sum(frame.charge for frame in beyond)
        self.window.append(frame, count, nbytes, failed)
        self.frames.append(frame)
        self.frame_at += [frame] * count
        if not self.window.keep:
            self.unconsumed[frame.first] = count
            self.unconsumed_bytes += frame.charge
        else:
            # Room is made by letting go of what somebody was sent; there is never more than the budget, or than that
            # which nobody was sent, to the frame, together with the new one.
            most = max(self.window.capacity, unsent + frame.charge)
            if self.all_stays or any(trainer.needs_retention for trainer in self.window.trainers.values()):
                # There was room for one like those before; what it is larger by comes on top, once.
                most += max(0, frame.charge - min(self.largest, self.window.capacity // 8))
            self.largest = max(self.largest, frame.charge)
            assert self.window.nbytes <= most, "more is in memory than the capacity and what nobody was sent"
            assert self.window.tail <= max(tail, needed_from), "what the furthest trainer gave back was evicted"
        self._called()

    def close_to_new_trainers(self, joined: list[tuple[str, str]]) -> None:
        self.window.close_to_new_trainers(joined)
        if self.all_stays:
            for client, trainer in joined:
                if client not in self.readers and trainer not in self.trainers:
                    self.trainers[trainer] = BookedTrainer(0, self.window.head, 0)
                    self.unread.add(trainer)
        self.all_stays = False
        self._called()

    def finish(self) -> None:
        self.window.finish()
        self._called()

    # ---- readers

    def attach(self, client: str, trainer: str, received: int = 0) -> BookedReader:
        manner = self.manners.get(trainer, CachePolicy())
        awaited = {client for there in self.window.trainers.values() for client in there.awaited}
        self.window.attach(client, trainer, received, received, manner)
        if manner.on_lag not in {"wait", "spill"}:
            self.moved_on.add(trainer)
        if trainer not in self.trainers:
            floor = self.window.tail if manner.on_lag not in {"wait", "spill"} else self.window.base
            newest = manner.start == "newest"
            begin = self.window.head if newest else floor
            # Nothing had been evicted when it joined: what was evicted since then counts as skipped.
            misses = self.whole and not newest and manner.on_lag in {"wait", "spill"}
            start = 0 if misses else begin
            self.trainers[trainer] = BookedTrainer(
                start, self.window.head, begin, skipped=begin - start, late=begin - start
            )
        elif trainer in self.unread and manner.start == "newest" and client in awaited:
            self.trainers[trainer].start = self.trainers[trainer].next = self.window.head
        self.unread.discard(trainer)
        reader = self.readers[client] = BookedReader(client, trainer, received, received, received, received)
        self._called(reader)
        return reader

    def reattach(self, reader: BookedReader, received: int, consumed: int) -> None:
        self.window.attach(
            reader.client, reader.trainer, received, consumed, self.manners.get(reader.trainer, CachePolicy())
        )
        self._consume(reader, consumed)
        kept = received - consumed
        self._return(reader, reader.outstanding[kept:])
        self.trainers[reader.trainer].owners.update(dict.fromkeys(reader.outstanding[kept:], reader.client))
        del reader.outstanding[kept:]
        reader.sent = reader.granted = received
        self._called(reader)

    def credit(self, reader: BookedReader, granted: int, consumed: int, max_bytes: int = 1 << 30) -> None:
        self.window.credit(reader.client, granted, consumed, max_bytes)
        reader.granted = max(reader.granted, granted)
        reader.max_bytes = min(max_bytes, self.window.capacity // 4) if self.window.keep else max_bytes
        self._consume(reader, consumed)
        self._called(reader)

    def recall(self, reader: BookedReader) -> int:
        left = self.window.recall(reader.client)
        reader.granted = reader.sent
        self._called(reader)
        return left

    def leave(self, reader: BookedReader, consumed: int | None) -> None:
        self.window.leave(reader.client, consumed)
        if consumed is not None:
            self._consume(reader, consumed)
        self._return(reader, reader.outstanding)
        trainer = self.trainers[reader.trainer]
        trainer.owners = {index: owner for index, owner in trainer.owners.items() if owner != reader.client}
        del self.readers[reader.client]
        self._called(reader)

    def take(self, reader: BookedReader) -> FrameSlice | None:
        """Take what is next for a reader, and check that it is what should be next."""
        self.sound = False
        trainer, frontier = self.trainers[reader.trainer], self.window.frontier
        held = self.window.readers[reader.client].buffered_bytes
        may = reader.sent < reader.granted and (not reader.outstanding or held < reader.max_bytes)
        may = may and (self.window.keep or len(reader.outstanding) < self._fair_share(reader))
        taken = self.window.take(reader.client)
        if not may:
            assert taken is None, "something was sent without credit"
            self._called(reader)
            return None
        self._skip_evicted(reader)
        if taken is None:
            assert not trainer.returned_for(reader.client), "something came back and was not sent again"
            assert trainer.next == self.window.head, "there was something to send"
        else:
            self._book(reader, trainer, taken, frontier)
        self._called(reader)
        return taken

    def _fair_share(self, reader: BookedReader) -> int:
        """How many elements a reader may hold, where readers share the elements."""
        share = FIRST_GRANT + reader.consumed
        readers = [other for other in self.readers.values() if other.trainer == reader.trainer]
        if self.window.finished and len(readers) > 1:
            trainer = self.trainers[reader.trainer]
            left = self.window.head - self._ahead(reader.trainer) + len(trainer.returned)
            share = min(share, max(1, (left + len(reader.outstanding)) // 2))
        return share

    def read_to_the_end(self, client: str, trainer: str) -> None:
        """Let a new reader consume all that is left for its trainer."""
        reader = self.attach(client, trainer)
        self.credit(reader, 1 << 20, 0)
        while self.take(reader) is not None:
            self.credit(reader, 1 << 20, reader.sent)
        assert self.window.at_end(client), "the end was reached and not told"
        self.leave(reader, reader.sent)

    # ---- the books

    def tidy(self, now: float) -> None:
        self.window.expire(now)
        for name, trainer in self.trainers.items():
            alive = len(trainer.consumed) > trainer.seen_consumed
            trainer.seen_consumed = len(trainer.consumed)
            assert not (alive and self.window.trainers[name].exempt), "one that reads again is still moved on"
        self.moved_on |= {name for name, there in self.window.trainers.items() if there.exempt or there.removed}
        self._called()

    def dismiss(self, trainer: str) -> None:
        self.window.remove_trainer(trainer)
        self.moved_on.add(trainer)
        self._called()

    def _needed_from(self) -> int:
        """The first element that the furthest trainer is still to be sent: what its readers gave back comes first."""
        positions = [
            trainer.next if self.window.trainers[name].removed else min({trainer.next, *trainer.returned})
            for name, trainer in self.trainers.items()
        ]
        return min(self.window.frontier, max(positions, default=self.window.frontier))

    def _floor(self, name: str) -> int:
        """The first element that there is for a trainer."""
        skips = (
            self.manners.get(name, CachePolicy()).on_lag not in {"wait", "spill"} or self.window.trainers[name].exempt
        )
        return self.window.tail if skips else self.window.base

    def _skip_evicted(self, reader: BookedReader) -> None:
        """Count what a trainer missed, and pass the errors that were there before it came."""
        name = reader.trainer
        trainer, tail = self.trainers[name], self._floor(name)
        gone = {index for index in trainer.returned if index < tail}
        # What came back is looked at first: while some of it is left, nobody looks at what else is gone.
        trainer.skipped += len(gone)
        trainer.returned -= gone
        if trainer.returned_for(reader.client):
            return
        while self._is_earlier_error(trainer, trainer.next):  # whether it is still there or not
            trainer.next += 1
            trainer.passed += 1
        trainer.skipped += max(0, tail - trainer.next)
        before = max(tail, trainer.next)
        trainer.next = self._ahead(name)
        trainer.passed += trainer.next - before

    def _book(self, reader: BookedReader, trainer: BookedTrainer, taken: FrameSlice, frontier: int) -> None:
        frame = self.frame_at[taken.index]
        indices = range(taken.index, taken.index + taken.count)
        assert cast("object", taken.frame) is frame, "the elements are not in that frame"
        assert taken.start == taken.index - frame.first, "the elements are not at that place in the frame"
        assert 0 < taken.count <= frame.count - taken.start, "there are not so many in the frame"
        assert taken.count <= reader.granted - reader.sent, "more was sent than was granted"
        if returned := trainer.returned_for(reader.client):
            assert taken.index == min(returned), "not what came back first"
            assert returned.issuperset(indices), "an element was sent to two readers, or to another than its owner"
            trainer.returned -= set(indices)
            trainer.owners = {index: owner for index, owner in trainer.owners.items() if index not in indices}
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
        before = len(trainer.consumed)
        trainer.consumed.update(used)
        assert len(trainer.consumed) == before + len(used), "an element was consumed twice"
        if not self.window.keep:
            self._let_go(used)
        trainer.hits += sum((reader.trainer, index) in self.hits for index in used)

    def _let_go(self, used: list[int]) -> None:
        """Without the cache a frame goes with the last of its elements that is consumed."""
        for index in used:
            frame = self.frame_at[index]
            self.unconsumed[frame.first] -= 1
            if not self.unconsumed[frame.first]:
                del self.unconsumed[frame.first]
                self.unconsumed_bytes -= frame.charge

    def _return(self, reader: BookedReader, indices: list[int]) -> None:
        self.trainers[reader.trainer].returned |= set(indices)

    # ---- what must hold

    def _called(self, reader: BookedReader | None = None) -> None:
        """See to what must hold after a call, which may have been a reader's."""
        self.sound = False
        if not self.stepwise:
            self.check()
            return
        assert self.window.tail <= self.window.frontier <= self.window.head, "what nobody was sent is gone"
        self._check_beginning()
        if reader is not None:
            self._check_trainer(reader.trainer)
            if reader.client in self.readers:  # or it has just left
                self._check_reader(reader)
        if not self.window.keep:
            self._check_memory()
        self.sound = True

    def check(self) -> None:
        """Everything that must hold between any two calls."""
        self.sound = False
        self.window.validate()
        assert self.window.tail <= self.window.frontier <= self.window.head, "what nobody was sent is gone"
        holders = [self.window.offset(name) for name, there in self.window.trainers.items() if there.needs_retention]
        held = min(holders, default=self.window.head)
        there = self.window.trainers.values()
        deserted = self.window.keep and len(there) > 0 and all(trainer.removed for trainer in there)
        full = min(self._needed_from(), held) < self.window.head
        assert self.window.wants_more() or self.window.finished or full or deserted or self.window.closing
        assert self.all_stays or not self.window.closing, "it asks again for what it may do"
        assert not (deserted and self.window.wants_more()), "what a trainer comes back for is pushed out by more"
        self._check_disk(held)
        self._check_beginning()
        for name in self.trainers:
            self._check_trainer(name)
        for reader in self.readers.values():
            self._check_reader(reader)
        if not self.window.keep:
            self._check_memory()
        self.sound = True

    def _check_disk(self, held: int) -> None:
        on_disk = self.window.frames.entries[: self.window.frames.on_disk]
        assert [entry.first for entry in on_disk] == sorted(self.disk.frames), "the disk has what nobody knows of"
        if not self.all_stays:
            assert not on_disk or held < on_disk[0].end, "the disk has what nobody needs"

    def _check_beginning(self) -> None:
        """Nothing of finite data is evicted while a new trainer that wants all of it may still join."""
        assert not self.all_stays or self.window.base == 0, "the beginning was given up too early"

    def _check_reader(self, reader: BookedReader) -> None:
        there, trainer = self.window.readers[reader.client], self.trainers[reader.trainer]
        assert (there.sent, there.consumed, there.granted) == (reader.sent, reader.consumed, reader.granted)
        ended = (
            self.window.finished
            and not trainer.returned_for(reader.client)
            and self._ahead(reader.trainer) == self.window.head
        )
        assert self.window.at_end(reader.client) is ended, "the end was told too early or not at all"

    def _check_trainer(self, name: str) -> None:
        trainer, there = self.trainers[name], self.window.trainers[name]
        outstanding = [
            index for reader in self.readers.values() if reader.trainer == name for index in reader.outstanding
        ]
        parts = len(trainer.consumed) + len(outstanding) + len(trainer.returned) + trainer.skipped + trainer.passed
        assert parts == trainer.next - trainer.start, "consumed, sent, returned, skipped and passed do not make up all"
        assert there.consumed == len(trainer.consumed)
        assert there.hits == trainer.hits
        assert there.misses == len(trainer.consumed) - trainer.hits
        assert there.skipped == trainer.skipped
        assert name in self.moved_on or trainer.skipped == trainer.late, (
            "a trainer that asked to lose nothing lost something"
        )
        place = min([*outstanding, *trainer.returned, self._ahead(name)])
        assert self.window.offset(name) == place, "another place than its own"

    def _ahead(self, name: str) -> int:
        """What a trainer would get next of what it was not sent: there for it, past errors from before its time."""
        trainer = self.trainers[name]
        at = max(trainer.next, self._floor(name))
        while self._is_earlier_error(trainer, at):
            at += 1
        return at

    def _is_earlier_error(self, trainer: BookedTrainer, index: int) -> bool:
        """Whether an error is there that was produced before a trainer came."""
        return index < min(self.window.head, trainer.since) and self.frame_at[index].failed

    def _check_memory(self) -> None:
        """Without the cache a frame is in memory until all of it is consumed, and no longer."""
        assert self.window.nbytes == self.unconsumed_bytes, "other bytes than those of unconsumed frames"
        ended = self.window.finished and not self.unconsumed
        assert self.window.done is ended, "done before all is consumed, or not then"

    def check_everything_is_accounted_for(self) -> None:
        """When all has been read: no element twice, none without a reason; nothing in memory that nobody can want."""
        for trainer in self.trainers.values():
            assert trainer.next == self.window.head
            assert len(trainer.consumed) + trainer.skipped + trainer.passed == self.window.head - trainer.start
        if not self.window.keep:
            assert sorted(self.trainers[""].consumed) == list(range(self.window.head)), "an element was lost"
            assert self.window.nbytes == 0
            assert self.window.done
