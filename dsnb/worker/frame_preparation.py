"""Steps between a task's producer and its readers' sinks: memory to lay out elements in, and preparation of frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsnb.elements.frame import Array, Frame
from dsnb.transfer.protocol import FrameSlice, Sink
from dsnb.wire.messages import TaskOrder


def keeps_frames(order: TaskOrder) -> bool:
    """Whether a task keeps its frames for other readers after their elements were sent to one."""
    return order.cached or order.num_consumers > 0


def allocate_in_one(sinks: Iterable[Sink], nbytes: int) -> Array | None:
    """Memory for `nbytes` bytes that one of the readers can see; None if no sink offers any.

    Args:
        sinks: The sinks of the readers.
        nbytes: The element's size.
    """
    return next((memory for sink in sinks if (memory := sink.allocate(nbytes)) is not None), None)


def prepare_frames(sinks: Iterable[Sink], frames: Sequence[Frame], index: int, incarnation: int) -> None:
    """Let sinks do slow work for frames that may be delivered soon; call it without the task's lock.

    Args:
        sinks: The sinks of the readers.
        frames: Consecutive frames.
        index: The index of the first frame's first element.
        incarnation: The task's incarnation.
    """
    pieces = []
    for frame in frames:
        pieces.append(FrameSlice(frame, index, 0, frame.count, incarnation))
        index += frame.count
    for sink in sinks:
        for piece in pieces:
            sink.prepare(piece)
