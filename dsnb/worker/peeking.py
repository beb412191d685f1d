"""What a page that peeks shows: the newest elements of a task as short texts and small pictures.

Only references to frames are taken under the task's lock. Elements are built and drawn one at a time, on the thread of
the call, so that no reader waits for it and no more than one element is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from dsnb.arguments import short_repr
from dsnb.elements.failure import Failure
from dsnb.elements.frame import Frame
from dsnb.pipeline.peeked_element import Leaf, PeekedElement, thumbnail
from dsnb.wire.messages import ElementPreview, LeafPreview, PeekReply
from dsnb.worker.task import Task

MOST_ELEMENTS: Final = 4
MOST_BYTES: Final = 256 << 10
"""Most bytes of a reply: thumbnails that do not fit are left out."""

_WAIT_S: Final = 2.0
"""How long to wait for an element if readers take each one as soon as it is produced."""
_MOST_LEAVES: Final = 32
_MOST_ELEMENT_BYTES: Final = 64 << 20
"""Larger elements are not shown: the range of so many values takes time that the pipeline needs."""
_MOST_CHARS: Final = 60
_MOST_TEXT_BYTES: Final = 4 * 4 * _MOST_CHARS
"""Of one leaf: four texts, in which a character takes up to four bytes."""
_MOST_ERROR_CHARS: Final = 300


def peek(task: Task) -> PeekReply:
    """The newest elements of a task, the newest first; nothing is taken from any reader.

    If none is in memory, those that are produced next; none if none is produced within two seconds.
    """
    room = MOST_BYTES // MOST_ELEMENTS
    frames = task.newest_frames(MOST_ELEMENTS, _WAIT_S)
    return PeekReply(elements=tuple(_preview(index, frame, at, room) for index, frame, at in _newest(frames)))


def _newest(frames: Sequence[tuple[int, Frame]]) -> Iterator[tuple[int, Frame, int]]:
    """The index of each element that is shown, with its frame and its place in the frame."""
    found = ((first + at, frame, at) for first, frame in frames for at in reversed(range(frame.count)))
    return (place for _, place in zip(range(MOST_ELEMENTS), found, strict=False))


def _preview(index: int, frame: Frame, at: int, room: int) -> ElementPreview:
    if frame.failure is not None:
        return ElementPreview(index=index, error=_failure_text(frame.failure))
    nbytes = frame.nbytes // frame.count
    if nbytes > _MOST_ELEMENT_BYTES:
        return ElementPreview(index=index, error=f"it has {nbytes >> 20} MiB, which is too large to be shown")
    try:
        with np.errstate(all="ignore"):  # infinite values have no range that a picture could show
            leaves = PeekedElement(frame.elements(at, at + 1)[0]).leaves
            previews = tuple(_previews(leaves[:_MOST_LEAVES], room))
    except Exception as error:  # noqa: BLE001 - values of any type may raise anything while they are drawn
        return ElementPreview(index=index, error=f"it cannot be shown: {short_repr(error)}")
    return ElementPreview(index=index, leaves=previews, more_leaves=len(leaves) - len(previews))


def _previews(leaves: Sequence[Leaf], room: int) -> Iterator[LeafPreview]:
    room -= _MOST_TEXT_BYTES * len(leaves)
    for leaf in leaves:
        png = thumbnail(leaf.value)
        png = png if len(png) <= room else b""
        room -= len(png)
        yield LeafPreview(
            path=_shorten(leaf.path),
            shape=_shorten(str(leaf.shape)),
            dtype=_shorten(leaf.dtype),
            values=_shorten(leaf.values),
            thumbnail=png,
        )


def _failure_text(failure: Failure) -> str:
    what = ": ".join(part for part in (failure.kind, *failure.message.strip().splitlines()[:1]) if part)
    return _shorten(f"an error is in its place: {what}", _MOST_ERROR_CHARS)


def _shorten(text: str, most: int = _MOST_CHARS) -> str:
    valid = text.encode(errors="replace").decode()  # names of leaves may hold what UTF-8 cannot
    return valid if len(valid) <= most else f"{valid[: most - 1]}…"
