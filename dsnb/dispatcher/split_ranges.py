"""Ranges of splits that a task was given, from which its sequence of elements can be produced again; small tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

import msgspec

from dsnb.wire.messages import FinishedSplits, IndexRange, SplitRange, TrainerPosition
from dsnb.wire.ranges import Ranges

MAX_SPLIT_RANGES: Final = 10_000
"""How many ranges are kept of one task and provider."""


class SplitRanges(msgspec.Struct, forbid_unknown_fields=True):
    """Ranges of splits in the order in which they were given; adjacent ranges are joined.

    Attributes:
        by_provider: For each provider, lists of repetition, first and end.
        truncated: Whether some ranges are missing, because there were more than `MAX_SPLIT_RANGES`.
    """

    by_provider: dict[int, list[list[int]]] = msgspec.field(default_factory=dict)
    truncated: bool = False

    def add(self, provider: int, repetition: int, first: int, end: int) -> None:
        """Append a range, or set `truncated` if there are too many."""
        runs = self.by_provider.setdefault(provider, [])
        if runs and runs[-1][0] == repetition and runs[-1][2] == first:
            runs[-1][2] = end
        elif len(runs) < MAX_SPLIT_RANGES:
            runs.append([repetition, first, end])
        else:
            self.truncated = True

    def drop_first(self, provider: int, repetition: int, count: int) -> None:
        """Drop the first `count` splits of a repetition, and all splits of earlier repetitions."""
        kept: list[list[int]] = []
        for number, first, end in self.by_provider.get(provider, ()):
            gone = min(count, end - first) if number == repetition else end - first if number < repetition else 0
            count -= gone if number == repetition else 0
            if first + gone < end:
                kept.append([number, first + gone, end])
        self.by_provider[provider] = kept

    def without(self, parts: Iterable[FinishedSplits]) -> SplitRanges:
        """A copy without the finished splits `parts`."""
        kept = SplitRanges({provider: [list(run) for run in runs] for provider, runs in self.by_provider.items()})
        for part in parts:
            kept.drop_first(part.provider, part.repetition, part.count)
        return kept

    def ranges(self) -> tuple[SplitRange, ...]:
        """All ranges, in the order in which each provider's were given."""
        return tuple(
            SplitRange(provider=provider, repetition=repetition, first=first, end=end)
            for provider, runs in self.by_provider.items()
            for repetition, first, end in runs
        )


class Provider(msgspec.Struct, forbid_unknown_fields=True):
    """How far the splits of one source are assigned; `next` is the first split that no task has.

    `ordered` tells whether elements come in the order of the splits.
    """

    source: str
    count: int
    repetition: int = 0
    next: int = 0
    lost: int = 0
    ordered: bool = False


class Unassignment(msgspec.Struct, forbid_unknown_fields=True):
    """Why a task has no worker; see `records.TaskUnassigned`."""

    worker: str
    reason: str
    died: bool = False


def merge_positions(*groups: Iterable[TrainerPosition]) -> tuple[TrainerPosition, ...]:
    """The union of what positions say was consumed, as one position for each trainer, without `readers`.

    Example:
        >>> one = TrainerPosition(trainer_id="a", offset=3)
        >>> other = TrainerPosition(trainer_id="a", consumed=(IndexRange(first=3, end=5), IndexRange(first=8, end=9)))
        >>> merge_positions([one], [other])[0].offset
        5
    """
    found: dict[str, Ranges] = {}
    for position in chain(*groups):
        ranges = found.setdefault(position.trainer_id, Ranges())
        ranges.add(0, position.offset)
        ranges.update((part.first, part.end) for part in position.consumed)
    return tuple(trainer_position(trainer_id, ranges) for trainer_id, ranges in found.items())


def trainer_position(trainer_id: str, ranges: Ranges) -> TrainerPosition:
    """The position of a trainer that consumed these elements, without `readers`."""
    offset = ranges.gap(0)[0]
    beyond = tuple(IndexRange(first=first, end=end) for first, end in ranges if first > offset)
    return TrainerPosition(trainer_id=trainer_id, offset=offset, consumed=beyond)
