"""One stream of snapshots, shared by any number of open pages.

Theory of operation. A thread follows the source (a callable that yields snapshots until its stop event is set), records
when each snapshot arrived, computes its rates against one a few seconds older, and keeps the last few minutes in a
ring. Pages never wait for the thread: they read the ring by time. When the source ends or fails, the thread reports it
in `health` and retries with a growing delay; the ring is kept, so that a page can show the last state and its age. A
source that ends without an error is a service that was stopped; it may be started again.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from dsnb.errors import DsnbError
from dsnb.monitor.formatting import as_sentence, format_time
from dsnb.monitor.rates import Rates, rates, same_run
from dsnb.monitor.snapshot import Snapshot

SnapshotStream = Callable[[threading.Event], Iterator[Snapshot]]
"""Yields snapshots until the event is set; raises or ends when the service is gone."""

MAX_SAMPLES = 600
"""The size of the ring: five minutes at two snapshots a second."""

STALE_AFTER_S = 3.0
RATE_SPAN_S = 3.0
"""Workers report statistics a few times a second; averaging over three seconds hides the steps."""

_FIRST_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.25, 4.0


class RateSample(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot with its rates and its arrival time, by the monotonic clock and by the wall clock."""

    arrived_at: float
    wall_time: float
    snapshot: Snapshot
    rates: Rates


class FeedHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the feed's snapshots are current.

    Attributes:
        age_s: Seconds since the last new snapshot; None before the first.
        error: Why no snapshots arrive, as text; empty while they do.
        attempts: How often the source has been tried since the last snapshot.
        end: When the service was stopped, as a sentence; empty while it runs, and when it is back.
    """

    age_s: float | None
    error: str = ""
    attempts: int = 0
    end: str = ""

    @property
    def stale(self) -> bool:
        """Whether the newest snapshot is too old to count as current."""
        return self.age_s is None or self.age_s > STALE_AFTER_S


class SnapshotSource(Protocol):
    """What a page shows: a live service, or a recorded run."""

    def latest(self) -> RateSample | None:
        """The newest sample, or None before the first."""

    def since(self, at: float) -> list[RateSample]:
        """The samples whose `arrived_at` is after a time, the oldest first."""

    def last_read(self, job: str | None) -> list[Snapshot]:
        """The snapshots of the last seconds in which a job was read, and the newest one, for `latest_verdicts`.

        Args:
            job: The job; None for any.
        """

    def health(self) -> FeedHealth:
        """The age of the newest sample, and the error if the source fails."""

    def now(self) -> float:
        """The time that the page shows, in seconds since the epoch."""


class Feed:
    """The last few minutes of one service, updated by one thread.

    Args:
        source: Where snapshots come from.
        max_samples: How many samples are kept.

    Example:
        >>> feed = Feed(snapshot_stream("default"))
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
        self._end = ""

    def start(self) -> Feed:
        """Start to follow the source; a second call does nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="dsnb-dashboard-feed", daemon=True)
                self._thread.start()
        return self

    def stop(self, timeout: float = 5.0, end: str = "") -> None:
        """Stop following the source; the samples in the ring remain readable.

        Args:
            timeout: Seconds to wait for the thread.
            end: Why no more snapshots will come, as a sentence, if that is for good.
        """
        self._end = end
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def latest(self) -> RateSample | None:
        with self._lock:
            return self._ring[-1] if self._ring else None

    def since(self, at: float) -> list[RateSample]:
        newer: list[RateSample] = []
        with self._lock:
            for moment in reversed(self._ring):
                if moment.arrived_at <= at:
                    break
                newer.append(moment)
        return newer[::-1]

    def last_read(self, job: str | None) -> list[Snapshot]:
        with self._lock:
            return [sample.snapshot for sample in self._ring]

    def health(self) -> FeedHealth:
        with self._lock:
            age = time.monotonic() - self._ring[-1].arrived_at if self._ring else None
            return FeedHealth(age_s=age, error=self._error, attempts=self._attempts, end=self._end)

    def now(self) -> float:
        return time.time()

    def add(self, snapshot: Snapshot) -> None:
        """Append a snapshot, unless it repeats the previous one."""
        now = time.monotonic()
        with self._lock:
            self._error, self._attempts = "", 0
            self._end = self._end if self._stop.is_set() else ""
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
        except Exception as error:  # noqa: BLE001 - the page shows any error, and the thread retries
            return as_sentence(f"{type(error).__name__}: {error}")
        if not self._stop.is_set():
            self._end = f"The service was stopped at {format_time(time.time())}."
        return "The service has ended its stream."


def _rate_baseline(ring: deque[RateSample], snapshot: Snapshot, since: float) -> Snapshot | None:
    """The oldest snapshot of the same run within the time span, else the previous one; None if the run is new."""
    found: Snapshot | None = None
    for moment in reversed(ring):
        if not same_run(moment.snapshot, snapshot) or (found is not None and moment.arrived_at < since):
            break
        found = moment.snapshot
    return found


_shared: dict[str, Feed] = {}
_shared_lock = threading.Lock()


def shared_feed(name: str, source: SnapshotStream) -> Feed:
    """The process's only feed of that name, started on first use.

    `panel serve` runs the application's script again for each page, but imports this module once.
    """
    with _shared_lock:
        if name not in _shared:
            _shared[name] = Feed(source)
            atexit.register(_shared[name].stop)  # a thread inside gRPC at interpreter exit would at least log errors
        return _shared[name].start()
