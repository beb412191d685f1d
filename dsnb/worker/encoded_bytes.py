"""Charges cached encodings of frames to the task that holds the frames."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol


class EncodedBytesAccount(Protocol):
    """The part of a task that accounts for cached encodings."""

    def reserve_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Charge a cached encoding of the frame that begins at `index`; False if it must not be kept."""
        ...


def encoded_bytes_callback(task: EncodedBytesAccount, index: int) -> Callable[[int], bool]:
    """Return a function that charges `nbytes` for a cached encoding of a frame; False if it must not be kept.

    Args:
        task: The task that holds the frame.
        index: The index of the frame's first element.
    """
    kept = weakref.ref(task)  # the frame holds this function and the task holds the frame: avoid a reference cycle

    def reserve(nbytes: int) -> bool:
        found = kept()
        return found is not None and found.reserve_encoded_bytes(index, nbytes)

    return reserve
