"""Element log of a task that several clients read: which elements are kept, sent and consumed, and how far to produce.

A pure core: no threads, I/O or clock.

Theory of operation. A task produces one sequence of elements, numbered from 0. The log keeps a contiguous part of it
as frames: indices `[base, tail)` on disk, `[tail, head)` in memory. Each *trainer* has a cursor; `next` is the index
of the first element not yet sent to it. A trainer may have several *readers* (clients). They share the cursor, so each
element is sent to one of them. A reader is sent as many elements as its credit allows, and acknowledges those that it
consumed. When a reader leaves, its unconsumed elements return to its trainer and are sent before any others. When its
connection breaks, the elements that did not arrive are sent again to this reader alone: another one that has received
the end of the data may have stopped waiting.

A job without the cross-trainer cache uses the same log with a single trainer for all readers. `keep` is the difference:

    keep = False   an element is released when it is consumed; all readers of the job share one pass. Nothing is ever
                   evicted: the producer waits.
    keep = True    the cross-trainer cache: an element stays until its bytes are needed for a new one. `on_lag` is each
                   trainer's choice of what happens when it has not consumed that element yet:

                   skip     the trainer skips the element, which is counted as skipped
                   wait     the element stays, and the producer waits for the trainer
                   spill    the element moves to disk, and the trainer reads it from there

A trainer that blocks others must make progress: when it has consumed nothing for `timeout_s` seconds, `expire` removes
it (if it has no reader) or treats it like a trainer that skips (until it consumes again).

`frontier` is the largest `next` of all trainers. An element below the frontier is a hit for each trainer that reads it
later; an element at or beyond the frontier is a miss for the first trainer that reads it. Elements that have yet to be
sent to the furthest trainer are never evicted: those beyond the frontier, and those that its readers returned.

The producer keeps a bounded number of bytes ready beyond the frontier, then stops. The bound starts low and doubles,
up to `read_ahead_bytes`, each time a reader finds no element although the producer had stopped at the bound. If reader
and pipeline differ in speed, in either direction, a higher bound would cost work and memory without benefit. If the
elements of all tasks have one order, a reader takes those of a task only in their turn, so whether it starves says
little: the bound is then at least a few units (`keep_ready`).

All elements of finite data are kept, in memory or on disk, while a trainer that wants every element may still join. If
there is no room for all of them, the log is `closing`: production waits until the dispatcher lets no such trainer join
any more. `close_to_new_trainers` then names the clients that have joined. Elements are also kept for those of them that
have not opened this task yet (`awaited`).

An error that takes an element's place is sent to the trainers that were attached when it happened; trainers that
attach later skip it.

A log may continue the log of an earlier incarnation whose worker died (`take_over`). It begins at the first element
that a trainer still needs, and its producer makes the same elements again: consumed ones are released at once,
those that a reader holds count as sent to it, and the others are sent as usual.

Readers of one trainer share fairly (`_fair_share`): a reader may hold `FIRST_GRANT` elements at first, and as many more
as it has already taken later on. Once everything is produced, and if the trainer has several readers, none may
hold more than half of what is left, so that the last elements do not all wait in one slow reader.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dsnb.elements.frame import Frame
from dsnb.errors import DeadlineExceededError
from dsnb.transfer.protocol import FIRST_GRANT, FrameSlice
from dsnb.wire.field_groups import CacheCounters, shared
from dsnb.wire.messages import CachePolicy, IndexRange, TrainerPosition, TrainerReport
from dsnb.wire.ranges import Ranges, split_ranges
from dsnb.worker.element_log import ElementLog, ReadAhead
from dsnb.worker.frame_log import FrameLog, FrameStore, LogEntry, Span

_DEFAULT_POLICY = CachePolicy()
_POLICY_UNTIL_ATTACHED = CachePolicy(on_lag="spill", timeout_s=60.0)
"""Policy of a trainer that the dispatcher knows and that has not opened this task yet, or not this incarnation of it;
it then sends its own. Until then it loses nothing, and the others need not wait for it while there is room on disk. A
trainer that does not open the task in time is removed, as by default."""


class TrainerCursor(msgspec.Struct):
    """The cursor of one trainer, shared by all its readers.

    Attributes:
        next: The index of the next element to send.
        joined_at_index: The log's head when the trainer attached; errors before it are not sent to the trainer.
        cache_policy: What happens when the trainer falls behind, where it starts, and its timeout.
        readers: The ids of its clients.
        awaited: The ids of its clients that joined the iteration and have yet to come here.
        requeued: Elements that readers left unconsumed or did not receive, in order; they are sent before any others.
        consumed: How many elements it consumed.
        hits: How many of these had been sent to another trainer before.
        misses: How many of these had not.
        skipped: How many elements it missed because they were evicted.
        spilled: How many elements it read from disk.
        seen: When it last made progress, by the clock of `SharedLog.expire`.
        seen_consumed: The value of `consumed` at that time.
        exempt: Whether it is treated like a trainer that skips, because it blocked the producer and timed out.
        removed: Whether it left or timed out, so that no elements are kept for it.
        consumed_ranges: The indices of the elements that it consumed or skipped: it gets none of them again.
        delivered_earlier: The indices of elements that its readers received from an earlier incarnation of the task.
            They are not sent again unless a reader leaves without having consumed them.
    """

    next: int
    joined_at_index: int
    cache_policy: CachePolicy
    readers: set[str] = msgspec.field(default_factory=set)
    awaited: set[str] = msgspec.field(default_factory=set)
    requeued: list[Span] = msgspec.field(default_factory=list)
    consumed: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0
    seen: float = 0.0
    seen_consumed: int = -1
    exempt: bool = False
    removed: bool = False
    consumed_ranges: Ranges = msgspec.field(default_factory=Ranges)
    delivered_earlier: Ranges = msgspec.field(default_factory=Ranges)

    def count(self, part: Span) -> None:
        """Count the elements of a span as consumed."""
        hits = max(0, min(part.end, part.hits_until) - part.first)
        self.consumed += part.count
        self.consumed_ranges.add(part.first, part.end)
        self.hits += hits
        self.misses += part.count - hits

    def skip(self, first: int, end: int, *had: Ranges) -> None:
        """Count elements as missed, except for those that it consumed, or has according to `had`."""
        if end <= first:
            return
        covered = Ranges(part for ranges in (self.consumed_ranges, *had) for part in ranges.within(first, end))
        for begin, stop in [*covered.within(first, end), (end, end)]:
            if begin > first:
                self.skipped += begin - first
                self.consumed_ranges.add(first, begin)
            first = stop

    def returned_for(self, client: str) -> Span | None:
        """The first requeued elements that a reader may get; None if there are none."""
        return next((span for span in self.requeued if span.owner in ("", client)), None)

    def drop_empty(self) -> None:
        """Drop requeued spans of which nothing is left."""
        self.requeued = [span for span in self.requeued if span.count]

    def disown(self, client: str) -> None:
        """Let all readers have what was requeued for one that leaves."""
        for span in self.requeued:
            span.owner = "" if span.owner == client else span.owner

    @property
    def needed_from(self) -> int:
        """The index of the first element that has yet to be sent to it; returned elements count."""
        return min(self.next, self.requeued[0].first) if self.requeued and not self.removed else self.next

    @property
    def needs_retention(self) -> bool:
        """Whether elements that it has not consumed must be kept somewhere."""
        return self.lossless and not self.exempt and not self.removed

    @property
    def lossless(self) -> bool:
        """Whether its policy is to lose no element."""
        return self.cache_policy.on_lag in {"wait", "spill"}


class ReaderState(msgspec.Struct):
    """The counters of one client, cumulative over its reading of the task.

    Attributes:
        trainer_id: Its trainer.
        max_bytes: Most bytes that it may buffer; one more span may always be sent to an empty buffer.
        granted: How many elements may be sent.
        sent: How many elements were sent.
        taken: How many elements left the client's buffer, consumed or not.
        consumed: How many elements were consumed.
        unconsumed: The elements that were sent and not consumed, in the order of sending.
        buffered: The number of elements and of bytes of each span that has not left the client's buffer entirely.
        buffered_bytes: The sum of the bytes in `buffered`.
        starved: Whether it found no element the last time, so that this is reported to the read-ahead only once.
    """

    trainer_id: str
    max_bytes: int = 0
    granted: int = 0
    sent: int = 0
    taken: int = 0
    consumed: int = 0
    unconsumed: deque[Span] = msgspec.field(default_factory=deque)
    buffered: deque[list[int]] = msgspec.field(default_factory=deque)
    buffered_bytes: int = 0
    starved: bool = False

    @property
    def outstanding(self) -> int:
        """How many elements are in flight or in the client's buffer."""
        return self.sent - self.taken

    def count_sent(self, span: Span) -> None:
        """Count the elements of a span as sent."""
        self.unconsumed.append(span)
        self.buffered.append([span.count, span.nbytes])
        self.sent += span.count
        self.buffered_bytes += span.nbytes

    def update_taken(self, taken: int) -> None:
        """Raise the number of elements that left the client's buffer."""
        left = min(taken, self.sent) - self.taken
        while left > 0:
            first = self.buffered[0]
            part = min(left, first[0])
            nbytes = first[1] * part // first[0]
            first[0] -= part
            first[1] -= nbytes
            self.buffered_bytes -= nbytes
            self.taken += part
            left -= part
            if not first[0]:
                self.buffered.popleft()

    def reclaim_unreceived(self, received: int) -> Iterator[Span]:
        """Take back the elements that were sent but not received, newest first, and the unused credit.

        Args:
            received: How many elements the client received.

        Yields:
            Spans of elements. The counters are only right once all of them are read.
        """
        while self.sent > received and self.unconsumed:
            span = self.unconsumed.pop()
            back = min(span.count, self.sent - received)
            kept = span.cut(span.count - back)
            if kept.count:
                self.unconsumed.append(kept)
            self.sent -= back
            yield span
        self.granted = self.sent
        self.taken = min(self.taken, self.sent)
        self._forget_buffered()

    def _forget_buffered(self) -> None:
        """Shrink `buffered` to the elements that are still outstanding."""
        left, known, self.buffered_bytes = self.sent - self.taken, self.buffered, 0
        self.buffered = deque()
        for count, nbytes in known:
            part = min(count, left)
            if part:
                self.buffered.append([part, nbytes * part // count])
                self.buffered_bytes += self.buffered[-1][1]
                left -= part


class StartBarrier:
    """Tracks whether enough trainers have joined to start. Once complete, it stays complete.

    Attributes:
        complete: Whether elements may be sent.
    """

    def __init__(self) -> None:
        self.complete = False
        self._since: float | None = None

    def update(self, trainers: Collection[TrainerCursor], wanted: int) -> None:
        """Complete the barrier if at least `wanted` trainers have readers. Call it whenever a reader attaches."""
        self.complete |= sum(bool(trainer.readers) for trainer in trainers) >= wanted

    def timed_out(self, trainers: Collection[TrainerCursor], now: float) -> bool:
        """Whether the present trainers have waited for the shortest of their timeouts. True once, then it starts again.

        Args:
            trainers: All trainers of the task.
            now: Seconds of a monotonic clock.
        """
        timeouts = [t.cache_policy.timeout_s for t in trainers if t.readers and t.cache_policy.timeout_s]
        if self.complete or not timeouts:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= min(timeouts):
            self._since = None
            return True
        return False


class SharedLog(ElementLog):
    """The kept elements of one task, and the cursors of its trainers and readers.

    Args:
        capacity: Most bytes in memory. Enforced only with `keep`, by eviction.
        read_ahead_bytes: Most bytes to produce beyond the frontier.
        keep: Whether elements stay for other trainers after they were consumed.
        keep_all: Whether all elements stay until `close_to_new_trainers`; on disk, if any trainer spills. For finite
            data, which a new trainer may want to read from the beginning.
        store: Where frames are spilled; None to disable spilling.
        first: The index of the first element that will be produced.
        incarnation: The task's incarnation, which readers are told with each slice.
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
        incarnation: int = 0,
    ) -> None:
        self.capacity = capacity
        self.keep = keep
        self.first = self.frontier = first
        self.trainers: dict[str, TrainerCursor] = {}
        self.readers: dict[str, ReaderState] = {}
        self._incarnation = incarnation
        self._keep_all = self._finite = keep_all
        self._replay_end = first
        """Index after the last element that an earlier incarnation delivered; production below it is a replay."""
        self.frames = FrameLog(store, first)
        self._start_barrier = StartBarrier()
        self._unsent_bytes = 0
        self._read_ahead = ReadAhead(read_ahead_bytes)

    @property
    def head(self) -> int:
        """The index of the next element to be produced."""
        return self.frames.head

    @property
    def tail(self) -> int:
        """The index of the first element in memory; `head` if there is none."""
        return self.frames.tail

    @property
    def base(self) -> int:
        """The index of the first element that is kept, in memory or on disk; `head` if there is none."""
        return self.frames.base

    @property
    def nbytes(self) -> int:
        """Bytes in memory, including cached encodings."""
        return self.frames.nbytes + self.frames.encoded_bytes

    def reserve_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Charge the cached encoding of the frame that begins at `index`; False if there is no room for it.

        The log may exceed its capacity until the next frame is appended, which evicts enough.
        """
        has_room = self.nbytes + nbytes <= self.capacity or (not self.finished and self._can_evict_or_spill_first())
        return has_room and self.frames.add_encoded_bytes(index, nbytes)

    @property
    def evicted(self) -> int:  # type: ignore[override]  # read-only here
        """How many elements were dropped without having been released."""
        return self.frames.evicted

    @property
    def done(self) -> bool:
        """Whether everything is produced, and every trainer that was not removed has consumed all of it."""
        if not self.keep:
            return self.finished and not self.frames.entries
        return self.finished and all(t.removed or self.offset(name) >= self.head for name, t in self.trainers.items())

    @property
    def clients(self) -> Sequence[str]:
        return (*self.readers, *(client for trainer in self.trainers.values() for client in trainer.awaited))

    def newest_frames(self, most: int) -> Sequence[tuple[int, Frame]]:
        return [(entry.first, entry.frame) for entry in self.frames.newest(most)]

    def drop_frames(self) -> None:
        self.frames.drop_frames()

    # ---- reports

    def consumed_counts(self) -> Mapping[str, int]:
        return {name: trainer.consumed for name, trainer in self.trainers.items()}

    def trainer_report(self, name: str) -> TrainerReport:
        trainer, offset = self.trainers[name], self.offset(name)
        consumed = Ranges(trainer.consumed_ranges)
        # Not up to `offset`: what was evicted before it may not have been counted as skipped yet.
        consumed.add(0, min(offset, trainer.next))
        return TrainerReport(
            trainer_id=name,
            clients=len(trainer.readers),
            consumed=trainer.consumed,
            offset=offset,
            **shared(CacheCounters, trainer),
            lag_bytes=self.frames.bytes_between(offset, self.head),
            on_lag=(trainer.cache_policy.on_lag or "skip") if self.keep else "",
            consumed_ranges=tuple(IndexRange(first=first, end=end) for first, end in consumed),
        )

    def elements_before_eviction(self, name: str) -> float | None:
        """How many elements a trainer that skips can fall back before it loses some; None if it will not lose any."""
        if not self.keep or self.finished or self.trainers[name].needs_retention or self.head == self.tail:
            return None
        free = (self.capacity - self.nbytes) * (self.head - self.tail) / max(1, self.nbytes)
        return self.offset(name) - self.tail + free

    def resume_index(self) -> int | None:
        """The first element that a trainer still needs. Trainers without readers count as well: they may return."""
        return min(map(self.offset, self.trainers), default=self.head)

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
        return not self._blocked()

    @property
    def _all_trainers_removed(self) -> bool:
        """Whether every trainer was removed: new elements would evict those that a returning trainer still wants."""
        return self.keep and bool(self.trainers) and all(trainer.removed for trainer in self.trainers.values())

    def keep_ready(self, nbytes: int) -> None:
        self._read_ahead.raise_to(nbytes)

    def append(self, frame: Any, count: int, nbytes: int, failed: bool = False) -> None:
        """Add a frame at the head. Evicts frames from the tail, where allowed, to stay within the capacity."""
        charge = max(nbytes, count)  # empty elements still use memory: at least one byte each
        self.make_room(charge)
        self.frames.add(frame, count, charge, failed)
        self._unsent_bytes += charge
        if self._replay_end > self.frames.head - count:
            self._skip_delivered_earlier(self.frames.head - count)
        if self._unsent_bytes >= self._bound:
            self._read_ahead.producer_stopped()

    def make_room(self, nbytes: int = 0) -> None:
        """Evict or spill frames until `nbytes` more fit within the capacity, or no other frame may leave memory."""
        while self.keep and self.nbytes + nbytes > self.capacity:
            if not self._evict_or_spill_first():
                first = self.frames.first_in_memory
                if self._keep_all and first is not None and self._is_passed(first):
                    self.closing = True
                return

    def close_to_new_trainers(self, joined: Iterable[tuple[str, str]]) -> None:
        """Allow to evict elements that only a new trainer would need: none that wants all of them can join any more.

        Args:
            joined: The clients that joined and want every element, each with its trainer. Elements are also kept for
                those that have not opened this task yet.
        """
        if not self._keep_all:
            return
        self._keep_all = self.closing = False
        for client, trainer_id in joined:
            if client in self.readers:
                continue
            cursor = self.trainers.get(trainer_id)
            if cursor is None:
                cursor = self.trainers[trainer_id] = TrainerCursor(
                    next=self.first, joined_at_index=self.head, cache_policy=_POLICY_UNTIL_ATTACHED
                )
            cursor.awaited.add(client)
        self._drop_unneeded_from_disk()
        self.make_room()

    def finish(self) -> None:
        """End the sequence at `head`: nothing more will be appended."""
        self.finished = True
        self.short_by = max(0, self._replay_end - self.head)
        # After a short replay, requeued spans may reach beyond the head: cut them, or they would never be served.
        for trainer in self.trainers.values() if self.short_by else ():
            returned, trainer.requeued = trainer.requeued, []
            for span in returned:
                self._requeue(trainer, span)

    def _can_evict_or_spill_first(self) -> bool:
        """Whether the first frame in memory may be evicted or spilled."""
        entry = self.frames.first_in_memory
        if not self.keep or entry is None or not self._is_passed(entry):
            return False
        return self.frames.can_spill() if self._is_needed_by(entry, "spill") else not self._keep_all

    def _is_passed(self, entry: LogEntry) -> bool:
        """Whether the furthest trainer has been sent a frame, and no trainer makes the others wait for it."""
        return entry.end <= self._evictable_end and not self._is_needed_by(entry, "wait")

    @property
    def _evictable_end(self) -> int:
        """The end of what the furthest trainer has been sent and has not returned."""
        if not any(trainer.requeued for trainer in self.trainers.values()):
            return self.frontier
        return min(self.frontier, max(trainer.needed_from for trainer in self.trainers.values()))

    @property
    def _next_frame_bytes(self) -> int:
        """Estimated bytes of the next frame: the largest so far, at most an eighth of the capacity.

        A frame that turns out larger exceeds the capacity by the difference, once.
        """
        return min(self.frames.largest, self.capacity // 8)

    def _evict_or_spill_first(self) -> bool:
        """Evict or spill the first frame in memory; False if it must stay."""
        entry = self.frames.first_in_memory
        if entry is None or not self._can_evict_or_spill_first():
            return False
        if self._is_needed_by(entry, "spill"):
            return self.frames.spill_first()
        self.frames.drop_to_first_in_memory()  # no trainer needs this frame, so none needs the older ones on disk
        return True

    def _is_needed_by(self, entry: LogEntry, *on_lag: str) -> bool:
        """Whether a trainer with one of these `on_lag` policies needs an element of a frame."""
        return any(
            trainer.needs_retention
            and trainer.cache_policy.on_lag in on_lag
            and (self.offset(name) < entry.end or (self._keep_all and trainer.cache_policy.on_lag == "spill"))
            for name, trainer in self.trainers.items()
        )

    def _drop_unneeded_from_disk(self) -> None:
        """Drop the first frames on disk, up to one that a trainer still needs or a new one may need."""
        while (
            self.frames.on_disk
            and not self._keep_all
            and not self._is_needed_by(self.frames.entries[0], "spill", "wait")
        ):
            self.frames.drop_first()

    # ---- taking over from an earlier incarnation

    def take_over(self, positions: Iterable[TrainerPosition]) -> None:
        """Restore the trainers and readers of an earlier incarnation. Call it before the first frame is appended.

        Args:
            positions: What each trainer consumed, and what each of its readers had received and not consumed.
        """
        for position in positions:
            consumed = Ranges((part.first, part.end) for part in position.consumed)
            consumed.add(0, position.offset)
            trainer = TrainerCursor(
                next=min(self.first, consumed.gap(0)[0]),  # before `first` if it misses elements that were evicted
                joined_at_index=self.first,
                cache_policy=_POLICY_UNTIL_ATTACHED,
                consumed_ranges=consumed,
                delivered_earlier=Ranges(consumed),
            )
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
        self._start_barrier.complete = (
            self._replay_end > self.first
        )  # delivered elements: the barrier was passed before

    def _skip_delivered_earlier(self, first: int) -> None:
        """Move cursors past reproduced elements that were delivered before, and release those that were consumed.

        Args:
            first: The index of the first element of the frame that was just appended.
        """
        for trainer in self.trainers.values():
            self._pass_delivered_earlier(trainer)
            if not self.keep:
                for begin, end in trainer.consumed_ranges.within(first, self.frames.head):
                    self.frames.release(Span(begin, end - begin, 0, 0))

    def _pass_delivered_earlier(self, trainer: TrainerCursor) -> None:
        """Move a cursor past elements that were delivered before."""
        if trainer.next >= self._oldest_for(trainer):  # else it misses elements, which `_take_new` counts
            trainer.next = self._next(trainer)
            self._advance(trainer.next)

    # ---- the readers' side

    def attach(
        self,
        client: str,
        trainer: str,
        received: int = 0,
        consumed: int = 0,
        cache_policy: CachePolicy = _DEFAULT_POLICY,
    ) -> None:
        """Add a reader. A client that reconnects continues after what it received.

        Args:
            client: The client's id.
            trainer: The id of its trainer; a new trainer starts where its policy says.
            received: How many elements the client received before; 0 for a new one.
            consumed: How many of these it consumed.
            cache_policy: The policy of the trainer, from now on.
        """
        if client in self.readers:
            self._reattach(client, received, consumed)
            self._set_policy(self.trainers[trainer], cache_policy)
            self._start_barrier.update(self.trainers.values(), cache_policy.start_together)
            return
        cursor = self.trainers.get(trainer)
        if cursor is None:
            start = self._start_index(cache_policy)
            cursor = self.trainers[trainer] = TrainerCursor(
                next=start, joined_at_index=self.head, cache_policy=cache_policy
            )
            self._advance(cursor.next)
            if not self._wants_all(cache_policy):
                cursor.next = self._next(cursor)
        elif client in cursor.awaited and cache_policy.start == "newest" and not cursor.readers:
            cursor.next = max(cursor.next, self.head)
            self._advance(cursor.next)
        self._set_policy(cursor, cache_policy)
        cursor.removed = False
        cursor.readers.add(client)
        cursor.awaited.discard(client)
        self._start_barrier.update(self.trainers.values(), cache_policy.start_together)
        # Counters above 0 come from an earlier incarnation that this log knows nothing of. Everything received counts
        # as consumed here, so the reader starts with nothing outstanding and no unused credit.
        self.readers[client] = ReaderState(trainer, sent=received, taken=received, consumed=received, granted=received)

    def _wants_all(self, cache_policy: CachePolicy) -> bool:
        """Whether a trainer with this policy wants all elements from the first one on."""
        return self._finite and cache_policy.on_lag in {"wait", "spill"} and cache_policy.start != "newest"

    def _set_policy(self, trainer: TrainerCursor, cache_policy: CachePolicy) -> None:
        """Set the policy that a trainer's reader sent."""
        trainer.cache_policy = cache_policy
        if not trainer.consumed_ranges and not self._wants_all(cache_policy):
            trainer.next = max(trainer.next, self.first)  # it has just come: it does not miss what went before

    def _reattach(self, client: str, received: int, consumed: int) -> None:
        reader = self.readers[client]
        self._consume(reader, consumed)
        reader.update_taken(reader.consumed)
        trainer = self.trainers[reader.trainer_id]
        for span in reader.reclaim_unreceived(received):
            span.owner = client
            self._requeue(trainer, span)

    def _requeue(self, trainer: TrainerCursor, span: Span) -> None:
        """Return unconsumed elements to their trainer, to be sent first, except those that were never reproduced."""
        if self.finished and span.end > self.head:
            span = span.cut(max(0, self.head - span.first))
        if span.count:
            insort(trainer.requeued, span)

    def reconcile(self, trainer_id: str, consumed: Sequence[tuple[int, int]], unacked: int | None = None) -> int:
        """Account for what a client consumed before it was declared dead, now that it has returned.

        Those of its elements that still wait to be sent again are counted as consumed instead. So are those that were
        sent by an earlier incarnation only.

        Args:
            trainer_id: The client's trainer.
            consumed: What the client consumed, as (first, end) ranges in the order of arrival.
            unacked: How many of these, at the end, were not acknowledged when the client was declared dead. None if
                that is unknown here: then every element that no reader has acknowledged counts as unacknowledged.

        Returns:
            How many elements had already been sent again, so that two clients got them.
        """
        trainer = self.trainers[trainer_id]
        waiting = Ranges((span.first, span.end) for span in trainer.requeued)
        repeated = 0
        if unacked is not None:
            consumed = split_ranges(consumed, max(0, sum(last - first for first, last in consumed) - unacked))[1]
        begin = trainer.next
        for first, last in consumed:
            end = max(first, min(last, begin))
            acknowledged = sum(b - a for a, b in trainer.consumed_ranges.within(first, end)) if unacked is None else 0
            unknown = end - first - acknowledged
            repeated += unknown - sum(b - a for a, b in waiting.within(first, end))
            for a, b in waiting.within(first, last):
                self._consume_requeued(trainer, a, b)
            self._consume_unsent(trainer, max(first, begin), last)
        return repeated

    def _consume_unsent(self, trainer: TrainerCursor, first: int, end: int) -> None:
        """Count elements in `[first, end)`, none of which this log has sent, as delivered earlier and consumed."""
        unsent = Ranges([(first, end)] if first < end else ())
        for part in trainer.delivered_earlier.within(first, end):
            unsent.remove(*part)
        trainer.delivered_earlier.update(unsent)
        trainer.consumed_ranges.update(unsent)
        self._replay_end = max(self._replay_end, trainer.delivered_earlier.end)
        self._pass_delivered_earlier(trainer)
        for begin, stop in () if self.keep else unsent:
            self._release(Span(begin, stop - begin, 0, 0))

    def _consume_requeued(self, trainer: TrainerCursor, first: int, end: int) -> None:
        """Count requeued elements in `[first, end)` as consumed instead of sending them again."""
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

    def credit(
        self, client: str, granted: int, consumed: int, max_bytes: int, *, received: int = 0, taken: int = 0
    ) -> None:
        """Update a reader's cumulative counters; a value below the known one is ignored.

        Args:
            client: The reader.
            granted: Elements that may be sent in all.
            consumed: Elements that were consumed.
            max_bytes: Most bytes that the reader may buffer; 0 for no change. With `keep`, at most a quarter of the
                capacity applies, so that one reader cannot hold the whole window.
            received: Ignored: what was sent over a connection arrives, or the client says at the next one what did.
            taken: Elements that left the client's buffer, consumed or not.
        """
        del received
        reader = self.readers[client]
        reader.granted = max(reader.granted, granted)
        if max_bytes:
            reader.max_bytes = min(max_bytes, self.capacity // 4) if self.keep else max_bytes
        self._consume(reader, consumed)
        reader.update_taken(max(taken, reader.consumed))

    def expire(self, now: float) -> None:
        """Time out trainers that retain elements and have consumed nothing for their `timeout_s`.

        A trainer without readers is removed. One with readers is treated like a trainer that skips, if it blocks the
        producer, until it consumes again.

        Args:
            now: Seconds of a monotonic clock.
        """
        for trainer in self.trainers.values():
            if trainer.consumed != trainer.seen_consumed:
                trainer.seen, trainer.seen_consumed, trainer.exempt = now, trainer.consumed, False
            elif trainer.needs_retention and 0 < trainer.cache_policy.timeout_s <= now - trainer.seen:
                trainer.removed = not trainer.readers
                trainer.exempt = bool(trainer.readers) and self._blocked()
        self._drop_unneeded_from_disk()

    def touch_all(self, now: float) -> None:
        """Restart every trainer's timeout. For a paused task, in which no trainer can make progress."""
        for trainer in self.trainers.values():
            trainer.seen = now

    def start_timed_out(self, now: float) -> bool:
        return self._start_barrier.timed_out(self.trainers.values(), now)

    def remove_trainer(self, trainer_id: str) -> None:
        """Stop keeping elements for a trainer, until a reader attaches to it again."""
        trainer = self.trainers.get(trainer_id)
        if trainer is not None:
            trainer.removed = True
            self._drop_unneeded_from_disk()

    def remove_unread_trainers(self) -> None:
        """Stop keeping elements for trainers without readers that are not awaited. Has no effect without `keep`."""
        for trainer_id, trainer in self.trainers.items():
            if self.keep and not trainer.readers and not trainer.awaited:
                self.remove_trainer(trainer_id)

    def _blocked(self) -> bool:
        """Whether there is no room for the next frame: the first one must stay, or its bytes do not suffice."""
        over = self.nbytes + self._next_frame_bytes - self.capacity if self.keep else 0
        kept = self._keep_all or any(trainer.needs_retention or trainer.requeued for trainer in self.trainers.values())
        if over <= 0 or not kept:
            return False
        first = self.frames.first_in_memory
        return first is not None and (first.nbytes + first.encoded_bytes < over or not self._can_evict_or_spill_first())

    def _start_index(self, cache_policy: CachePolicy) -> int:
        """The index at which a new trainer starts."""
        if self._wants_all(cache_policy):
            return self.first  # what was evicted counts as skipped when it reads, unless it says that it consumed that
        if cache_policy.start == "newest":
            return self.head
        return self.base if cache_policy.on_lag in {"wait", "spill"} else self.tail

    def recall(self, client: str) -> int:
        """Revoke a reader's unused credit; returns how many elements were sent, which is what remains granted."""
        reader = self.readers[client]
        reader.granted = reader.sent
        return reader.sent

    def consumed_by(self, client: str) -> int:
        """How many elements a reader has acknowledged; 0 for an unknown one."""
        reader = self.readers.get(client)
        return reader.consumed if reader is not None else 0

    def leave(self, client: str, consumed: int | None = None) -> None:
        """Remove a reader and return its unconsumed elements to its trainer.

        Args:
            client: The reader; one that has not come yet is no longer awaited, an unknown one is ignored.
            consumed: Its final counter, if it is known.
        """
        reader = self.readers.get(client)
        if reader is None:
            for trainer in self.trainers.values():
                trainer.awaited.discard(client)
            return
        if consumed is not None:
            self._consume(reader, consumed)
        trainer = self.trainers[reader.trainer_id]
        trainer.disown(client)
        for span in reader.unconsumed:
            span.owner = ""
            self._requeue(trainer, span)
        trainer.readers.discard(client)
        del self.readers[client]

    def take(self, client: str) -> FrameSlice | None:
        """The next elements to send to a reader; None if there are none or its credit or byte limit is used up."""
        reader = self.readers[client]
        room = min(reader.granted - reader.sent, self._fair_share(reader))
        if (
            room <= 0
            or not self._start_barrier.complete
            or (reader.buffered and reader.buffered_bytes >= reader.max_bytes)
        ):
            return None
        trainer = self.trainers[reader.trainer_id]
        found = self._take_requeued(trainer, client, room) if trainer.requeued else None
        found = found or (self._take_new(trainer, room) if trainer.next < self.frames.head else None)
        if found is None:
            self._note_starving(reader)
            return None
        reader.starved = False
        span, entry = found
        reader.count_sent(span)
        trainer.spilled += span.count if entry.location is not None else 0
        start = span.first - entry.first
        return FrameSlice(self.frames.frame_of(entry), span.first, start, span.count, self._incarnation)

    def _fair_share(self, reader: ReaderState) -> int:
        """How many more elements may be sent to a reader now, so that readers of one trainer share fairly."""
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
        """Whether everything is produced and sent to every trainer; what did not arrive is sent to its reader again."""
        there = self.trainers.values()
        return self.finished and all(
            all(span.owner for span in trainer.requeued) and self._next(trainer) >= self.head for trainer in there
        )

    def take_all(self, client: str) -> list[FrameSlice]:
        """All elements that may be sent to a reader now, in order."""
        trainer = self.trainers[self.readers[client].trainer_id]
        found = []
        while (taken := self.take(client)) is not None:
            found.append(taken)
            if trainer.next >= self.frames.head and not trainer.requeued:
                break  # saves a second `take`, as long as the first, in the usual case of a single frame
        return found

    def at_end(self, client: str) -> bool:
        """Whether there is nothing left to send to this reader, and nothing more will be produced."""
        if not self.finished:
            return False
        trainer = self.trainers[self.readers[client].trainer_id]
        return trainer.returned_for(client) is None and self._next(trainer) >= self.head

    def offset(self, trainer_id: str) -> int:
        """The index of the first element that a trainer has not consumed."""
        trainer = self.trainers[trainer_id]
        firsts = [span.first for span in trainer.requeued[:1]]
        # All spans, not only the first of each reader: a requeued span has lower indices and was sent later.
        firsts += [run.first for client in trainer.readers for run in self.readers[client].unconsumed]
        return min([self._next(trainer), *firsts])

    # ---- inside

    @property
    def _bound(self) -> int:
        """How many bytes the producer may keep ready beyond the frontier."""
        return min(self._read_ahead.limit, self.capacity // 2) if self.keep else self._read_ahead.limit

    def _note_starving(self, reader: ReaderState) -> None:
        """Report to the read-ahead, once, that a reader consumed all it had and no element is ready."""
        if not reader.unconsumed and not reader.starved and not self.finished:
            reader.starved = True
            self._read_ahead.reader_starved()

    def _take_requeued(self, trainer: TrainerCursor, client: str, room: int) -> tuple[Span, LogEntry] | None:
        """Requeued elements for a reader, at most `room`, from one frame; evicted ones are counted as skipped."""
        floor = self._oldest_for(trainer)
        while trainer.requeued and trainer.requeued[0].first < floor:
            gone = trainer.requeued[0].cut(min(trainer.requeued[0].count, floor - trainer.requeued[0].first))
            trainer.skip(gone.first, gone.end)
            trainer.drop_empty()
        span = trainer.returned_for(client)
        if span is None or span.first >= self.head:
            return None  # if beyond the head: after `take_over`, not reproduced yet
        entry = self.frames.entry_at(span.first)
        part = span.cut(min(span.count, room, entry.end - span.first))
        trainer.drop_empty()
        return part, entry

    def _take_new(self, trainer: TrainerCursor, room: int) -> tuple[Span, LogEntry] | None:
        """Elements at a trainer's cursor, at most `room`, from one frame; moves the cursor."""
        if self.keep:
            trainer.skip(trainer.next, self._oldest_for(trainer), trainer.delivered_earlier)
        trainer.next = first = self._next(trainer)
        if first >= self.frames.head:
            if trainer.delivered_earlier:
                self._advance(first)  # the cursor moved past elements delivered before `take_over`: no longer unsent
            return None
        entry = self.frames.entry_at(first)
        count = min(room, entry.end - first)
        if trainer.delivered_earlier.end > first:
            following = trainer.delivered_earlier.gap(first)[1]
            # Stop before the next element that an earlier incarnation already delivered.
            count = count if following is None else min(count, following - first)
        span = Span(first, count, entry.nbytes * count // entry.count, self.frontier)
        trainer.next = first + count
        if first == self.frontier:  # the usual case: does what `_advance` does without its search for frames
            self._unsent_bytes -= entry.bytes_between(first, trainer.next)
            self.frontier = trainer.next
        else:
            self._advance(trainer.next)
        # Pass delivered elements now, while their frames are still kept: `_advance` subtracts their bytes.
        if trainer.delivered_earlier.end > trainer.next:
            trainer.next = self._next(trainer)
            self._advance(trainer.next)
        elif trainer.next < trainer.joined_at_index:
            # Pass earlier errors now: they may be evicted before the next call, and would count as skipped then.
            trainer.next = self._next(trainer)
        return span, entry

    def _advance(self, index: int) -> None:
        """Move the frontier to a trainer's cursor if that is further; its elements no longer count as unsent."""
        if index > self.frontier:
            self._unsent_bytes -= self.frames.bytes_between(self.frontier, index)
            self.frontier = index

    def _oldest_for(self, trainer: TrainerCursor) -> int:
        """The index of the oldest element available to a trainer; those that skip do not read from disk."""
        return 0 if not self.keep else self.base if trainer.lossless and not trainer.exempt else self.tail

    def _next(self, trainer: TrainerCursor) -> int:
        """A trainer's next index to send: skips evicted and delivered elements, and errors from before it attached."""
        at = max(trainer.next, self._oldest_for(trainer)) if self.keep else trainer.next
        if trainer.delivered_earlier.end > at:
            # At most the head: elements beyond it are not reproduced yet, so they cannot be passed and counted.
            at = min(trainer.delivered_earlier.gap(at)[0], max(at, self.frames.head))
        while at < trainer.joined_at_index and at < self.frames.head:
            entry = self.frames.entry_at(at)
            if not entry.failed:
                break
            at = entry.end
        return at

    def _consume(self, reader: ReaderState, consumed: int) -> None:
        """Raise a reader's consumed counter, in the order in which elements were sent, and drop what is unneeded."""
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
        """Release consumed elements below the head; `_skip_delivered_earlier` releases the others once reproduced."""
        there = min(part.end, self.head) - part.first
        if there > 0:
            self.frames.release(part if there == part.count else Span(part.first, there, 0, 0))

    def validate(self) -> None:
        """Assert the invariants that hold between any two calls."""
        frames = self.frames
        frames.validate(keep=self.keep)
        assert self._unsent_bytes == frames.bytes_between(self.frontier, self.head), "unsent bytes are miscounted"
        assert self.frontier <= self.head, "something was sent before it was produced"
        assert not self.keep or not self._keep_all or self.base == self.first, "elements went before the log was closed"
        for name, trainer in self.trainers.items():
            assert trainer.next <= max(self.frontier, self.tail, trainer.joined_at_index), (
                "a trainer is beyond the frontier"
            )
            assert self.offset(name) <= max(self.head, trainer.next), "an offset is beyond the head"
            assert trainer.hits + trainer.misses == trainer.consumed, "hits and misses do not make up the consumed"
            assert all(self.readers[client].trainer_id == name for client in trainer.readers), "a reader is misplaced"
        for reader in self.readers.values():
            assert reader.consumed + sum(span.count for span in reader.unconsumed) == reader.sent, (
                "sent elements are missing"
            )
            assert reader.buffered_bytes == sum(nbytes for _, nbytes in reader.buffered), (
                "a reader's bytes are miscounted"
            )
            assert reader.sent - reader.taken == sum(count for count, _ in reader.buffered), (
                "buffered ones are miscounted"
            )
            assert reader.consumed <= reader.taken, "a reader consumed what it did not take"


def start_barrier_timeout(job: str, here: Sequence[str]) -> DeadlineExceededError:
    """The error for the present trainers when the others did not join in time.

    Args:
        job: The job's name.
        here: The names of the present trainers.
    """
    return DeadlineExceededError(
        f"not all trainers that were to start together have come to job {job!r}; here are {', '.join(map(repr, here))}",
        did="no trainer received an element",
        hint="start the others within the timeout of CrossTrainerCache(..., start_together=n, timeout=seconds), "
        "or lower n",
    )
