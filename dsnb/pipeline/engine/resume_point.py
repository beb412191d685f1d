"""Where a fresh stage must begin to continue another stage's output after some of its elements.

Theory of operation. When a worker dies, its task's elements are partly consumed. Another worker builds the same
pipeline and begins after the consumed elements. A `ResumePoint` describes how: the inputs begin at their own points,
then the stage drops its next `skip` elements. An operation that makes one element of one, or of n, translates the count
for its input, so that nothing is computed twice. An operation that cannot tell which inputs its elements came from (a
filter, a file reader) records a *resumable position* whenever it buffers nothing: the number of elements out and in at
that moment. It then begins at the last such position and drops only the elements after it. Operations that always
buffer elements (a shuffle) begin at the start of the iteration.

A source also states how many splits are finished for good. The dispatcher forgets those, and assigns the others again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

_MAX_POSITIONS: Final = 4096


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stage begins.

    Attributes:
        skip: Elements to drop once the inputs have begun.
        skip_one_by_one: Whether to drop them by pulling, because some of them were errors: an operation's faster
            `skip` would lose count.
        counter: The operation's own counter: files read, repetitions of a repeat, the next number.
        inputs: Where the inputs begin; empty if they begin at their start.
        provider: The split provider of a source; -1 for a source that reads everything.
        repetition: The repetition of its splits that the source reads.
        finished_splits: How many splits of that repetition are finished for good.
    """

    skip: int = 0
    skip_one_by_one: bool = False
    counter: int = 0
    inputs: tuple[ResumePoint, ...] = ()
    provider: int = -1
    repetition: int = 0
    finished_splits: int = 0

    def sources(self) -> Iterator[ResumePoint]:
        """Yield the points of the sources that read splits."""
        if self.provider >= 0:
            yield self
        for point in self.inputs:
            yield from point.sources()

    def without_finished_splits(self) -> ResumePoint:
        """Return the point without its finished splits, for a stage that began there without them."""
        return replace(self, finished_splits=0, inputs=tuple(point.without_finished_splits() for point in self.inputs))


START: Final = ResumePoint()


def needs_released_splits(point: ResumePoint, released: ResumePoint) -> bool:
    """Whether a point needs splits that were released because `released` had finished them.

    A point for a larger count may lie earlier: a stage that has recorded many positions drops some of them.

    Example:
        >>> point, released = (ResumePoint(provider=0, finished_splits=count) for count in (8, 9))
        >>> needs_released_splits(point, released)
        True
    """
    behind = {source.provider: (source.repetition, source.finished_splits) for source in point.sources()}
    return any(
        behind.get(source.provider, (0, 0)) < (source.repetition, source.finished_splits)
        for source in released.sources()
    )


def to_text(point: ResumePoint) -> str:
    """Encode a point as JSON text for transfer; only fields that differ from the start are included.

    Example:
        >>> to_text(ResumePoint(skip=3, inputs=(ResumePoint(provider=0, finished_splits=8),)))
        '{"skip":3,"inputs":[{"provider":0,"finished_splits":8}]}'
    """
    return json.dumps(_to_plain_data(point), separators=(",", ":"))


def from_text(text: str) -> ResumePoint:
    """Decode a point that `to_text` encoded."""
    return _from_plain_data(json.loads(text))


def _to_plain_data(point: ResumePoint) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: getattr(point, name)
        for name in ("skip", "skip_one_by_one", "counter", "provider", "repetition", "finished_splits")
        if getattr(point, name) != getattr(START, name)
    }
    if point.inputs:
        shown["inputs"] = [_to_plain_data(source) for source in point.inputs]
    return shown


def _from_plain_data(data: dict[str, Any]) -> ResumePoint:
    return ResumePoint(**{**data, "inputs": tuple(map(_from_plain_data, data.get("inputs", ())))})


class ResumablePositions:
    """The moments at which a stage buffered nothing, as counts of elements out and elements in.

    Written by the pulling thread, read by any thread.

    Example:
        >>> positions = ResumablePositions()
        >>> positions.add(10, 40, 0)
        >>> positions.add(20, 90, 0)
        >>> positions.last_before(15)
        (10, 40, 0)
    """

    def __init__(self) -> None:
        self._positions: list[tuple[int, int, int]] = []

    def add(self, elements_out: int, elements_in: int, counter: int) -> None:
        """Record a moment; a later one with the same `elements_out` replaces it."""
        positions = self._positions
        if positions and positions[-1][0] == elements_out:
            positions[-1] = (elements_out, elements_in, counter)  # inputs taken since then produced nothing
            return
        positions.append((elements_out, elements_in, counter))
        if len(positions) > _MAX_POSITIONS:
            self._positions = [*positions[::2], positions[-1]]

    def last_before(self, elements_out: int) -> tuple[int, int, int] | None:
        """Return the last moment with at most `elements_out` elements; forgets earlier ones, since counts only grow."""
        positions = self._positions
        index = bisect_right(positions, elements_out, key=lambda mark: mark[0]) - 1
        if index < 0:
            return None
        found = positions[index]
        # `add` replaces the list when it is full, on another thread: delete only from the list that is still in use.
        if index > _MAX_POSITIONS // 8 and positions is self._positions:
            del positions[:index]
        return found
