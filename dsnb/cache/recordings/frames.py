"""Frames in the form that recordings keep: merged from small ones, encoded with a header, and decoded as views.

An encoded frame is `magic, length of the header, header, padding, body`. The header is JSON; the body is what
`elements/columns` lays out, and starts at a multiple of 64 bytes. Large elements are views of the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import xxhash

from dsnb.elements.columns import (
    COPY_BELOW,
    Buffer,
    Column,
    Dense,
    Layout,
    Ragged,
    Text,
    check_layouts,
    column_from,
    lay_out,
)
from dsnb.elements.frame import Frame, frames_of
from dsnb.elements.structure import LEAF, Structure, elements_of, structure_from_json, structure_to_json
from dsnb.errors import DataLossError

FRAME_BYTES: Final = 2 << 20
"""The target size of merged frames; reading is fastest between 1 and 4 MB."""

_MAGIC: Final = b"dsnbfrm1"
_ALIGN: Final = 64

Run = list[Any] | np.ndarray[Any, Any]


def frames_from_run(run: Run) -> list[Frame]:
    """Lay a run of exclusive elements out for keeping; elements of different dtypes or ranks go into different frames.

    Raises:
        Exception: the error of the run's first element, if it cannot be held by any frame.
    """
    parts: list[Frame] = []
    # An element that no frame can hold ends the loop; the run is then halved until that element is alone and can raise.
    for part in frames_of(run, None, packed=True):
        if isinstance(part, Frame):
            part.make_shared()
            parts.append(part)
        elif len(run) == 1:
            raise part
        else:
            break
    if sum(part.count for part in parts) == len(run):
        return parts
    middle = len(run) // 2
    first = frames_from_run(run[:middle])
    return [*first, *frames_from_run(run[middle:])]


def elements_for_reader(frame: Frame, start: int, stop: int, *, copied_later: bool = False) -> Run:
    """The elements from `start` up to `stop`, exclusive to one reader; views of the frame if `copied_later`.

    All elements of a shared frame are copied. Of a frame that was read for this reader alone, small elements are
    copied, so that an element that is kept does not keep the whole frame in memory. Mutable structures (lists, dicts)
    are built separately for each reader.
    """
    if copied_later:
        return rows(frame, start, stop)
    columns = [
        column.copies(start, stop) if frame.is_shared or _is_small(column, frame.count) else column.rows(start, stop)
        for column in frame.columns
    ]
    if frame.structure is LEAF or frame.structure == LEAF:
        return list(columns[0])
    return list(elements_of(frame.structure, iter(columns), stop - start))


def _is_small(column: Column, count: int) -> bool:
    return isinstance(column, Dense) and column.nbytes < COPY_BELOW * count


def rows(frame: Frame, start: int, stop: int) -> Run:
    """The elements from `start` up to `stop`, as views; one array if they are rows of one array."""
    columns = [column.values[start:stop] for column in frame.columns]
    if frame.structure is LEAF or frame.structure == LEAF:
        (values,) = columns
        return values if isinstance(values, np.ndarray) else list(values)
    # `list` makes the views of an array's rows all at once; `zip` would make them one by one.
    return list(elements_of(frame.structure, map(list, columns), stop - start))


def merge_small_frames(frames: Iterable[Frame], max_bytes: int = FRAME_BYTES) -> list[Frame]:
    """Merge small frames of equal structure and dtypes into larger ones; copies only dense arrays."""
    done: list[Frame] = []
    similar: list[Frame] = []
    nbytes = 0
    for frame in frames:
        if similar and (nbytes >= max_bytes or not _can_merge(similar[0], frame)):
            done.append(_merge(similar))
            similar, nbytes = [], 0
        similar.append(frame)
        nbytes += frame.nbytes
    return [*done, _merge(similar)] if similar else done


def _can_merge(first: Frame, second: Frame) -> bool:
    return first.structure == second.structure and all(
        type(mine) is type(its) and mine.dtype == its.dtype and _shape_or_rank(mine) == _shape_or_rank(its)
        for mine, its in zip(first.columns, second.columns, strict=True)
    )


def _shape_or_rank(column: Column) -> object:
    return column.shape if isinstance(column, Dense) else column.rank if isinstance(column, Ragged) else None


def _merge(frames: Sequence[Frame]) -> Frame:
    if len(frames) == 1:
        return frames[0]
    columns = [_merge_columns(parts) for parts in zip(*(frame.columns for frame in frames), strict=True)]
    frame = Frame(frames[0].structure, columns, sum(frame.count for frame in frames))
    frame.make_shared()
    return frame


def _merge_columns(parts: Sequence[Any]) -> Column:
    first = parts[0]
    if isinstance(first, Dense):
        return Dense(first.dtype, first.shape, _merge_values(parts))
    values = [value for part in parts for value in part.values]
    if isinstance(first, Ragged):
        return Ragged(first.dtype, first.rank, values)
    return Text(first.dtype, values, sum(part.nbytes for part in parts))


def _merge_values(parts: Sequence[Dense]) -> Sequence[Any] | np.ndarray[Any, Any]:
    arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
    if len(arrays) < len(parts):
        return [value for part in parts for value in part.values]
    merged = np.concatenate(arrays)
    merged.flags.writeable = False
    return merged


def encode_frame(frame: Frame) -> tuple[list[Buffer], int, str]:
    """Encode a frame: the buffers to write one after another, their total length in bytes, and their digest."""
    layouts, buffers, total = lay_out(frame.columns, 0, frame.count)
    header = json.dumps(
        [frame.count, structure_to_json(frame.structure), layouts, total], separators=(",", ":")
    ).encode()
    head = _MAGIC + len(header).to_bytes(4, "little") + header
    head += bytes(-len(head) % _ALIGN)
    parts: list[Any] = [head, *map(_flat, buffers)]
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return parts, len(head) + total, digest.hexdigest()


def _flat(buffer: Buffer) -> memoryview:
    # Scalars of records and dates do not export a writable buffer; an array of them does.
    if isinstance(buffer, (np.generic, np.ndarray)):
        buffer = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def digest_of(data: np.ndarray[Any, Any]) -> str:
    """The digest of an encoded frame; equal to that of `encode_frame` if the bytes are undamaged."""
    return xxhash.xxh3_128_hexdigest(data.data)


def decode_frame(data: np.ndarray[Any, Any]) -> Frame:
    """Decode a frame that `encode_frame` wrote, as views of `data` (uint8, read-only).

    Raises:
        DataLossError: the bytes are not a valid frame.
    """
    try:
        return _decode(data)
    except DataLossError:
        raise
    except Exception as error:  # damage may raise any error anywhere in the decoder
        raise DataLossError("a frame is damaged") from error


def _decode(data: np.ndarray[Any, Any]) -> Frame:
    start = len(_MAGIC) + 4
    length = int.from_bytes(data[len(_MAGIC) : start].tobytes(), "little")
    if data[: len(_MAGIC)].tobytes() != _MAGIC or start + length > len(data):
        raise DataLossError("a frame is damaged")
    count, structure, layouts, total = _header(data[start : start + length].tobytes())
    body = data[start + length + -(start + length) % _ALIGN :]
    if len(body) != total:
        raise DataLossError("a frame is damaged")
    return Frame(structure, [column_from(layout, body, count) for layout in layouts], count)


@lru_cache(maxsize=64)
def _header(text: bytes) -> tuple[int, Structure, tuple[Layout, ...], int]:
    """The number of elements, structure, layouts and body length. Cached: most frames of a recording have the same."""
    count, structure, columns, total = json.loads(text)
    layouts = tuple(_layout(column) for column in columns)
    if check_layouts(layouts, count) != total:
        raise DataLossError("a frame is damaged")
    return count, structure_from_json(structure), layouts, total


def _layout(column: Sequence[Any]) -> Layout:
    dtype, shape, ragged, offset, nbytes = column
    return Layout(dtype, tuple(shape), ragged, offset, nbytes)


def nbytes_of(frames: Iterable[Frame]) -> int:
    """The bytes of all leaves of some frames."""
    return sum(frame.nbytes for frame in frames)
