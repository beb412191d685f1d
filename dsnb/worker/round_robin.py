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
from dsnb.wire.lineup import consumer_name
from dsnb.wire.manner import Manner
from dsnb.worker.ahead import Ahead
from dsnb.worker.places import Taken

_LEAST_TURNS = 2
"""Turns that may be produced beyond the furthest consumer, however large they are."""


@dataclass(slots=True)
class Place:
    """One consumer's: all turns before `sent` were sent to it, and so on; they only grow while one client has it."""

    index: int
    client: str = ""
    granted: int = 0
    sent: int = 0
    received: int = 0
    consumed: int = 0
    max_bytes: int = 0
    on_its_way: deque[int] = field(default_factory=deque)
    """The bytes of each element that was sent and not consumed."""
    nbytes: int = 0
    """The sum of those."""
    told: tuple[int, int] = (-1, -1)
    """What its client was last told of `whole` and `base`."""


@dataclass(slots=True)
class Entry:
    """One frame of the sequence."""

    first: int
    count: int
    nbytes: int
    frame: Frame
    failed: bool

    @property
    def end(self) -> int:
        return self.first + self.count


class RoundRobin:
    """The elements of one task that not all consumers have taken.

    Args:
        consumers: How many there are.
        ahead: Most bytes to produce beyond the furthest of them.
    """

    def __init__(self, *, consumers: int, ahead: int) -> None:
        self.consumers = consumers
        self.capacity = ahead
        self.head = 0
        self.nbytes = 0
        self.whole = 0
        self.base = 0
        """The first turn that is kept."""
        self.finished = False
        self.places = {consumer_name(index): Place(index) for index in range(consumers)}
        self.readers: dict[str, Place] = {}
        self._entries: deque[Entry] = deque()
        self._ahead = Ahead(ahead)

    @property
    def turns(self) -> int:
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
        at_bound = self._unsent_bytes() >= self._ahead.now
        if at_bound:
            self._ahead.stop()
        return not at_bound or self.turns < self._furthest() + _LEAST_TURNS

    def append(self, frame: Frame, count: int, nbytes: int, failed: bool = False) -> None:
        """Add a frame at the head."""
        charge = max(nbytes, count)  # elements without bytes still take room
        self._entries.append(Entry(self.head, count, charge, frame, failed))
        self.head += count
        self.nbytes += charge

    def finish(self) -> None:
        """Learn that the sequence has come to an end, which it should not have."""
        self.finished = True

    def failure(self) -> Frame | None:
        """The frame of an error in the turn that did not become whole, which may be why the sequence has ended."""
        rest = (entry for entry in self._entries if entry.failed and entry.end > self.turns * self.consumers)
        return next((entry.frame for entry in rest), None)

    def _furthest(self) -> int:
        return max(place.sent for place in self.places.values())

    def _unsent_bytes(self) -> int:
        """About how many bytes lie beyond the furthest consumer."""
        kept, unsent = self.head - self.tail, self.head - self._furthest() * self.consumers
        return self.nbytes * max(0, unsent) // max(1, kept)

    # ---- the consumers' side

    def attach(
        self, client: str, consumer: str, received: int = 0, consumed: int = 0, manner: Manner | None = None
    ) -> None:
        """Let a client read as a consumer, from the turn on that it has not received, or the first that is kept."""
        del manner
        place = self.places[consumer]
        self.readers.pop(place.client, None)
        self.readers[client] = place
        place.client = client
        place.sent = place.received = place.granted = max(received, self.base)
        place.consumed = max(consumed, self.base)
        place.told = (-1, -1)
        self._forget_on_its_way(place)
        self._count()

    def acknowledge(self, client: str, received: int) -> None:
        """Learn how many turns have arrived at a consumer."""
        place = self.readers[client]
        place.received = max(place.received, received)
        place.sent = max(place.sent, place.received)
        self._count()

    def credit(self, client: str, granted: int, consumed: int, max_bytes: int) -> None:
        """Take a consumer's counters in; they only grow. What it has consumed it does not want again."""
        place = self.readers[client]
        place.granted, place.max_bytes = max(place.granted, granted), max_bytes
        for _ in range(min(consumed - place.consumed, len(place.on_its_way))):
            place.nbytes -= place.on_its_way.popleft()
        place.consumed = max(place.consumed, consumed)
        self.acknowledge(client, place.consumed)

    def recall(self, client: str) -> int:
        """Take back credit that is not used; what is left is what was sent."""
        place = self.readers[client]
        place.granted = place.sent
        return place.sent

    def leave(self, client: str, consumed: int | None = None) -> None:
        """Let a client go; its place stays."""
        place = self.readers.pop(client, None)
        if place is not None:
            place.client = ""
            place.consumed = max(place.consumed, min(consumed or 0, place.received))
            self._forget_on_its_way(place)
            self._count()

    def take(self, client: str) -> Taken | None:
        """The next element for a consumer; None where there is none, or no credit."""
        place = self.readers.get(client)
        if place is None or place.sent >= place.granted:
            return None
        if place.on_its_way and place.nbytes >= place.max_bytes:
            return None
        at = place.sent * self.consumers + place.index
        if at >= self.head:
            if not self.finished:
                self._ahead.starve()
            return None
        entry = self._entries[bisect_right(self._entries, at, key=lambda entry: entry.first) - 1]
        place.sent += 1
        place.on_its_way.append(entry.nbytes // entry.count)
        place.nbytes += place.on_its_way[-1]
        return Taken(entry.frame, at, at - entry.first, 1)

    def take_all(self, client: str) -> list[Taken]:
        """All that a consumer may have now, in order."""
        found = []
        while (taken := self.take(client)) is not None:
            found.append(taken)
        return found

    def news(self, client: str) -> tuple[int, int] | None:
        """How many turns are whole and which is the first that is kept, if the client has not been told."""
        place = self.readers.get(client)
        if place is None or place.told[0] == self.whole:
            return None
        place.told = self.whole, self.base
        return place.told

    def at_end(self, client: str) -> bool:
        """Whether nothing more will come for this client, all whole turns being told."""
        place = self.readers.get(client)
        return self.finished and place is not None and place.told[0] >= self.turns

    def offset(self, consumer: str) -> int:
        """The first element that is not consumed, counting by this consumer's turns."""
        return self.places[consumer].consumed * self.consumers

    def _count(self) -> None:
        """See which turns are whole now, and which nobody needs any more."""
        places = self.places.values()
        self.whole = max(self.whole, min(place.received for place in places))
        self.base = max(self.base, min(place.consumed for place in places))
        while self._entries and self._entries[0].end <= self.base * self.consumers:
            self.nbytes -= self._entries.popleft().nbytes

    @staticmethod
    def _forget_on_its_way(place: Place) -> None:
        place.on_its_way.clear()
        place.nbytes = 0

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        at = self.tail
        for entry in self._entries:
            assert entry.first == at, "frames are not consecutive"
            at = entry.end
        assert at == self.head, "the last frame does not end at the head"
        assert self.nbytes == sum(entry.nbytes for entry in self._entries), "bytes are miscounted"
        assert self.tail <= max(self.base * self.consumers, 0) or self.tail == self.head, "a turn was let go too early"
        for place in self.places.values():
            assert place.consumed <= place.received <= place.sent, "a consumer took what it had not received"
            assert self.base <= place.consumed, "a turn was let go that a consumer has not taken"
            assert not place.client or self.readers.get(place.client) is place, "a client is misplaced"
        assert all(place.client == client for client, place in self.readers.items()), "a place has another client"


def ended(job: str, frame: Frame | None) -> Exception:
    """What consumers are told of a pipeline that has come to an end: its own error, if it was that."""
    if frame is not None and frame.failure is not None:
        return frame.failure.error()
    return FailedPreconditionError(
        f"Encountered end of sequence on a round-robin read iterator: the data of job {job!r} have come to an end, "
        "and a coordinated read needs data without one",
        did="all rounds before it were given",
        hint="add .repeat() to the end of the pipeline, before distribute",
    )
