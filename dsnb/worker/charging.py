"""Counting what a transfer keeps beside a frame of a task."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol


class Charged(Protocol):
    """A task, as far as it counts what is kept."""

    def charge(self, index: int, nbytes: int) -> bool:
        """Count what is kept beside the frame that begins there, if it may be."""
        ...


def charger(task: Charged, index: int) -> Callable[[int], bool]:
    """Counts what is kept beside a frame, if it may be. It does not keep the task, which keeps the frame."""
    kept = weakref.ref(task)

    def charge(nbytes: int) -> bool:
        found = kept()
        return found is not None and found.charge(index, nbytes)

    return charge
