"""What is done with a task's frames before its readers get them: memory for elements, frames written there, or kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsnb.elements.frame import Array, Frame
from dsnb.wire.messages import TaskOrder
from dsnb.wire.transfer.protocol import FrameSlice, Sink


def keeps_frames(order: TaskOrder) -> bool:
    """Whether a task's frames stay for other readers when their elements have been handed out to one."""
    return order.cached or order.num_consumers > 0


def allocate_in_one(sinks: Iterable[Sink], nbytes: int) -> Array | None:
    """Where one of the readers would see an element of so many bytes; None if that holds for no place."""
    return next((memory for sink in sinks if (memory := sink.allocate(nbytes)) is not None), None)


def prepare_frames(sinks: Iterable[Sink], frames: Sequence[Frame], index: int, incarnation: int) -> None:
    """Have readers do what takes long before frames that may be delivered soon; not under the task's lock.

    Args:
        sinks: The readers'.
        frames: Consecutive ones.
        index: Place of the first one in the task's sequence.
        incarnation: The task's.
    """
    pieces = []
    for frame in frames:
        pieces.append(FrameSlice(frame, index, 0, frame.count, incarnation))
        index += frame.count
    for sink in sinks:
        for piece in pieces:
            sink.prepare(piece)
