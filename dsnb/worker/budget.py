"""How the bytes of a worker's cache are shared by its tasks: pure."""

from __future__ import annotations

from collections.abc import Sequence


def fair_share(total: int, wants: Sequence[int | None]) -> list[int]:
    """Give each task what it wants, as far as that is less than an equal share; the others divide what is left.

    Args:
        total: Bytes to divide.
        wants: For each task, the bytes that it has use for; None for as many as it can get.

    Returns:
        Bytes for each task, at least 1, `total` together at the most (where that is not less than one for each).

    Example:
        >>> share(90, [None, 10, None])
        [40, 10, 40]
    """
    shares = [1] * len(wants)
    left, order = total, sorted(range(len(wants)), key=lambda i: (wants[i] is None, wants[i] or 0))
    for rank, task in enumerate(order):
        equal = left // (len(order) - rank)
        want = wants[task]
        shares[task] = max(1, equal if want is None else min(want, equal))
        left = max(0, left - shares[task])
    return shares
