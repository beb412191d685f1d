"""Where a unit of splits begins or ends in a task's sequence of elements; see `pipeline/split_order`."""

from __future__ import annotations

import msgspec


class UnitMark(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning or the end of a unit.

    Attributes:
        unit: The number of the unit.
        index: The index of its first element in the sequence, or of the first element after it.
        skipped: How many elements of the unit were before the sequence, because it began within the unit.
        ended: Whether it is the end.
    """

    unit: int = 0
    index: int = 0
    skipped: int = 0
    ended: bool = False
