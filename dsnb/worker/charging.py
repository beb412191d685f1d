"""Counting what a transfer keeps beside a frame of a task."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol


class EncodedBytesAccount(Protocol):
    """A task, as far as it counts what is kept."""

    def reserve_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Count what is kept beside the frame that begins there, if it may be."""
        ...


def encoded_bytes_callback(task: EncodedBytesAccount, index: int) -> Callable[[int], bool]:
    """Counts what is kept beside a frame, if it may be. It does not keep the task, which keeps the frame."""
    kept = weakref.ref(task)

    def reserve(nbytes: int) -> bool:
        found = kept()
        return found is not None and found.reserve_encoded_bytes(index, nbytes)

    return reserve
