"""The runs of splits that a task was given: with them its sequence of elements can be had again."""

from __future__ import annotations

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
