"""Which element of a task goes to which consumer of a coordinated read. A pure core: no threads, no clock, no sockets.

Theory of operation. A task produces one sequence of elements. Turn k of it is the n elements from k * n on, one for
each of n consumers: consumer i gets element k * n + i. What a consumer counts (received, consumed, granted) are turns.

An element is sent as soon as it is produced, as far as its consumer's credit goes. But its consumer takes it only when
the turn is *whole*: when all n have received theirs, and said so. So a turn that a dying worker has sent to some of
them only is taken by none. `whole` is the number of turns that are; it never goes back.

A turn is kept until all n consumers have taken it, so a consumer that begins anew can be given again whatever not all
have taken, from `base` on. It says itself with which turn it begins: dispatcher and consumers have agreed on it. Places
belong to consumers, not to clients: who comes with the index of one that is there already takes its place.

How far production runs ahead of the furthest consumer is bounded in bytes, as in a window: little at first, twice as
much when a consumer finds nothing although the producer had stopped at the bound. The next turn may always be produced.

The sequence has no end. If the pipeline ends all the same, the turns that are whole are still given out, and then each
consumer is told; the elements of a last turn that is not whole are nobody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import field

from dsnb.dataclass import dataclass
from dsnb.elements.frame import Frame
from dsnb.errors import FailedPreconditionError
from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.schedule import consumer_name
from dsnb.worker.ahead import ReadAhead
from dsnb.worker.places import TakenSlice

_MIN_ROUNDS_AHEAD = 2
"""Turns that may be produced beyond the furthest consumer, however large they are."""


@dataclass(slots=True)
class ConsumerCursor:
    """One consumer's: all turns before `sent` were sent to it, and so on; they only grow while one client has it."""

    index: int
    client: str = ""
    granted: int = 0
    sent: int = 0
    received: int = 0
    consumed: int = 0
    max_bytes: int = 0
    unconsumed_sizes: deque[int] = field(default_factory=deque)
    """The bytes of each element that was sent and not consumed."""
    unconsumed_bytes: int = 0
    """The sum of those."""
    last_progress: tuple[int, int] = (-1, -1)
    """What its client was last told of `whole` and `base`."""


@dataclass(slots=True)
class RoundLogEntry:
    """One frame of the sequence."""

    first: int
    count: int
    nbytes: int
    frame: Frame
    failed: bool

    @property
    def end(self) -> int:
        return self.first + self.count


class RoundLog:
    """The elements of one task that not all consumers have taken.

    Args:
        consumers: How many there are.
        read_ahead_bytes: Most bytes to produce beyond the furthest of them.
    """

    def __init__(self, *, consumers: int, read_ahead_bytes: int) -> None:
        self.consumers = consumers
        self.capacity = read_ahead_bytes
        self.head = 0
        self.nbytes = 0
        self.complete_rounds = 0
        self.base = 0
        """The first turn that is kept."""
        self.finished = False
        self.consumer_states = {consumer_name(index): ConsumerCursor(index) for index in range(consumers)}
        self.readers: dict[str, ConsumerCursor] = {}
        self._entries: deque[RoundLogEntry] = deque()
        self._read_ahead = ReadAhead(read_ahead_bytes)

    @property
    def produced_rounds(self) -> int:
        """Turns of which all elements were produced."""
        return self.head // self.consumers

    @property
    def tail(self) -> int:
        """The first element that is kept."""
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
        charge = max(nbytes, count)  # elements without bytes still take room
        self._entries.append(RoundLogEntry(self.head, count, charge, frame, failed))
        self.head += count
        self.nbytes += charge

    def finish(self) -> None:
        """Learn that the sequence has come to an end, which it should not have."""
        self.finished = True

    def failure(self) -> Frame | None:
        """The frame of an error in the turn that did not become whole, which may be why the sequence has ended."""
        rest = (entry for entry in self._entries if entry.failed and entry.end > self.produced_rounds * self.consumers)
        return next((entry.frame for entry in rest), None)

    def _furthest(self) -> int:
        return max(consumer.sent for consumer in self.consumer_states.values())

    def _unsent_bytes(self) -> int:
        """About how many bytes lie beyond the furthest consumer."""
        kept, unsent = self.head - self.tail, self.head - self._furthest() * self.consumers
        return self.nbytes * max(0, unsent) // max(1, kept)

    # ---- the consumers' side

    def attach(
        self, client: str, consumer: str, received: int = 0, consumed: int = 0, cache_policy: CachePolicy | None = None
    ) -> None:
        """Let a client read as a consumer, from the turn on that it has not received, or the first that is kept."""
        del cache_policy
        state = self.consumer_states[consumer]
        self.readers.pop(state.client, None)
        self.readers[client] = state
        state.client = client
        state.sent = state.received = state.granted = max(received, self.base)
        state.consumed = max(consumed, self.base)
        state.last_progress = (-1, -1)
        self._clear_unconsumed(state)
        self._update_rounds()

    def update_received(self, client: str, received: int) -> None:
        """Learn how many turns have arrived at a consumer."""
        consumer = self.readers[client]
        consumer.received = max(consumer.received, received)
        consumer.sent = max(consumer.sent, consumer.received)
        self._update_rounds()

    def credit(self, client: str, granted: int, consumed: int, max_bytes: int) -> None:
        """Take a consumer's counters in; they only grow. What it has consumed it does not want again."""
        consumer = self.readers[client]
        consumer.granted, consumer.max_bytes = max(consumer.granted, granted), max_bytes
        for _ in range(min(consumed - consumer.consumed, len(consumer.unconsumed_sizes))):
            consumer.unconsumed_bytes -= consumer.unconsumed_sizes.popleft()
        consumer.consumed = max(consumer.consumed, consumed)
        self.update_received(client, consumer.consumed)

    def recall(self, client: str) -> int:
        """Take back credit that is not used; what is left is what was sent."""
        consumer = self.readers[client]
        consumer.granted = consumer.sent
        return consumer.sent

    def leave(self, client: str, consumed: int | None = None) -> None:
        """Let a client go; its place stays."""
        consumer = self.readers.pop(client, None)
        if consumer is not None:
            consumer.client = ""
            consumer.consumed = max(consumer.consumed, min(consumed or 0, consumer.received))
            self._clear_unconsumed(consumer)
            self._update_rounds()

    def take(self, client: str) -> TakenSlice | None:
        """The next element for a consumer; None where there is none, or no credit."""
        consumer = self.readers.get(client)
        if consumer is None or consumer.sent >= consumer.granted:
            return None
        if consumer.unconsumed_sizes and consumer.unconsumed_bytes >= consumer.max_bytes:
            return None
        at = consumer.sent * self.consumers + consumer.index
        if at >= self.head:
            if not self.finished:
                self._read_ahead.reader_starved()
            return None
        entry = self._entries[bisect_right(self._entries, at, key=lambda entry: entry.first) - 1]
        consumer.sent += 1
        consumer.unconsumed_sizes.append(entry.nbytes // entry.count)
        consumer.unconsumed_bytes += consumer.unconsumed_sizes[-1]
        return TakenSlice(entry.frame, at, at - entry.first, 1)

    def take_all(self, client: str) -> list[TakenSlice]:
        """All that a consumer may have now, in order."""
        found = []
        while (taken := self.take(client)) is not None:
            found.append(taken)
        return found

    def unreported_progress(self, client: str) -> tuple[int, int] | None:
        """How many turns are whole and which is the first that is kept, if the client has not been told."""
        consumer = self.readers.get(client)
        if consumer is None or consumer.last_progress[0] == self.complete_rounds:
            return None
        consumer.last_progress = self.complete_rounds, self.base
        return consumer.last_progress

    def at_end(self, client: str) -> bool:
        """Whether nothing more will come for this client, all whole turns being told."""
        consumer = self.readers.get(client)
        return self.finished and consumer is not None and consumer.last_progress[0] >= self.produced_rounds

    def offset(self, consumer: str) -> int:
        """The first element that is not consumed, counting by this consumer's turns."""
        return self.consumer_states[consumer].consumed * self.consumers

    def _update_rounds(self) -> None:
        """See which turns are whole now, and which nobody needs any more."""
        consumers = self.consumer_states.values()
        self.complete_rounds = max(self.complete_rounds, min(consumer.received for consumer in consumers))
        self.base = max(self.base, min(place.consumed for place in consumers))
        while self._entries and self._entries[0].end <= self.base * self.consumers:
            self.nbytes -= self._entries.popleft().nbytes

    @staticmethod
    def _clear_unconsumed(consumer: ConsumerCursor) -> None:
        consumer.unconsumed_sizes.clear()
        consumer.unconsumed_bytes = 0

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        at = self.tail
        for entry in self._entries:
            assert entry.first == at, "frames are not consecutive"
            at = entry.end
        assert at == self.head, "the last frame does not end at the head"
        assert self.nbytes == sum(entry.nbytes for entry in self._entries), "bytes are miscounted"
        assert self.tail <= max(self.base * self.consumers, 0) or self.tail == self.head, "a turn was let go too early"
        for consumer in self.consumer_states.values():
            assert consumer.consumed <= consumer.received <= consumer.sent, "a consumer took what it had not received"
            assert self.base <= consumer.consumed, "a turn was let go that a consumer has not taken"
            assert not consumer.client or self.readers.get(consumer.client) is consumer, "a client is misplaced"
        assert all(place.client == client for client, place in self.readers.items()), "a place has another client"


def end_of_data_error(job: str, frame: Frame | None) -> Exception:
    """What consumers are told of a pipeline that has come to an end: its own error, if it was that."""
    if frame is not None and frame.failure is not None:
        return frame.failure.to_exception()
    return FailedPreconditionError(
        f"Encountered end of sequence on a round-robin read iterator: the data of job {job!r} have come to an end, "
        "and a coordinated read needs data without one",
        did="all rounds before it were given",
        hint="add .repeat() to the end of the pipeline, before distribute",
    )
