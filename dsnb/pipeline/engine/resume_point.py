"""Where a fresh stage begins, so that it gives what another one gave after some elements.

Theory of operation. A worker that dies leaves a task whose elements are partly consumed. Another worker builds the
same pipeline and begins it behind the consumed elements. A `ResumePoint` says how: the inputs begin at their own
points, then the stage leaves out its next `skip` elements. An operation that makes one element of one, or of n, passes
the count on to its input, so that nothing is computed twice. One that cannot tell which inputs its elements came from
(a filter, a file reader) notes a *mark* whenever it holds nothing: so many elements out, so many in. It then begins at
the last mark, and leaves out only what came since. Operations that always hold elements back (a shuffle) begin at the
start of the pass.

A source says how many splits are behind for good. The dispatcher forgets those, and hands out the rest again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any, Final

from dsnb.dataclass import dataclass

_MAX_POSITIONS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a stage begins.

    Attributes:
        skip: Elements to leave out once the inputs have begun.
        skip_one_by_one: Whether to leave them out one by one, because some of them were errors: the short way loses count.
        counter: What an operation counts by itself: files that were read, passes of a repeat, the next number.
        inputs: Where the inputs begin; empty for at their beginning.
        provider: The split provider of a source; -1 for a source that reads everything.
        repetition: Which repetition of its splits the source is in.
        finished_splits: How many splits of that repetition are behind for good.
    """

    skip: int = 0
    skip_one_by_one: bool = False
    counter: int = 0
    inputs: tuple[ResumePoint, ...] = field(default=())
    provider: int = -1
    repetition: int = 0
    finished_splits: int = 0

    def sources(self) -> Iterator[ResumePoint]:
        """The points of the sources that read splits."""
        if self.provider >= 0:
            yield self
        for point in self.inputs:
            yield from point.sources()

    def without_finished_splits(self) -> ResumePoint:
        """The same point for a stage that has begun there: the splits behind it are not handed out any more."""
        return replace(self, finished_splits=0, inputs=tuple(point.without_finished_splits() for point in self.inputs))


START: Final = ResumePoint()


def needs_released_splits(point: ResumePoint, released: ResumePoint) -> bool:
    """Whether a point needs splits that are behind another one for good.

    Points of growing counts may go back: a stage that has noted many marks lets some of them go.

    Example:
        >>> needs_forgotten(ResumePoint(provider=0, splits=8), ResumePoint(provider=0, splits=9))
        True
    """
    behind = {source.provider: (source.repetition, source.finished_splits) for source in point.sources()}
    return any(
        behind.get(source.provider, (0, 0)) < (source.repetition, source.finished_splits)
        for source in released.sources()
    )


def to_text(point: ResumePoint) -> str:
    """A point as it travels: text with nothing in it but what differs from the start.

    Example:
        >>> to_text(ResumePoint(skip=3, inputs=(ResumePoint(provider=0, splits=8),)))
        '{"skip":3,"inputs":[{"provider":0,"splits":8}]}'
    """
    return json.dumps(_to_plain_data(point), separators=(",", ":"))


def from_text(text: str) -> ResumePoint:
    """The point that a text tells."""
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
    """The moments at which a stage held nothing: how many elements it had given, and its input had.

    Written by the thread that pulls, read by any.

    Example:
        >>> marks = Marks()
        >>> marks.add(10, 40, 0)
        >>> marks.add(20, 90, 0)
        >>> marks.before(15)
        (10, 40, 0)
    """

    def __init__(self) -> None:
        self._positions: list[tuple[int, int, int]] = []

    def add(self, elements_out: int, elements_in: int, counter: int) -> None:
        """Note a moment."""
        positions = self._positions
        if positions and positions[-1][0] == elements_out:
            positions[-1] = (elements_out, elements_in, counter)  # what was taken since gave nothing
            return
        positions.append((elements_out, elements_in, counter))
        if len(positions) > _MAX_POSITIONS:
            self._positions = [*positions[::2], positions[-1]]

    def last_before(self, elements_out: int) -> tuple[int, int, int] | None:
        """The last moment with no more elements given; earlier ones are forgotten, since counts only grow."""
        positions = self._positions
        index = bisect_right(positions, elements_out, key=lambda mark: mark[0]) - 1
        if index < 0:
            return None
        found = positions[index]
        if index > _MAX_POSITIONS // 8 and positions is self._positions:
            del positions[:index]
        return found
