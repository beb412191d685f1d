"""Where a unit of splits begins or ends in a task's sequence of elements; see `pipeline/split_order`."""

from __future__ import annotations

import msgspec


class UnitMark(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning or the end of a unit.

    Attributes:
        unit: The number of the unit.
        index: The index of its first element, or of the first element after it.
        ended: Whether it is the end.
    """

    unit: int = 0
    index: int = 0
    ended: bool = False
