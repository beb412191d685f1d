"""The hash of one element, as readers compute it."""

from __future__ import annotations

from typing import Any

from dsnb.elements.content_digest import frame_hashes
from dsnb.elements.frame import Frame, frames_of


def element_hash(element: Any) -> int:
    """The hash of an element that is alone in its frame.

    Example:
        >>> element_hash(1) == element_hash(1) != element_hash(2)
        True
    """
    frame = next(frames_of([element], None))
    assert isinstance(frame, Frame)
    return frame_hashes(frame, 0, 1)[0]
