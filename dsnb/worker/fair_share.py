"""Divides the bytes of a worker's cross-trainer cache among its tasks. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def fair_share(total: int, wants: Sequence[int | None]) -> list[int]:
    """Divide bytes among tasks: a task that wants less than an equal share gets that, and the others share the rest.

    Args:
        total: Bytes to divide.
        wants: For each task, how many bytes it can use; None for as many as possible.

    Returns:
        Bytes for each task: at least 1 each, and at most `total` in all (unless `total` is less than 1 for each).

    Example:
        >>> fair_share(90, [None, 10, None])
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
