"""Where a unit of splits begins or ends in a task's sequence of elements; see `pipeline/split_order`."""

from __future__ import annotations

import msgspec


class UnitMark(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning or the end of a unit.

    Attributes:
        unit: The first split of the unit.
        unit_end: The split after its last one, with which the next unit begins.
        index: The index of its first element in the sequence, or of the first element after it.
        skipped: How many elements of the unit were before the sequence, because it began within the unit.
        ended: Whether it is the end.
    """

    unit: int = 0
    unit_end: int = 0
    index: int = 0
    skipped: int = 0
    ended: bool = False
