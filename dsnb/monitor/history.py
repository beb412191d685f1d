"""What was, within bounds: the last minutes as they came, what is older ever thinner.

A series has tiers. In the first all is kept; in each later one an item is kept only if it came some time after the one
kept before it; what is older than the last tier goes. So a page that is open for a day holds no more than one that is
open for an hour. Pure: the time comes in as an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dsnb.monitor.snapshot import Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A part of the past: up to `age_s` seconds ago, one item each `every_s` seconds; 0 for all."""

    age_s: float
    every_s: float = 0.0


TIERS = (Tier(age_s=120.0), Tier(age_s=600.0, every_s=2.0), Tier(age_s=3600.0, every_s=10.0))


class History(Generic[T]):
    """A bounded series. Not thread-safe.

    Args:
        tiers: From the newest to the oldest.
        most: Items of the first tier at the most, should they come faster than thought.

    Example:
        >>> history = History[str]((Tier(age_s=2.0), Tier(age_s=100.0, every_s=5.0)))
        >>> for second in range(12):
        ...     history.add(float(second), f"at {second}")
        >>> history.since(-1.0)
        ['at 0', 'at 5', 'at 9', 'at 10', 'at 11']
    """

    def __init__(self, tiers: Sequence[Tier] = TIERS, most: int = 600) -> None:
        self._tiers = tiers
        self._most = most
        self._rows: list[deque[tuple[float, T]]] = [deque() for _ in tiers]

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    @property
    def newest(self) -> T | None:
        """The item that was added last; None before the first."""
        return self._rows[0][-1][1] if self._rows[0] else None

    def add(self, at: float, item: T) -> None:
        """Keep an item of a time that is later than those of all others."""
        self._rows[0].append((at, item))
        for number, tier in enumerate(self._tiers):
            row = self._rows[number]
            while row and (at - row[0][0] > tier.age_s or (number == 0 and len(row) > self._most)):
                self._hand_down(number + 1, *row.popleft())

    def since(self, at: float) -> list[T]:
        """The items that are younger than a time, the oldest first."""
        items = [item for row in reversed(self._rows) for item in row]
        return [item for _, item in items[bisect_right(items, at, key=lambda pair: pair[0]) :]]

    def clear(self) -> None:
        """Forget all."""
        for row in self._rows:
            row.clear()

    def _hand_down(self, number: int, at: float, item: T) -> None:
        if number < len(self._tiers):
            row = self._rows[number]
            if not row or at - row[-1][0] >= self._tiers[number].every_s:
                row.append((at, item))


def slim(snapshot: Snapshot) -> Snapshot:
    """A snapshot for a long series: without what is told by its time anyway, or is long (runs of splits, events)."""
    jobs = tuple(replace(job, grants=()) for job in snapshot.jobs)
    workers = tuple(replace(worker, stderr=()) for worker in snapshot.workers)
    return replace(snapshot, jobs=jobs, workers=workers, events=())
