"""What a frame's header says, written and read; and pieces for transfers that carry the body apart from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.elements.columns import Layout, check_layouts, column_from, lay_out
from dsnb.elements.failure import Failure
from dsnb.elements.frame import Frame
from dsnb.elements.structure import Structure, from_json, to_json
from dsnb.errors import DataLossError, FailedPreconditionError
from dsnb.limits import explained
from dsnb.wire.proto import frame_pb2
from dsnb.wire.transfer.handover import Piece

Body = np.ndarray[Any, np.dtype[np.uint8]]

_FORMS = 64
"""Heads that are kept: most elements of a task are of a few forms."""
_USUAL_BYTES = 4096
"""Longer heads are not kept: an error's, for instance."""


def header_of(task_id: str, piece: Piece, layouts: Sequence[Layout]) -> frame_pb2.FrameHeader:
    """The header of a piece whose body is laid out so."""
    header = frame_pb2.FrameHeader(
        task_id=task_id,
        incarnation=piece.incarnation,
        first=piece.index,
        count=piece.count,
        structure=to_json(piece.frame.structure),
        columns=_columns(layouts),
    )
    failure = piece.frame.failure
    if failure is not None:
        header.failure.kind, header.failure.message = failure.kind, failure.message
        header.failure.traceback, header.failure.pickled = failure.traceback, failure.pickled
        header.failure.notes.extend(failure.notes)
    return header


def _columns(layouts: Sequence[Layout]) -> list[frame_pb2.Column]:
    return [
        frame_pb2.Column(dtype=x.dtype, shape=x.shape, ragged=x.ragged, offset=x.offset, nbytes=x.nbytes)
        for x in layouts
    ]


def check(head: frame_pb2.ReadReply) -> None:
    """Find damage before memory is asked for: what the header says must fit together."""
    header = head.header
    leaves = 0 if header.HasField("failure") else from_json(header.structure).leaves
    if not header.count or len(header.columns) != leaves or check_layouts(_layouts(header), header.count) != head.total:
        raise damaged()


def damaged(how: str = "") -> DataLossError:
    """What is raised for a message that is not what a worker sends."""
    return DataLossError("a damaged message arrived" + (f": {how}" if how else ""), did="the read was broken off")


def _layouts(header: frame_pb2.FrameHeader) -> list[Layout]:
    return [Layout(c.dtype, tuple(c.shape), c.ragged, c.offset, c.nbytes) for c in header.columns]


def _form(header: frame_pb2.FrameHeader, total: int) -> _Form:
    failure = None
    if header.HasField("failure"):
        f = header.failure
        failure = Failure(f.kind, f.message, f.traceback, f.pickled, tuple(f.notes))
    structure = from_json(header.structure)
    return _Form(structure, _layouts(header), header.count, header.incarnation, total, failure)


def piece_of(header: frame_pb2.FrameHeader, body: Body) -> Piece:
    """The piece that a header and its body make."""
    return _form(header, len(body)).piece(header.first, body)


class Described(NamedTuple):
    """A piece for a transfer that carries its body apart: what it is, how its body lies, and the body's buffers."""

    head: bytes
    layouts: Sequence[Layout]
    buffers: list[Any]
    nbytes: int


def describe(task_id: str, piece: Piece) -> Described:
    """Take a piece apart. Its place is not in the head, so that the heads of pieces of one form are the same."""
    frame = piece.frame
    layouts, buffers, total = lay_out(frame.columns, piece.start, piece.start + piece.count)
    if frame.failure is not None:
        reply = frame_pb2.ReadReply(header=header_of(task_id, replace(piece, index=0), layouts), total=total)
        return Described(reply.SerializeToString(), layouts, buffers, total)
    head = _usual_head(task_id, piece.incarnation, piece.count, to_json(frame.structure), tuple(layouts), total)
    return Described(head, layouts, buffers, total)


@lru_cache(maxsize=_FORMS)
def _usual_head(
    task_id: str, incarnation: int, count: int, structure: str, layouts: tuple[Layout, ...], total: int
) -> bytes:
    header = frame_pb2.FrameHeader(
        task_id=task_id, incarnation=incarnation, count=count, structure=structure, columns=_columns(layouts)
    )
    return frame_pb2.ReadReply(header=header, total=total).SerializeToString()


@dataclass(frozen=True, slots=True)
class _Form:
    """What a head says."""

    structure: Structure
    layouts: Sequence[Layout]
    count: int
    incarnation: int
    total: int
    failure: Failure | None

    def piece(self, index: int, body: Body) -> Piece:
        columns = [column_from(layout, body, self.count) for layout in self.layouts]
        return Piece(Frame(self.structure, columns, self.count, self.failure), index, 0, self.count, self.incarnation)


def restore(head: bytes, index: int, body: Body) -> Piece:
    """The piece that `describe` took apart, at its place.

    Raises:
        DataLossError: the two do not fit together.
        FailedPreconditionError: its elements have a dtype that needs a package which is not here.
    """
    try:
        form = _usual_form(head) if len(head) < _USUAL_BYTES else _read_form(head)
        if form.total != len(body):
            raise damaged()
        return form.piece(index, body)
    except (DataLossError, FailedPreconditionError):
        raise
    except Exception as error:  # damage can show anywhere in what reads it
        raise explained(error) or damaged() from error


def _read_form(head: bytes) -> _Form:
    reply = frame_pb2.ReadReply.FromString(head)
    check(reply)
    return _form(reply.header, reply.total)


_usual_form = lru_cache(maxsize=_FORMS)(_read_form)
