"""Decides how many bytes to send to one reader in one message, from the timing of earlier messages.

Pure: no threads, I/O or clock.

Theory of operation. The cost of a message to its reader hardly depends on its size: usually it is negligible, but it is
four or five GIL switch intervals of 5 ms each if another thread of the reader's process runs Python code without pause.
Such a reader should get few messages, each with everything that is ready by then. It is recognised by one of two signs:

    slow    gRPC takes long to accept a message, because the messages in flight fill its buffers. This happens with
            large elements.
    late    when the reader sent an acknowledgement, it had consumed everything it had received, but had not received
            messages that were sent earlier than the best round-trip time before. This happens with small elements:
            gRPC's buffers have room for the reader's whole credit, so every message is accepted at once.

While the reader is late, two messages of small elements may be in flight: one that it processes, and one that is ready
when it has finished. Later elements are held back and joined until the reader has received one of the two, but for at
most `_MAX_HOLD_S`, so that progress never depends on acknowledgements. Large elements do not count for this sign,
because the network itself may take that long for them. They are not held back either: their messages are worth the
cost, and joining them would copy them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_MAX_BATCH_BYTES: Final = 4 << 20
_SLOW_S: Final = 0.005
_LATE_S: Final = 0.02
"""About the delay of a message in a process with a busy Python thread; longer than delays on overloaded processors."""
_MAX_HOLD_S: Final = 0.05
_MAX_IN_FLIGHT: Final = 2

SMALL_BYTES: Final = 256 << 10
"""A frame slice with at least this many bytes is large, whatever the size of its elements."""


class Coalescer:
    """Decides when to send and when to wait for more, for the messages of one read.

    Args:
        received: Elements that had arrived before this read; all counters start there.
    """

    def __init__(self, received: int = 0) -> None:
        self._sent = received
        self._late = False
        self._round_trip_s = math.inf
        """The shortest time in seconds between sending a message and the acknowledgement that it was received."""
        self._target_bytes = 0
        self._mean_send_s = self._mean_bytes = 0.0
        self._in_flight: deque[tuple[int, float]] = deque()
        """For each unacknowledged message of small elements: the index after its last element, and when it was sent."""

    def max_bytes(self, *, small: bool) -> int:
        """Bytes up to which ready elements are joined into one message; `small` tells whether the newest are small."""
        return _MAX_BATCH_BYTES if small and self._late else self._target_bytes

    def record_send(self, count: int, now: float) -> None:
        """Record at time `now` that a message with `count` small elements is passed to gRPC."""
        if count:
            self._sent += count
            self._in_flight.append((self._sent, now))

    def record_large_send(self, count: int) -> None:
        """Record that `count` large elements are passed to gRPC."""
        self._sent += count

    def record_send_time(self, nbytes: int, seconds: float) -> None:
        """Record how long gRPC took to accept a message."""
        self._mean_send_s += (seconds - self._mean_send_s) / 4
        self._mean_bytes += (nbytes - self._mean_bytes) / 4
        slow = self._mean_send_s > _SLOW_S
        # As much as gRPC accepts in `_MAX_HOLD_S`: on a slow network a larger message would delay its first element.
        self._target_bytes = (
            min(_MAX_BATCH_BYTES, int(self._mean_bytes / self._mean_send_s * _MAX_HOLD_S)) if slow else 0
        )

    def record_acknowledgement(self, received: int, consumed: int, now: float) -> None:
        """Record at time `now` that the reader acknowledged `received` and `consumed` elements."""
        came = -math.inf
        while self._in_flight and self._in_flight[0][0] <= received:
            came = self._in_flight.popleft()[1]
        self._round_trip_s = min(self._round_trip_s, now - came)
        if received <= consumed:  # else it is busy with what it has, and its delay says nothing
            first = self._in_flight[0][1] if self._in_flight else now
            # Hysteresis: to become late takes `_LATE_S` more than to stay so.
            self._late = now - first > self._round_trip_s + (0 if self._late else _LATE_S)

    def hold_seconds(self, nbytes: int, since: float, now: float) -> float:
        """Seconds for which `nbytes` that wait since `since` may be held back for more; 0 to send them now."""
        crowded = self._late and len(self._in_flight) >= _MAX_IN_FLIGHT
        return max(0.0, since + _MAX_HOLD_S - now) if crowded and nbytes < _MAX_BATCH_BYTES else 0.0
