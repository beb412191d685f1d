"""How much goes to one reader in one message, by how it got on with what was sent before. A pure core.

Theory of operation. A message costs its reader about the same, whatever it weighs: next to nothing usually, and four or
five turns of the interpreter, 5 ms each, where the reader shares it with a loop that runs without pause. To such a
reader few messages should go, each with all that waits by then. It is known by one of two signs:

    slow    the library takes long for a message: what is on its way fills its buffers. So it is with large elements.
    late    the reader had consumed all that it had received when it spoke, and had not received what was sent longer
            before that than the way there and back takes at best. So it is with small elements: the library has room
            for all that the reader's credit allows, and takes each at once.

While the reader is late, two messages of small elements may be on their way, one that it takes and one that is there
when it has. What comes meanwhile waits here, together, until the reader has received one of them; but never for longer
than `_MAX_HOLD_S`, so that nothing depends on the reader's word. Large elements say nothing of that, for the link itself
may take so long for them, and are not held: a message of theirs is worth its price, and to put some together takes
copies.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_MAX_BATCH_BYTES: Final = 4 << 20
_SLOW_S: Final = 0.005
_LATE_S: Final = 0.02
"""About what a message takes beside a busy loop, and more than one waits where the processors have too much to do."""
_MAX_HOLD_S: Final = 0.05
_MAX_IN_FLIGHT: Final = 2

SMALL_BYTES: Final = 256 << 10
"""What has as many is not small: alone or in a frame of several."""


class Coalescer:
    """What one reader's messages are made of.

    Args:
        received: Elements that had arrived before this reading; all counters begin there.
    """

    def __init__(self, received: int = 0) -> None:
        self._sent = received
        self._late = False
        self._round_trip_s = math.inf
        """Seconds from sending to the reader's word that it has come, at best."""
        self._target_bytes = 0
        self._mean_send_s = self._mean_bytes = 0.0
        self._in_flight: deque[tuple[int, float]] = deque()
        """Of each message the element behind its last, and when it was sent."""

    def max_bytes(self, *, small: bool) -> int:
        """Bytes up to which what is there goes together, the newest of it small or not."""
        return _MAX_BATCH_BYTES if small and self._late else self._target_bytes

    def record_send(self, count: int, now: float) -> None:
        """Learn that a message is given to the library, and how many small elements are in it."""
        if count:
            self._sent += count
            self._in_flight.append((self._sent, now))

    def record_large_send(self, count: int) -> None:
        """Learn of large elements on their way."""
        self._sent += count

    def record_send_time(self, nbytes: int, seconds: float) -> None:
        """Learn how long the library took for it."""
        self._mean_send_s += (seconds - self._mean_send_s) / 4
        self._mean_bytes += (nbytes - self._mean_bytes) / 4
        slow = self._mean_send_s > _SLOW_S
        # Not over a slow link, where the first element would come later.
        self._target_bytes = (
            min(_MAX_BATCH_BYTES, int(self._mean_bytes / self._mean_send_s * _MAX_HOLD_S)) if slow else 0
        )

    def record_acknowledgement(self, received: int, consumed: int, now: float) -> None:
        """Learn from the reader how many elements have come to it, and to its user."""
        came = -math.inf
        while self._in_flight and self._in_flight[0][0] <= received:
            came = self._in_flight.popleft()[1]
        self._round_trip_s = min(self._round_trip_s, now - came)
        if received <= consumed:  # else it has something to do, and this tells nothing
            first = self._in_flight[0][1] if self._in_flight else now
            self._late = now - first > self._round_trip_s + (0 if self._late else _LATE_S)

    def hold_seconds(self, nbytes: int, since: float, now: float) -> float:
        """Seconds that so many bytes may wait for more, of which the first have waited since then; 0 if they go."""
        crowded = self._late and len(self._in_flight) >= _MAX_IN_FLIGHT
        return max(0.0, since + _MAX_HOLD_S - now) if crowded and nbytes < _MAX_BATCH_BYTES else 0.0
