"""What of a task's elements is in memory, who has had what, and what may be produced next. A pure core.

Theory of operation. A task produces one sequence of elements, numbered from 0. The window holds a contiguous piece of
it as frames: `base` up to `tail` on disk, if anybody asked for that, and `tail` up to `head` in memory. *Trainers* walk
along the sequence, each with its own place (`next`: the first element not sent to it). A trainer has any number of
*readers* (clients); they share the trainer's place, so among them each element goes out once. A reader gets what its
credit allows, and tells how much of it was consumed; what was sent and not consumed goes back to its trainer when the
reader leaves, and is sent to the next one first.

A job without the cross-trainer cache is the same thing with one trainer for all, and one difference, `keep`:

    keep = False   an element is let go when it has been consumed (first come, first served: all readers of a job share
                   one pass). Nothing is ever evicted, so the producer waits.
    keep = True    an element stays until its bytes are needed for a new one (the cross-trainer cache). What happens to
                   a trainer that would then miss it is the trainer's own choice, `on_lag`:

                   skip     it is moved on, and what it missed is counted as skipped
                   wait     the element stays, and the producer waits for the trainer
                   spill    the element is put on disk, and the trainer is served from there

A trainer that holds others up has to show life: when it has consumed nothing for `timeout_s` seconds, `tidy` lets it
go (if it has no reader) or moves it on like one that skips (until it reads again).

`frontier` is the furthest `next` of all trainers. Elements behind it are hits for whoever comes later; those beyond it
are misses for the trainer that goes there first. What lies beyond the frontier is never evicted.

The producer keeps a bounded number of bytes beyond the frontier and stops: nobody asked for more. The bound begins low
and is doubled, up to `ahead`, when a reader finds nothing although the producer had stopped at the bound. So neither
a reader that is slower than the pipeline nor one that is faster costs work and memory that do not help it.

An error in an element's place goes to the trainers that were there when it happened; later ones pass over it.

A window may take over from another one, whose worker died (`take_over`). It then begins at the first element that
somebody still needs. Its producer makes the same elements again: those that were consumed are released at once, those
that a reader holds count as sent to it, and the rest goes out as usual.

Readers that share a trainer's place share fairly (`_fair_share`): at first a reader holds at most `FIRST_GRANT`
elements, later that and as many as it has consumed. When all is produced, and others read as well, it holds no more
than half of what is left, so that the last elements do not all wait for one slow reader.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.messages import TrainerPosition
from dsnb.wire.ranges import Ranges, split_ranges
from dsnb.wire.transfer.protocol import FIRST_GRANT
from dsnb.worker import invariants
from dsnb.worker.ahead import ReadAhead
from dsnb.worker.frame_log import FrameLog, FrameStore, LogEntry
from dsnb.worker.gathering import StartBarrier
from dsnb.worker.places import ReaderState, Span, TakenSlice, TrainerCursor

_DEFAULT_POLICY = CachePolicy()
_POLICY_UNTIL_ATTACHED = CachePolicy(on_lag="wait")
"""How a trainer is treated that read an earlier incarnation, until it opens this one and says what it wants."""


class SharedLog:
    """The elements of one task that are in memory, and the places of its readers.

    Args:
        capacity: Most bytes in memory; with `keep` only, where room is made by evicting.
        read_ahead_bytes: Most bytes to produce beyond the furthest trainer.
        keep: Whether elements stay for other trainers after they were consumed.
        keep_all: Whether all elements stay, on disk, while a trainer is there that spills: the data have an end, and
            newcomers may want them from the beginning. Where the disk is full, the beginning is given up.
        store: Takes what trainers asked to be spilled; None where there is no place for it.
        first: The number of the first element that will be produced.
    """

    def __init__(
        self,
        *,
        capacity: int,
        read_ahead_bytes: int,
        keep: bool,
        keep_all: bool = False,
        store: FrameStore | None = None,
        first: int = 0,
    ) -> None:
        self.capacity = capacity
        self.keep = keep
        self.finished = False
        self.first = self.frontier = first
        self.short_by = 0
        """Elements that an earlier incarnation had, and the pipeline did not make again."""
        self.trainers: dict[str, TrainerCursor] = {}
        self.readers: dict[str, ReaderState] = {}
        self._keep_all = keep_all
        self._replay_end = first
        """Up to where elements were there in an earlier incarnation."""
        self.frames = FrameLog(store, first)
        self.start_barrier = StartBarrier()
        self._unsent_bytes = 0
        self._read_ahead = ReadAhead(read_ahead_bytes)

    @property
    def head(self) -> int:
        """The number of elements produced so far; the index of the next."""
        return self.frames.head

    @property
    def tail(self) -> int:
        """The first element in memory; `head` where there is none."""
        return self.frames.tail

    @property
    def base(self) -> int:
        """The first element that is kept, in memory or on disk; `head` where there is none."""
        return self.frames.base

    @property
    def nbytes(self) -> int:
        """Bytes in memory, encoded forms counted."""
        return self.frames.nbytes + self.frames.encoded_bytes

    def reserve_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Whether an encoded form of the frame that begins there may be kept; the next frame makes room for it."""
        has_room = self.nbytes + nbytes <= self.capacity or (not self.finished and self._can_evict_or_spill_first())
        return has_room and self.frames.add_encoded_bytes(index, nbytes)

    @property
    def evicted(self) -> int:
        """Elements that were let go to make room."""
        return self.frames.evicted

    @property
    def done(self) -> bool:
        """Whether everything was produced and, by all that are there, consumed."""
        if not self.keep:
            return self.finished and not self.frames.entries
        return self.finished and all(t.removed or self.offset(name) >= self.head for name, t in self.trainers.items())

    # ---- the producer's side

    def wants_more(self) -> bool:
        """Whether another frame should be produced now."""
        if (
            self.finished
            or (self._unsent_bytes >= self._bound and self.frontier < self.head)
            or self._all_trainers_removed
        ):
            return False
        if not self._blocked():
            return True
        self.make_room(self._next_frame_bytes)
        if self._blocked() and not self.frames.can_spill():
            self._keep_all = False
            self._drop_unneeded_from_disk()
            self.make_room(self._next_frame_bytes)
        return not self._blocked()

    @property
    def _all_trainers_removed(self) -> bool:
        """Whether all trainers have gone: more elements would push out those that one of them may come back for."""
        return self.keep and bool(self.trainers) and all(trainer.removed for trainer in self.trainers.values())

    def append(self, frame: Any, count: int, nbytes: int, failed: bool = False) -> None:
        """Add a frame at the head; evicts from the tail what is over the capacity and not beyond the frontier."""
        charge = max(nbytes, count)  # elements without bytes still take room
        self.make_room(charge)
        self.frames.add(frame, count, charge, failed)
        self._unsent_bytes += charge
        if self._replay_end > self.frames.head - count:
            self._skip_delivered_earlier(self.frames.head - count)
        if self._unsent_bytes >= self._bound:
            self._read_ahead.producer_stopped()

    def make_room(self, nbytes: int = 0) -> None:
        """Let go of what is over the capacity with so many bytes more, and not held."""
        while self.keep and self.nbytes + nbytes > self.capacity and self._evict_or_spill_first():
            pass

    def finish(self) -> None:
        """Learn that the sequence has come to its end."""
        self.finished = True
        self.short_by = max(0, self._replay_end - self.head)
        for trainer in self.trainers.values() if self.short_by else ():
            returned, trainer.requeued = trainer.requeued, []
            for span in returned:
                self._requeue(trainer, span)

    def _can_evict_or_spill_first(self) -> bool:
        """Whether the first frame in memory may leave it."""
        entry = self.frames.first_in_memory
        if not self.keep or entry is None or entry.end > self.frontier or self._is_needed_by(entry, "wait"):
            return False
        return not self._is_needed_by(entry, "spill") or self.frames.can_spill()

    @property
    def _next_frame_bytes(self) -> int:
        """Bytes that the next frame takes, by those before it; one that takes more comes on top, once."""
        return min(self.frames.largest, self.capacity // 8)

    def _evict_or_spill_first(self) -> bool:
        """Have the first frame in memory leave it, for the disk or for ever; False where it has to stay."""
        entry = self.frames.first_in_memory
        if entry is None or not self._can_evict_or_spill_first():
            return False
        if self._is_needed_by(entry, "spill"):
            return self.frames.spill_first()
        self.frames.drop_to_first_in_memory()  # nobody needs this one, so nobody needs those before it
        return True

    def _is_needed_by(self, entry: LogEntry, *on_lag: str) -> bool:
        """Whether a trainer that asked to be treated so needs an element of a frame."""
        return any(
            trainer.needs_retention
            and trainer.cache_policy.on_lag in on_lag
            and (self.offset(name) < entry.end or (self._keep_all and trainer.cache_policy.on_lag == "spill"))
            for name, trainer in self.trainers.items()
        )

    def _drop_unneeded_from_disk(self) -> None:
        """Let go of the frames on disk that nobody needs any more."""
        while self.frames.on_disk and not self._is_needed_by(self.frames.entries[0], "spill", "wait"):
            self.frames.drop_first()

    # ---- taking over from an earlier incarnation

    def take_over(self, positions: Iterable[TrainerPosition]) -> None:
        """Learn what the readers of an earlier incarnation had; only before the first frame."""
        for position in positions:
            trainer = TrainerCursor(next=self.first, joined_at_index=self.first, cache_policy=_POLICY_UNTIL_ATTACHED)
            trainer.consumed_ranges = Ranges((part.first, part.end) for part in position.consumed)
            trainer.consumed_ranges.add(self.first, position.offset)
            trainer.delivered_earlier = Ranges(trainer.consumed_ranges)
            self.trainers[position.trainer_id] = trainer
            for known in position.readers:
                spans = deque(Span(part.first, part.end - part.first, 0, 0) for part in known.held)
                held = sum(span.count for span in spans)
                trainer.delivered_earlier.update((part.first, part.end) for part in known.held)
                trainer.readers.add(known.client_id)
                self.readers[known.client_id] = ReaderState(
                    position.trainer_id,
                    granted=known.received,
                    sent=known.received,
                    taken=known.received,
                    consumed=known.received - held,
                    unconsumed=spans,
                )
            self._replay_end = max(self._replay_end, trainer.delivered_earlier.end)
        self.start_barrier.complete = self._replay_end > self.first  # those who start together have started

    def _skip_delivered_earlier(self, first: int) -> None:
        """See to elements that were just produced again: nobody asks for those that readers have had."""
        for trainer in self.trainers.values():
            trainer.next = self._next(trainer)
            self._advance(trainer.next)
            if not self.keep:
                for begin, end in trainer.consumed_ranges.within(first, self.frames.head):
                    self.frames.release(Span(begin, end - begin, 0, 0))

    # ---- the readers' side

    def attach(
        self,
        client: str,
        trainer: str,
        received: int = 0,
        consumed: int = 0,
        cache_policy: CachePolicy = _DEFAULT_POLICY,
    ) -> None:
        """Let a client read; one that comes back after its connection broke goes on behind what it received."""
        if client in self.readers:
            self._reattach(self.readers[client], received, consumed)
            self.trainers[trainer].cache_policy = cache_policy
            self.start_barrier.update(self.trainers.values(), cache_policy.start_together)
            return
        cursor = self.trainers.get(trainer)
        if cursor is None:
            cursor = self.trainers[trainer] = TrainerCursor(
                next=self._start_index(cache_policy), joined_at_index=self.head, cache_policy=cache_policy
            )
            self._advance(cursor.next)
        cursor.cache_policy, cursor.removed = cache_policy, False
        cursor.readers.add(client)
        self.start_barrier.update(self.trainers.values(), cache_policy.start_together)
        # A reader that comes with counters of its own was known to an earlier incarnation: it starts at nought here.
        self.readers[client] = ReaderState(trainer, sent=received, taken=received, consumed=received, granted=received)

    def _reattach(self, reader: ReaderState, received: int, consumed: int) -> None:
        self._consume(reader, consumed)
        reader.update_taken(reader.consumed)
        trainer = self.trainers[reader.trainer_id]
        for span in reader.reclaim_unreceived(received):
            self._requeue(trainer, span)

    def _requeue(self, trainer: TrainerCursor, span: Span) -> None:
        """Have a trainer's next reader get what this one did not consume; what was not made again is nobody's."""
        if self.finished and span.end > self.head:
            span = span.cut(max(0, self.head - span.first))
        if span.count:
            insort(trainer.requeued, span)

    def reconcile(self, trainer_id: str, consumed: Sequence[tuple[int, int]], unacked: int | None = None) -> int:
        """Learn what a client consumed that was given up and has come back.

        What was to be sent again is not, as far as it was not.

        Args:
            trainer_id: Its trainer.
            consumed: What it consumed, as ranges in the order of arrival.
            unacked: How many of these it had not told of when it was given up; None where that is not known here, and
                those are taken that nobody has told of yet.

        Returns:
            How many elements were sent again already, and so reached two clients.
        """
        trainer = self.trainers[trainer_id]
        waiting = Ranges((span.first, span.end) for span in trainer.requeued)
        repeated = 0
        if unacked is not None:
            consumed = split_ranges(consumed, max(0, sum(last - first for first, last in consumed) - unacked))[1]
        for first, last in consumed:
            end = max(first, min(last, self.head))
            acknowledged = sum(b - a for a, b in trainer.consumed_ranges.within(first, end)) if unacked is None else 0
            unknown = end - first - acknowledged
            still = [part for part in waiting.within(first, end) if part[0] < trainer.next]
            repeated += unknown - sum(b - a for a, b in still)
            for a, b in still:
                self._consume_requeued(trainer, a, b)
        return repeated

    def _consume_requeued(self, trainer: TrainerCursor, first: int, end: int) -> None:
        """Take elements out of those that wait for a trainer's next reader: they were consumed."""
        kept: list[Span] = []
        for span in trainer.requeued:
            before = span.cut(max(0, min(first, span.end) - span.first))
            part = span.cut(max(0, min(end, span.end) - span.first))
            kept += [some for some in (before, span) if some.count]
            if part.count:
                trainer.count(part)
                if not self.keep:
                    self._release(part)
        trainer.requeued = kept

    def credit(self, client: str, granted: int, consumed: int, max_bytes: int, taken: int = 0) -> None:
        """Take a reader's counters in; they only grow. With `keep`, a reader holds at most a quarter of the window."""
        reader = self.readers[client]
        reader.granted = max(reader.granted, granted)
        if max_bytes:
            reader.max_bytes = min(max_bytes, self.capacity // 4) if self.keep else max_bytes
        self._consume(reader, consumed)
        reader.update_taken(max(taken, reader.consumed))

    def expire(self, now: float) -> None:
        """Let go of trainers that left, and move on those that hold others up and give no sign of life.

        Args:
            now: Seconds, by any clock that goes forward.
        """
        for trainer in self.trainers.values():
            if trainer.consumed != trainer.seen_consumed:
                trainer.seen, trainer.seen_consumed, trainer.exempt = now, trainer.consumed, False
            elif trainer.needs_retention and 0 < trainer.cache_policy.timeout_s <= now - trainer.seen:
                trainer.removed = not trainer.readers
                trainer.exempt = bool(trainer.readers) and self._blocked()
        self._drop_unneeded_from_disk()

    def touch_all(self, now: float) -> None:
        """Take all trainers as having just shown life: they cannot, for nothing is handed out."""
        for trainer in self.trainers.values():
            trainer.seen = now

    def remove_trainer(self, trainer_id: str) -> None:
        """Have a trainer no longer count, until it comes again: what it has not consumed is not kept for it."""
        trainer = self.trainers.get(trainer_id)
        if trainer is not None:
            trainer.removed = True
            self._drop_unneeded_from_disk()

    def remove_unread_trainers(self) -> None:
        """Have trainers that nobody reads for no longer count, until they come again."""
        for trainer_id, trainer in self.trainers.items():
            if self.keep and not trainer.readers:
                self.remove_trainer(trainer_id)

    def _blocked(self) -> bool:
        """Whether a trainer keeps room from the next frame, and to let go of the first one would not do."""
        over = self.nbytes + self._next_frame_bytes - self.capacity if self.keep else 0
        if over <= 0 or not any(trainer.needs_retention for trainer in self.trainers.values()):
            return False
        first = self.frames.first_in_memory
        return first is not None and (first.nbytes + first.encoded_bytes < over or not self._can_evict_or_spill_first())

    def _start_index(self, cache_policy: CachePolicy) -> int:
        """Where a new trainer begins."""
        if cache_policy.start == "newest":
            return self.head
        return self.base if cache_policy.on_lag in {"wait", "spill"} else self.tail

    def recall(self, client: str) -> int:
        """Take back credit that is not used; what is left is what was sent."""
        reader = self.readers[client]
        reader.granted = reader.sent
        return reader.sent

    def consumed_by(self, client: str) -> int:
        """How many elements a reader consumed, as far as it told."""
        reader = self.readers.get(client)
        return reader.consumed if reader is not None else 0

    def leave(self, client: str, consumed: int | None = None) -> None:
        """Let a reader go; what it had and did not consume is for its trainer's next reader."""
        reader = self.readers.get(client)
        if reader is None:
            return
        if consumed is not None:
            self._consume(reader, consumed)
        trainer = self.trainers[reader.trainer_id]
        for span in reader.unconsumed:
            self._requeue(trainer, span)
        trainer.readers.discard(client)
        del self.readers[client]

    def take(self, client: str) -> TakenSlice | None:
        """The next elements for a reader, as far as its credit goes; None where there are none or no credit."""
        reader = self.readers[client]
        room = min(reader.granted - reader.sent, self._fair_share(reader))
        if (
            room <= 0
            or not self.start_barrier.complete
            or (reader.buffered and reader.buffered_bytes >= reader.max_bytes)
        ):
            return None
        trainer = self.trainers[reader.trainer_id]
        found = self._take_requeued(trainer, room) if trainer.requeued else None
        found = found or (self._take_new(trainer, room) if trainer.next < self.frames.head else None)
        if found is None:
            self._note_starving(reader)
            return None
        reader.starved = False
        span, entry = found
        reader.count_sent(span)
        trainer.spilled += span.count if entry.location is not None else 0
        return TakenSlice(self.frames.frame_of(entry), span.first, span.first - entry.first, span.count)

    def _fair_share(self, reader: ReaderState) -> int:
        """How many more elements a reader may hold beside others that share its trainer's place."""
        if self.keep:
            return reader.granted
        share = FIRST_GRANT + reader.taken - reader.outstanding
        trainer = self.trainers[reader.trainer_id]
        if self.finished and len(trainer.readers) > 1:
            left = self.head - self._next(trainer) + sum(span.count for span in trainer.requeued)
            share = min(share, max(1, (left + reader.outstanding) // 2) - reader.outstanding)
        return share

    @property
    def exhausted(self) -> bool:
        """Whether everything was produced and sent to somebody."""
        there = self.trainers.values()
        return self.finished and all(not t.requeued and self._next(t) >= self.head for t in there)

    def take_all(self, client: str) -> list[TakenSlice]:
        """All that a reader may have now, in order."""
        trainer = self.trainers[self.readers[client].trainer_id]
        found = []
        while (taken := self.take(client)) is not None:
            found.append(taken)
            if trainer.next >= self.frames.head and not trainer.requeued:
                break  # most often: what is there is one frame, and the look for more would take as long
        return found

    def at_end(self, client: str) -> bool:
        """Whether nothing more will come for this reader."""
        if not self.finished:
            return False
        trainer = self.trainers[self.readers[client].trainer_id]
        return not trainer.requeued and self._next(trainer) >= self.head

    def offset(self, trainer_id: str) -> int:
        """The first element that a trainer has not consumed."""
        trainer = self.trainers[trainer_id]
        firsts = [span.first for span in trainer.requeued[:1]]
        # Not only the oldest run of each: what came back from another reader lies behind it, and was sent later.
        firsts += [run.first for client in trainer.readers for run in self.readers[client].unconsumed]
        return min([self._next(trainer), *firsts])

    # ---- inside

    @property
    def _bound(self) -> int:
        """Bytes to keep ready beyond the frontier."""
        return min(self._read_ahead.limit, self.capacity // 2) if self.keep else self._read_ahead.limit

    def _note_starving(self, reader: ReaderState) -> None:
        """A reader has nothing left and finds nothing: more should be kept ready, if the producer could have."""
        if not reader.unconsumed and not reader.starved and not self.finished:
            reader.starved = True
            self._read_ahead.reader_starved()

    def _take_requeued(self, trainer: TrainerCursor, room: int) -> tuple[Span, LogEntry] | None:
        """What came back from a reader that left, as far as it is still in memory."""
        while trainer.requeued:
            span = trainer.requeued[0]
            floor = self._oldest_for(trainer)
            if span.first < floor:
                gone = min(span.count, floor - span.first)
                span.cut(gone)
                trainer.skipped += gone
            if span.first >= self.head:
                return None  # it is being produced again
            if span.count:
                entry = self.frames.entry_at(span.first)
                part = span.cut(min(span.count, room, entry.end - span.first))
                if not span.count:
                    trainer.requeued.pop(0)
                return part, entry
            trainer.requeued.pop(0)
        return None

    def _take_new(self, trainer: TrainerCursor, room: int) -> tuple[Span, LogEntry] | None:
        if self.keep:
            trainer.skipped += max(0, self._oldest_for(trainer) - trainer.next)
        trainer.next = first = self._next(trainer)
        if first >= self.frames.head:
            if trainer.delivered_earlier:
                self._advance(first)  # past what its readers had before
            return None
        entry = self.frames.entry_at(first)
        count = min(room, entry.end - first)
        if trainer.delivered_earlier.end > first:
            following = trainer.delivered_earlier.gap(first)[1]
            count = count if following is None else min(count, following - first)
        span = Span(first, count, entry.nbytes * count // entry.count, self.frontier)
        trainer.next = first + count
        if first == self.frontier:  # most often: in a few steps what `_advance` does for any place
            self._unsent_bytes -= entry.bytes_between(first, trainer.next)
            self.frontier = trainer.next
        else:
            self._advance(trainer.next)
        if trainer.delivered_earlier.end > trainer.next:  # while their frames are there to be counted
            trainer.next = self._next(trainer)
            self._advance(trainer.next)
        return span, entry

    def _advance(self, index: int) -> None:
        """Learn that a trainer is at that place, which may be further than any other's."""
        if index > self.frontier:
            self._unsent_bytes -= self.frames.bytes_between(self.frontier, index)
            self.frontier = index

    def _oldest_for(self, trainer: TrainerCursor) -> int:
        """The first element that there is for a trainer: what is on disk is not for those that skip."""
        return 0 if not self.keep else self.base if trainer.lossless and not trainer.exempt else self.tail

    def _next(self, trainer: TrainerCursor) -> int:
        """A trainer's next element: in memory, and past errors that happened before it came."""
        at = max(trainer.next, self._oldest_for(trainer)) if self.keep else trainer.next
        if trainer.delivered_earlier.end > at:
            at = min(trainer.delivered_earlier.gap(at)[0], max(at, self.frames.head))
        while at < trainer.joined_at_index and at < self.frames.head:
            entry = self.frames.entry_at(at)
            if not entry.failed:
                break
            at = entry.end
        return at

    def _consume(self, reader: ReaderState, consumed: int) -> None:
        trainer = self.trainers[reader.trainer_id]
        left = min(consumed, reader.sent) - reader.consumed
        while left > 0 and reader.unconsumed:
            span = reader.unconsumed[0]
            part = reader.unconsumed.popleft() if span.count <= left else span.cut(left)
            left -= part.count
            reader.consumed += part.count
            trainer.count(part)
            if not self.keep:
                self._release(part)
        self._drop_unneeded_from_disk()

    def _release(self, part: Span) -> None:
        """Let consumed elements go; those that are still to be produced again are let go then."""
        there = min(part.end, self.head) - part.first
        if there > 0:
            self.frames.release(part if there == part.count else Span(part.first, there, 0, 0))

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        invariants.validate(self)
