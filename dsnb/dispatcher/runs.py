"""The runs of splits that a task was given: with them its sequence of elements can be had again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from dsnb.dataclass import dataclass

MOST_RUNS: Final = 10_000
"""Runs of one task and provider that are remembered."""


@dataclass(slots=True)
class Grant:
    """The last run of splits that a task got from a provider."""

    repetition: int
    cursor: int
    first: int
    end: int


@dataclass(slots=True)
class Runs:
    """Runs by provider, as repetition, first and end; joined where they follow each other.

    Attributes:
        forgotten: Whether there were too many to remember.
    """

    by_provider: dict[int, list[list[int]]] = field(default_factory=dict)
    forgotten: bool = False

    def add(self, provider: int, repetition: int, first: int, end: int) -> None:
        """Remember a run."""
        runs = self.by_provider.setdefault(provider, [])
        if runs and runs[-1][0] == repetition and runs[-1][2] == first:
            runs[-1][2] = end
        elif len(runs) < MOST_RUNS:
            runs.append([repetition, first, end])
        else:
            self.forgotten = True


@dataclass(slots=True)
class Provider:
    """Where the hand-out of one source's splits stands; `next` is the first that nobody has."""

    source: str
    count: int
    repetition: int = 0
    next: int = 0
    lost: int = 0


@dataclass(slots=True)
class Loss:
    """What readers of a pass are told when a worker took data with it; `worker` is its name."""

    task_id: str
    worker: str
    splits: int
    reason: str


@dataclass(slots=True)
class Numbers:
    """A set of numbers that mostly follow each other, as runs of first and end."""

    runs: list[tuple[int, int]] = field(default_factory=list)

    def __contains__(self, number: int) -> bool:
        return any(first <= number < end for first, end in self.runs)

    def __bool__(self) -> bool:
        return bool(self.runs)

    @property
    def largest(self) -> int:
        """The largest of them; -1 where there is none."""
        return self.runs[-1][1] - 1 if self.runs else -1

    def add(self, number: int) -> None:
        """Add a number.

        Example:
            >>> numbers = Numbers([(0, 3), (4, 5)])
            >>> numbers.add(3)
            >>> numbers.runs
            [(0, 5)]
        """
        self.runs = _joined([*self.runs, (number, number + 1)])

    def discard(self, number: int) -> None:
        """Remove a number.

        Example:
            >>> numbers = Numbers([(0, 3)])
            >>> numbers.discard(1)
            >>> numbers.runs
            [(0, 1), (2, 3)]
        """
        parts = [((first, min(end, number)), (max(first, number + 1), end)) for first, end in self.runs]
        self.runs = _joined({part for pair in parts for part in pair if part[0] < part[1]})


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, end in sorted(runs):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
