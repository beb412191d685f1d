"""Numbers elements of a source such that an element has one number, whichever task reads it.

Theory of operation. A stage counts the elements that it has delivered, which says little about an element: a task reads
only some splits, and a stage may begin in their middle. A source knows more. It notes at which of its elements each
split began; the number of an element is then its split, and its place in that split. A source whose splits consist of
single elements notes runs of those.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dsnb.pipeline.engine.stage import Stage

Number = tuple[int, int]
"""A position of a source, and the place of an element among those of the position."""


class ElementNumbers:
    """The numbers of a source's elements, which are counted from 0. Written and read by any thread.

    Args:
        one_element_per_position: Whether the positions after a noted one follow it, one for each element.

    Example:
        >>> numbers = ElementNumbers(one_element_per_position=True)
        >>> numbers.note(0, 40)
        >>> numbers.note(3, 90)
        >>> numbers.of(1, 3)
        [(41, 0), (42, 0), (90, 0)]
    """

    def __init__(self, *, one_element_per_position: bool) -> None:
        self._by_element = one_element_per_position
        self._lock = threading.Lock()
        self._starts: list[tuple[int, int]] = []

    def note(self, element: int, position: int) -> None:
        """Note that a position begins with an element."""
        with self._lock:
            if self._starts and self._by_element:
                start, first = self._starts[-1]
                if element - start == position - first:
                    return
            if self._starts and self._starts[-1][0] == element:
                self._starts.pop()  # that position had no element
            self._starts.append((element, position))

    def of(self, element: int, count: int) -> list[Number]:
        """Return the numbers of consecutive elements. Elements before these must not be asked for afterwards."""
        with self._lock:
            del self._starts[: max(0, self._index(element))]
            return [self._number(each) for each in range(element, element + count)]

    def _index(self, element: int) -> int:
        return bisect_right(self._starts, element, key=lambda start: start[0]) - 1

    def _number(self, element: int) -> Number:
        start, position = self._starts[self._index(element)]
        return (position + element - start, 0) if self._by_element else (position, element - start)


@runtime_checkable
class NumberingSource(Protocol):
    """The stage of a source that can number its elements."""

    @property
    def can_number(self) -> bool:
        """Whether it knows with which of its elements a position begins."""
        ...

    def start_numbering(self) -> None:
        """Note from now on which elements begin a position; only before the first pull."""

    def numbers_of(self, element: int, count: int) -> list[Number]:
        """Return the numbers of consecutive elements, counted since the stage began."""
        ...


def numbering_source(stage: Stage) -> NumberingSource | None:
    """Return the source whose elements determine the order of a stage's elements; None if it is not the only input."""
    while stage.inputs:
        if stage.input_index(0) is None:
            return None
        (stage,) = stage.inputs
    return stage if isinstance(stage, NumberingSource) and stage.can_number else None


def source_index(stage: Stage, element: int) -> int:
    """Return which element of its source an element of a stage begins with; both are counted since they began."""
    while stage.inputs:
        index = stage.input_index(element)
        assert index is not None, "the caller has checked it"
        element = index
        (stage,) = stage.inputs
    return element
