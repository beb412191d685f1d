"""Element log of a coordinated read: which element goes to which consumer, and which rounds are complete.

A pure core: no threads, I/O or clock.

Theory of operation. A task produces one sequence of elements. Round k is the n elements from k * n on, one for each of
n consumers: consumer i gets element k * n + i. A consumer's counters (received, consumed, granted) count rounds.

An element is sent as soon as it is produced and its consumer's credit allows. A consumer yields it only when the round
is *complete*: when all n consumers have confirmed that their elements arrived. So if a worker dies after it sent a
round to some consumers only, none of them yields it. `complete_rounds` counts the complete rounds; it never decreases.

A round is kept until all n consumers have consumed it, so that a consumer that restarts can get it again, from `base`
on. The consumer names the round that it starts with, which the dispatcher and the consumers have agreed on. Cursors
belong to consumers, not to clients: a client with an index that is already in use replaces the client that had it.

Production runs ahead of the furthest consumer by a bounded number of bytes, as in `SharedLog`: the bound starts low and
doubles when a consumer finds no element although the producer had stopped there. `_MIN_ROUNDS_AHEAD` rounds may always
be produced ahead.

Elements are sent in whole rounds only. When the sequence has ended, up to n - 1 elements are left over. The dispatcher
joins them with those of other tasks and says which consumer gets which (`share_leftovers`); to their consumers, they
are the task rounds that follow the last whole one. A consumer with fewer of them than others has received the rounds
that it does not have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from dsnb.code.failures import exception_of
from dsnb.elements.frame import Frame
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import CachePolicy, TrainerReport
from dsnb.wire.schedule import Leftovers, consumer_name
from dsnb.worker.element_log import ElementLog, ReadAhead
from dsnb.worker.frame_log import LogEntry, newest_entries

_NO_POLICY = CachePolicy()
_MIN_ROUNDS_AHEAD = 2
"""How many rounds may be produced beyond the furthest consumer, whatever their size."""


class ConsumerCursor(msgspec.Struct):
    """One consumer's progress. Rounds before `sent` were sent to it; the other counters are alike.

    The counters never decrease while the same client reads for the consumer.
    """

    index: int
    client: str = ""
    granted: int = 0
    sent: int = 0
    received: int = 0
    consumed: int = 0
    max_bytes: int = 0
    unconsumed_sizes: deque[int] = msgspec.field(default_factory=deque)
    """Bytes of each element that was sent and not consumed."""
    unconsumed_bytes: int = 0
    """The sum of `unconsumed_sizes`."""
    last_progress: tuple[int, int] = (-1, -1)
    """`complete_rounds` and `base` as last reported to its client."""


class RoundLog(ElementLog):
    """The elements of one task that not all consumers have consumed.

    Args:
        consumers: The number of consumers.
        read_ahead_bytes: Most bytes to produce beyond the furthest consumer.
        incarnation: The task's incarnation, which readers are told with each slice.
    """

    def __init__(self, *, consumers: int, read_ahead_bytes: int, incarnation: int = 0) -> None:
        self.consumers = consumers
        self.capacity = read_ahead_bytes
        self.complete_rounds = 0
        self.base = 0
        """The first round that is kept."""
        self.consumer_states = {consumer_name(index): ConsumerCursor(index) for index in range(consumers)}
        self.readers: dict[str, ConsumerCursor] = {}
        self._incarnation = incarnation
        self._head = self._nbytes = 0
        self._entries: deque[LogEntry] = deque()
        self._read_ahead = ReadAhead(read_ahead_bytes)
        self._leftovers: list[list[int]] | None = None
        """The left-over elements that each consumer gets; None until the dispatcher has divided them."""
        self._end_error: Exception | None = None

    @property
    def produced_rounds(self) -> int:
        """How many rounds were produced in full."""
        return self.head // self.consumers

    @property
    def head(self) -> int:
        return self._head

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def tail(self) -> int:
        """The index of the first element that is kept."""
        return self._entries[0].first if self._entries else self.head

    # ---- the producer's side

    def wants_more(self) -> bool:
        """Whether another frame should be produced now."""
        if self.finished:
            return False
        at_bound = self._unsent_bytes() >= self._read_ahead.limit
        if at_bound:
            self._read_ahead.producer_stopped()
        return not at_bound or self.produced_rounds < self._furthest() + _MIN_ROUNDS_AHEAD

    def append(self, frame: Frame, count: int, nbytes: int, failed: bool = False) -> None:
        """Add a frame at the head."""
        charge = max(nbytes, count)  # empty elements still use memory: at least one byte each
        self._entries.append(LogEntry(self.head, count, charge, frame, failed))
        self._head += count
        self._nbytes += charge

    def finish(self) -> None:
        self.finished = True

    def divide_leftovers(self, leftovers: Leftovers) -> None:
        """Give the elements after the last whole round to consumers; a second call changes nothing."""
        if self._leftovers is None and self.finished:
            self._leftovers = [leftovers.of_consumer(index) for index in range(self.consumers)]
            self._end_error = self._error_that_nobody_gets()
            self._update_rounds()

    def newest_frames(self, most: int) -> Sequence[tuple[int, Frame]]:
        return [(entry.first, entry.frame) for entry in newest_entries(reversed(self._entries), most)]

    def drop_frames(self) -> None:
        for entry in self._entries:
            entry.frame = None

    def end_error(self, job: str) -> Exception | None:
        """The error of a left-over element that no consumer gets: it may be why the data ended."""
        del job
        return self._end_error

    def _error_that_nobody_gets(self) -> Exception | None:
        given = {element for elements in self._leftovers or () for element in elements}
        for entry in self._entries:
            left = set(range(max(entry.first, self.produced_rounds * self.consumers), entry.end)) - given
            if entry.failed and entry.frame is not None and left:
                return exception_of(entry.frame.failure)
        return None

    def _furthest(self) -> int:
        return max(consumer.sent for consumer in self.consumer_states.values())

    def _unsent_bytes(self) -> int:
        """Estimated bytes produced beyond the furthest consumer."""
        kept, unsent = self.head - self.tail, self.head - self._furthest() * self.consumers
        return self.nbytes * max(0, unsent) // max(1, kept)

    # ---- the consumers' side

    @property
    def clients(self) -> Sequence[str]:
        return tuple(self.readers)

    def attach(
        self,
        client: str,
        trainer: str,
        received: int = 0,
        consumed: int = 0,
        cache_policy: CachePolicy = _NO_POLICY,
    ) -> None:
        """Let a client read for a consumer, instead of the client that did so before.

        Args:
            client: The client's id.
            trainer: The consumer's name; see `consumer_name`.
            received: Rounds that it received before. It continues there, or at `base` if that is later.
            consumed: Rounds that it consumed before.
            cache_policy: Ignored: consumers of a coordinated read do not fall behind.
        """
        del cache_policy
        state = self.consumer_states[trainer]
        self.readers.pop(state.client, None)
        self.readers[client] = state
        state.client = client
        state.sent = state.received = state.granted = max(received, self.base)
        state.consumed = max(consumed, self.base)
        state.last_progress = (-1, -1)
        self._clear_unconsumed(state)
        self._update_rounds()

    def credit(
        self, client: str, granted: int, consumed: int, max_bytes: int, *, received: int = 0, taken: int = 0
    ) -> None:
        """Update a consumer's credit and progress; a counter below the known one is ignored.

        A client that another one has replaced is ignored too.

        Args:
            client: The client that reads for the consumer.
            granted: Rounds that may be sent in all.
            consumed: Rounds that were consumed; these count as received.
            max_bytes: Most bytes that may be sent and not consumed; one element always may.
            received: Rounds that arrived at the consumer, which may complete rounds.
            taken: Ignored: a consumer takes a round when it consumes it.
        """
        del taken
        consumer = self.readers.get(client)
        if consumer is None:
            return
        consumer.granted, consumer.max_bytes = max(consumer.granted, granted), max_bytes
        for _ in range(min(consumed - consumer.consumed, len(consumer.unconsumed_sizes))):
            consumer.unconsumed_bytes -= consumer.unconsumed_sizes.popleft()
        consumer.consumed = max(consumer.consumed, consumed)
        consumer.received = max(consumer.received, received, consumer.consumed)
        consumer.sent = max(consumer.sent, consumer.received)
        self._update_rounds()

    def recall(self, client: str) -> int:
        """Revoke a client's unused credit; returns how many rounds were sent, which is what remains granted."""
        consumer = self.readers.get(client)
        if consumer is None:
            return 0
        consumer.granted = consumer.sent
        return consumer.sent

    def leave(self, client: str, consumed: int | None = None) -> None:
        """Remove a client; its consumer's cursor stays, for the next client with that index.

        Args:
            client: The client; an unknown one is ignored.
            consumed: Its final counter, if it is known.
        """
        consumer = self.readers.pop(client, None)
        if consumer is not None:
            consumer.client = ""
            consumer.consumed = max(consumer.consumed, min(consumed or 0, consumer.received))
            self._clear_unconsumed(consumer)
            self._update_rounds()

    def take(self, client: str) -> FrameSlice | None:
        """The next element to send to a client; None if there is none or its credit or byte limit is used up."""
        consumer = self.readers.get(client)
        if consumer is None or consumer.sent >= consumer.granted:
            return None
        if consumer.unconsumed_sizes and consumer.unconsumed_bytes >= consumer.max_bytes:
            return None
        at = self._element(consumer)
        if at is None:
            if not self.finished:
                self._read_ahead.reader_starved()
            return None
        entry = self._entries[bisect_right(self._entries, at, key=lambda entry: entry.first) - 1]
        index = consumer.sent * self.consumers + consumer.index  # of a left-over element too: it tells the task round
        consumer.sent += 1
        consumer.unconsumed_sizes.append(entry.nbytes // entry.count)
        consumer.unconsumed_bytes += consumer.unconsumed_sizes[-1]
        return FrameSlice(entry.frame, index, at - entry.first, 1, self._incarnation)

    def _element(self, consumer: ConsumerCursor) -> int | None:
        """The index of the next element for a consumer; None if there is none yet, or no other."""
        if consumer.sent < self.produced_rounds:
            return consumer.sent * self.consumers + consumer.index
        left = self._leftovers[consumer.index][consumer.sent - self.produced_rounds :] if self._leftovers else []
        return left[0] if left else None

    def take_all(self, client: str) -> list[FrameSlice]:
        """All elements that may be sent to a client now, in order."""
        found = []
        while (taken := self.take(client)) is not None:
            found.append(taken)
        return found

    def unreported_progress(self, client: str) -> tuple[int, int] | None:
        """`complete_rounds` and `base` if `complete_rounds` grew since the last call for this client; else None."""
        consumer = self.readers.get(client)
        if consumer is None or consumer.last_progress[0] == self.complete_rounds:
            return None
        consumer.last_progress = self.complete_rounds, self.base
        return consumer.last_progress

    def at_end(self, client: str) -> bool:
        """Whether the sequence has ended and the client knows that all its rounds are complete."""
        consumer = self.readers.get(client)
        return self._leftovers is not None and consumer is not None and consumer.last_progress[0] >= self._count(None)

    def consumed_counts(self) -> Mapping[str, int]:
        return {name: consumer.consumed for name, consumer in self.consumer_states.items()}

    def trainer_report(self, name: str) -> TrainerReport:
        consumer = self.consumer_states[name]
        return TrainerReport(
            trainer_id=name,
            clients=int(bool(consumer.client)),
            consumed=consumer.consumed,
            offset=self.offset(name),
            lag_bytes=consumer.unconsumed_bytes,
        )

    def offset(self, consumer: str) -> int:
        """The index of the first element of the first round that this consumer has not consumed."""
        return min(self.head, self.consumer_states[consumer].consumed * self.consumers)

    def _count(self, consumer: int | None) -> int:
        """How many task rounds one consumer gets once the leftovers are divided; None for the most that any gets."""
        assert self._leftovers is not None, "the leftovers are not divided"
        left = self._leftovers if consumer is None else [self._leftovers[consumer]]
        return self.produced_rounds + max(map(len, left))

    def _reached(self, consumer: ConsumerCursor, count: int) -> int:
        """`count` task rounds of a consumer, or more if it has no others."""
        if self._leftovers is None or count < self._count(consumer.index):
            return count
        return max(count, self._count(None))

    def _update_rounds(self) -> None:
        """Advance `complete_rounds` and `base`, and drop frames that nobody needs."""
        consumers = self.consumer_states.values()
        self.complete_rounds = max(
            self.complete_rounds, min(self._reached(consumer, consumer.received) for consumer in consumers)
        )
        self.base = max(self.base, min(self._reached(place, place.consumed) for place in consumers))
        over = self._leftovers is not None and self.base >= self._count(None)
        needed_from = self.head if over else min(self.base, self.produced_rounds) * self.consumers
        while self._entries and self._entries[0].end <= needed_from:
            self._nbytes -= self._entries.popleft().nbytes

    @staticmethod
    def _clear_unconsumed(consumer: ConsumerCursor) -> None:
        consumer.unconsumed_sizes.clear()
        consumer.unconsumed_bytes = 0

    def validate(self) -> None:
        """Assert the invariants that hold between any two calls."""
        at = self.tail
        for entry in self._entries:
            assert entry.first == at, "frames are not consecutive"
            at = entry.end
        assert at == self.head, "the last frame does not end at the head"
        assert self.nbytes == sum(entry.nbytes for entry in self._entries), "bytes are miscounted"
        assert self.tail <= max(self.base * self.consumers, 0) or self.tail == self.head, "a turn was let go too early"
        for consumer in self.consumer_states.values():
            assert consumer.consumed <= consumer.received <= consumer.sent, "a consumer took what it had not received"
            reached = self._reached(consumer, consumer.consumed)
            assert self.base <= reached, "a round was dropped that a consumer has yet to take"
            assert not consumer.client or self.readers.get(consumer.client) is consumer, "a client is misplaced"
        assert all(place.client == client for client, place in self.readers.items()), "a place has another client"
