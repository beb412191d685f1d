"""Encodes and decodes headers of frame slices, and slices for transfers that send header and body separately."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from dsnb.elements.columns import Layout, check_layouts, column_from, lay_out
from dsnb.elements.failure import Failure
from dsnb.elements.frame import Frame
from dsnb.elements.structure import Structure, structure_from_json, structure_to_json
from dsnb.errors import DataLossError, FailedPreconditionError
from dsnb.system_limits import limit_error
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.proto import frame_pb2

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

_CACHED_HEADERS = 64
"""How many headers are cached: most elements of a task have one of a few layouts."""
_MAX_CACHED_HEADER_BYTES = 4096
"""Longer headers are not cached, for example those of errors."""


def header_of(task_id: str, frame_slice: FrameSlice, layouts: Sequence[Layout]) -> frame_pb2.FrameHeader:
    """The header of a frame slice whose body has these layouts."""
    header = frame_pb2.FrameHeader(
        task_id=task_id,
        incarnation=frame_slice.incarnation,
        first=frame_slice.index,
        count=frame_slice.count,
        structure=structure_to_json(frame_slice.frame.structure),
        columns=_columns(layouts),
    )
    failure = frame_slice.frame.failure
    if failure is not None:
        header.failure.kind, header.failure.message = failure.kind, failure.message
        header.failure.traceback, header.failure.pickled = failure.traceback, failure.pickled
        header.failure.notes.extend(failure.notes)
    return header


def _columns(layouts: Sequence[Layout]) -> list[frame_pb2.Column]:
    return [frame_pb2.Column(**layout._asdict()) for layout in layouts]


def check_header(message: frame_pb2.ReadReply) -> None:
    """Check that the parts of a header agree, before memory of the size it names is allocated."""
    header = message.header
    leaves = 0 if header.HasField("failure") else structure_from_json(header.structure).leaves
    if (
        not header.count
        or len(header.columns) != leaves
        or check_layouts(_layouts(header), header.count) != message.total
    ):
        raise damaged_message_error()


def damaged_message_error(how: str = "") -> DataLossError:
    """The error for a message that a worker cannot have sent."""
    return DataLossError("a damaged message arrived" + (f": {how}" if how else ""), did="the read was broken off")


def _layouts(header: frame_pb2.FrameHeader) -> list[Layout]:
    return [Layout(c.dtype, tuple(c.shape), c.ragged, c.offset, c.nbytes) for c in header.columns]


def _parse(header: frame_pb2.FrameHeader, total: int) -> _ParsedHeader:
    failure = None
    if header.HasField("failure"):
        f = header.failure
        failure = Failure(f.kind, f.message, f.traceback, f.pickled, tuple(f.notes))
    structure = structure_from_json(header.structure)
    return _ParsedHeader(structure, _layouts(header), header.count, header.incarnation, total, failure)


def frame_slice_of(header: frame_pb2.FrameHeader, body: ByteArray) -> FrameSlice:
    """The frame slice with this header and body."""
    return _parse(header, len(body)).frame_slice(header.first, body)


class EncodedSlice(NamedTuple):
    """A frame slice for transfers that send header and body separately; `nbytes` is the size of the body."""

    header: bytes
    layouts: Sequence[Layout]
    buffers: list[Any]
    nbytes: int


def encode_slice(task_id: str, frame_slice: FrameSlice) -> EncodedSlice:
    """Encode a frame slice. The header omits its index, so that slices with equal layouts have equal headers."""
    frame = frame_slice.frame
    layouts, buffers, total = lay_out(frame.columns, frame_slice.start, frame_slice.start + frame_slice.count)
    if frame.failure is not None:
        reply = frame_pb2.ReadReply(header=header_of(task_id, replace(frame_slice, index=0), layouts), total=total)
        return EncodedSlice(reply.SerializeToString(), layouts, buffers, total)
    head = _cached_header(
        task_id, frame_slice.incarnation, frame_slice.count, structure_to_json(frame.structure), tuple(layouts), total
    )
    return EncodedSlice(head, layouts, buffers, total)


@lru_cache(maxsize=_CACHED_HEADERS)
def _cached_header(
    task_id: str, incarnation: int, count: int, structure: str, layouts: tuple[Layout, ...], total: int
) -> bytes:
    header = frame_pb2.FrameHeader(
        task_id=task_id, incarnation=incarnation, count=count, structure=structure, columns=_columns(layouts)
    )
    return frame_pb2.ReadReply(header=header, total=total).SerializeToString()


class _ParsedHeader(msgspec.Struct, frozen=True):
    """The decoded content of a header."""

    structure: Structure
    layouts: Sequence[Layout]
    count: int
    incarnation: int
    total: int
    failure: Failure | None

    def frame_slice(self, index: int, body: ByteArray) -> FrameSlice:
        columns = [column_from(layout, body, self.count) for layout in self.layouts]
        return FrameSlice(
            Frame(self.structure, columns, self.count, self.failure), index, 0, self.count, self.incarnation
        )


def decode_slice(header: bytes, index: int, body: ByteArray) -> FrameSlice:
    """Decode a frame slice that `encode_slice` encoded; `index` is the index of its first element in the sequence.

    Raises:
        DataLossError: header and body do not fit together.
        FailedPreconditionError: its dtype needs a package that is not installed here.
    """
    try:
        form = _parse_header_cached(header) if len(header) < _MAX_CACHED_HEADER_BYTES else _parse_header(header)
        if form.total != len(body):
            raise damaged_message_error()
        return form.frame_slice(index, body)
    except (DataLossError, FailedPreconditionError):
        raise
    except Exception as error:  # damaged input can make any decoding step fail
        raise limit_error(error) or damaged_message_error() from error


def _parse_header(header: bytes) -> _ParsedHeader:
    reply = frame_pb2.ReadReply.FromString(header)
    check_header(reply)
    return _parse(reply.header, reply.total)


_parse_header_cached = lru_cache(maxsize=_CACHED_HEADERS)(_parse_header)
