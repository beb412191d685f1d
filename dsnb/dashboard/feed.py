"""One stream of snapshots for any number of open pages.

Theory of operation. A thread follows the source (a callable that yields snapshots until it is told to stop), notes when
each came, computes its rates against one a few seconds older, and keeps the last few minutes in a ring. Pages never
wait for it: they read the ring by time. When the source ends or fails, the thread says so in `health` and asks again
with a growing pause; the ring stays, so that a page can show what was and say how old it is.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from dsnb.dataclass import dataclass
from dsnb.errors import DsnbError
from dsnb.monitor.formatting import as_sentence
from dsnb.monitor.rates import Rates, rates, same_run
from dsnb.monitor.snapshot import Snapshot

SnapshotStream = Callable[[threading.Event], Iterator[Snapshot]]
"""Yields snapshots until the event is set; raises, or ends, when the service is gone."""

MAX_SAMPLES = 600
"""Snapshots in the ring: five minutes at two a second."""

STALE_AFTER_S = 3.0
RATE_SPAN_S = 3.0
"""Statistics come up from the workers a few times a second; over three seconds their steps do not show."""

_FIRST_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.25, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSample:
    """A snapshot, when it arrived here (by the monotonic clock and by the wall's), and its rates."""

    arrived_at: float
    wall_time: float
    snapshot: Snapshot
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedHealth:
    """How the feed is doing.

    Attributes:
        age_s: Seconds since the last new snapshot; None before the first.
        error: Why there is no news, in words; empty while there is.
        attempts: Times that the source was asked since the last news.
    """

    age_s: float | None
    error: str = ""
    attempts: int = 0

    @property
    def stale(self) -> bool:
        """Whether what is shown is no longer what is."""
        return self.age_s is None or self.age_s > STALE_AFTER_S


class SnapshotSource(Protocol):
    """What a page looks at: the present of a service, or a recorded run."""

    def latest(self) -> RateSample | None:
        """The newest moment, or None before the first."""

    def since(self, at: float) -> list[RateSample]:
        """The moments after a time of their own clock, the oldest first."""

    def health(self) -> FeedHealth:
        """How old the news is, and what is wrong if it is old."""

    def now(self) -> float:
        """The time that is shown, in seconds since the epoch."""


class Feed:
    """The last few minutes of one service, kept up to date by one thread.

    Args:
        source: Where snapshots come from.
        max_samples: How many are kept.

    Example:
        >>> feed = Feed(source_for("default"))
        >>> feed.start()
        >>> feed.latest().snapshot.workers
        >>> feed.stop()
    """

    def __init__(self, source: SnapshotStream, *, max_samples: int = MAX_SAMPLES) -> None:
        self._source = source
        self._ring: deque[RateSample] = deque(maxlen=max_samples)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error = ""
        self._attempts = 0

    def start(self) -> Feed:
        """Begin to follow the source; the second call does nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="dsnb-dashboard-feed", daemon=True)
                self._thread.start()
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stop following; what was kept can still be read."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def latest(self) -> RateSample | None:
        """The newest moment, or None before the first."""
        with self._lock:
            return self._ring[-1] if self._ring else None

    def since(self, at: float) -> list[RateSample]:
        """The moments that arrived after `at` (monotonic clock), the oldest first."""
        newer: list[RateSample] = []
        with self._lock:
            for moment in reversed(self._ring):
                if moment.arrived_at <= at:
                    break
                newer.append(moment)
        return newer[::-1]

    def health(self) -> FeedHealth:
        """How old the news is, and what is wrong if it is old."""
        with self._lock:
            age = time.monotonic() - self._ring[-1].arrived_at if self._ring else None
            return FeedHealth(age_s=age, error=self._error, attempts=self._attempts)

    def now(self) -> float:
        """The present."""
        return time.time()

    def add(self, snapshot: Snapshot) -> None:
        """Keep one snapshot, unless it is the one before once more."""
        now = time.monotonic()
        with self._lock:
            self._error, self._attempts = "", 0
            last = self._ring[-1].snapshot if self._ring else None
            if last is not None and same_run(last, snapshot) and last.seq == snapshot.seq:
                return
            older = _rate_baseline(self._ring, snapshot, now - RATE_SPAN_S)
            between = rates(older, snapshot) if older else Rates()
            self._ring.append(RateSample(arrived_at=now, wall_time=time.time(), snapshot=snapshot, rates=between))

    def _follow(self) -> None:
        pause = _FIRST_RETRY_DELAY_S
        while not self._stop.is_set():
            before = self.latest()
            error = self._follow_once()
            if self._stop.is_set():
                return
            with self._lock:
                self._error, self._attempts = error, self._attempts + 1
            pause = _FIRST_RETRY_DELAY_S if self.latest() is not before else min(2 * pause, _MAX_RETRY_DELAY_S)
            self._stop.wait(pause)

    def _follow_once(self) -> str:
        try:
            for snapshot in self._source(self._stop):
                self.add(snapshot)
                if self._stop.is_set():
                    break
        except DsnbError as error:
            return " ".join(as_sentence(part) for part in (error.what, error.hint) if part)
        except Exception as error:  # noqa: BLE001 - the page must say what is wrong, whatever it is, and ask again
            return as_sentence(f"{type(error).__name__}: {error}")
        return "The service has ended its stream."


def _rate_baseline(ring: deque[RateSample], snapshot: Snapshot, since: float) -> Snapshot | None:
    """The oldest snapshot of the same run that is still within the span, else the one before."""
    found: Snapshot | None = None
    for moment in reversed(ring):
        if not same_run(moment.snapshot, snapshot) or (found is not None and moment.arrived_at < since):
            break
        found = moment.snapshot
    return found


_shared: dict[str, Feed] = {}
_shared_lock = threading.Lock()


def shared_feed(name: str, source: SnapshotStream) -> Feed:
    """The process's one feed of that name, started on first use.

    `panel serve` runs the application's file anew for each page, but imports this module once.
    """
    with _shared_lock:
        if name not in _shared:
            _shared[name] = Feed(source)
            atexit.register(_shared[name].stop)  # a thread inside gRPC at interpreter exit is noise at best
        return _shared[name].start()
