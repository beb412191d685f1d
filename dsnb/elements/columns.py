"""Columns: the values of one leaf over a run of elements, laid out for transfer.

A `Dense` column holds values of one shape and dtype; a `Ragged` one arrays whose sizes differ; a `Text` one `bytes` or
`str` of any length. A column is made in two ways: from a list of values (on the worker that produced them; nothing is
copied before encoding), or from the buffer of a received frame (nothing is copied before a value is read).

`rows` returns the values of a frame with one reader: references if they were made in this process, otherwise copies of
small values and views of large ones. `copies` returns values that no other reader of the frame shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dsnb.elements.copying import BLOCK_BYTES, copy_record, copy_rows, read_only_copy
from dsnb.elements.leaf_errors import invalid_leaf_error, is_masked
from dsnb.elements.spec import BYTES, STR, TensorSpec, dtype_from_text, dtype_to_text
from dsnb.elements.structure import StructureMismatch
from dsnb.errors import DataLossError

Array = np.ndarray[Any, Any]
Buffer = Any  # any object that exports contiguous memory: bytes, memoryview, arrays, NumPy scalars

COPY_BELOW = BLOCK_BYTES
"""Readers get values smaller than this as copies, so that keeping one sample does not keep a whole frame in memory."""

_ALIGN = 16
_MAX_BUFFERS = 16
"""Up to this many buffers, joining them costs more than handling each one."""


class Layout(NamedTuple):  # a named tuple is cheap to make, hash and compare, which happens for each frame
    """Where one column lies in a frame's body, and its dtype and shape; sent in the frame's header."""

    dtype: str
    shape: tuple[int, ...]
    ragged: bool
    offset: int
    nbytes: int


class Dense(msgspec.Struct):
    """Values of one shape and dtype; `values` is a list of arrays or scalars, or one array of all."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    values: Sequence[Any] | Array

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for dim in self.shape:
            size *= dim
        return size * len(self.values)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def rows(self, start: int, stop: int) -> Sequence[Any]:
        part = self.values[start:stop]
        if not isinstance(part, np.ndarray):
            return part
        rows = list(part)
        if part.nbytes >= COPY_BELOW * len(rows):
            return rows
        if self.shape:
            return _small_copies(rows)
        return list(map(copy_record, rows)) if self.dtype.names else rows

    def copies(self, start: int, stop: int) -> Sequence[Any]:
        part = self.values[start:stop]
        if isinstance(part, np.ndarray):
            return copy_rows(part)
        return list(map(read_only_copy, part)) if self.shape else part

    def buffers(self, start: int, stop: int) -> list[Buffer]:
        part = self.values[start:stop]
        if isinstance(part, np.ndarray):
            return [np.ascontiguousarray(part)]
        return [value for value in part if value.nbytes] if self.shape else list(part)

    def layout(self, start: int, stop: int, offset: int) -> Layout:
        nbytes = self.nbytes // len(self.values) * (stop - start) if len(self.values) else 0
        return Layout(dtype_to_text(self.dtype), self.shape, False, offset, nbytes)


class Ragged(msgspec.Struct):
    """Arrays of one dtype and rank whose sizes differ from element to element."""

    dtype: np.dtype[Any]
    rank: int
    values: Sequence[Array]

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values)

    @property
    def spec(self) -> TensorSpec:
        shapes = [value.shape for value in self.values]
        dims = [{shape[axis] for shape in shapes} for axis in range(self.rank)]
        return TensorSpec([next(iter(sizes)) if len(sizes) == 1 else None for sizes in dims], self.dtype)

    def rows(self, start: int, stop: int) -> Sequence[Any]:
        return [read_only_copy(value) if _is_small_view(value) else value for value in self.values[start:stop]]

    def copies(self, start: int, stop: int) -> Sequence[Any]:
        return list(map(read_only_copy, self.values[start:stop]))

    def buffers(self, start: int, stop: int) -> list[Buffer]:
        part = self.values[start:stop]
        shapes = np.array([value.shape for value in part], np.int64)
        return [_padded(shapes), *(np.ascontiguousarray(value) for value in part if value.nbytes)]

    def layout(self, start: int, stop: int, offset: int) -> Layout:
        data = sum(value.nbytes for value in self.values[start:stop])
        table = aligned(8 * self.rank * (stop - start))
        return Layout(dtype_to_text(self.dtype), (self.rank,), True, offset, table + data)


class Text(msgspec.Struct):
    """`bytes` or `str` of any length."""

    dtype: np.dtype[Any]
    values: Sequence[Any]
    nbytes: int

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((), self.dtype)

    @property
    def rank(self) -> int:
        return 0

    def rows(self, start: int, stop: int) -> Sequence[Any]:
        return self.values[start:stop]

    copies = rows  # text cannot be written to

    def buffers(self, start: int, stop: int) -> list[Buffer]:
        encoded = self.encoded(start, stop)
        return [_padded(np.array([len(value) for value in encoded], np.int64)), *encoded]

    def layout(self, start: int, stop: int, offset: int) -> Layout:
        data = sum(map(len, self.encoded(start, stop)))
        return Layout(self.dtype.str, (), True, offset, aligned(8 * (stop - start)) + data)

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """The bytes of the values; `str` as UTF-8."""
        part = self.values[start:stop]
        return [value.encode("utf-8", "surrogatepass") for value in part] if self.dtype == STR else list(part)


Column = Dense | Ragged | Text

_PYTHON_NUMBERS: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


def column_of(values: Sequence[Any], packed: bool = False) -> Column:
    """The column of one leaf over a run of elements.

    Args:
        values: The leaf's value in each element.
        packed: Whether to move numbers into one array; as objects they take five times as many bytes.

    Raises:
        StructureMismatch: a value's dtype or rank differs from that of the first; the error has its index.
        InvalidArgumentError: a value is not a valid leaf.
    """
    types = set(map(type, values))
    if len(types) == 1:
        cls = next(iter(types))
        if cls is np.ndarray:
            return _array_column(values)
        if cls in _PYTHON_NUMBERS:
            return _number_column(values, _PYTHON_NUMBERS[cls])
        # The class np.timedelta64 ("m") does not fix the unit, so equal classes do not imply equal dtypes.
        if issubclass(cls, (np.number, np.bool_)) and values[0].dtype.kind != "m":
            dtype = values[0].dtype
            return Dense(dtype, (), np.frombuffer(b"".join(values), dtype) if packed else values)
    # NumPy's text scalars too: the width of each one's dtype is its own length, so a run has no common dtype.
    for kind, dtype in ((str, STR), (bytes, BYTES)):
        if all(issubclass(cls, kind) for cls in types):
            return Text(dtype, values, sum(map(len, values)))
    return _array_column([plain_array(value) for value in values])


def compatible_dtypes(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Whether values of both dtypes may be part of one stream: equal dtypes, or text of any two widths."""
    return first == second or (first.kind == second.kind and first.kind in "SU")


def _number_column(values: Sequence[Any], dtype: np.dtype[Any]) -> Column:
    try:
        return Dense(dtype, (), np.array(values, dtype))
    except OverflowError as error:
        raise invalid_leaf_error(max(values, key=abs), "it has more than 64 bits") from error


def _array_column(arrays: Sequence[Array]) -> Column:
    first = arrays[0]
    dtypes, shapes = set(map(attrgetter("dtype"), arrays)), set(map(attrgetter("shape"), arrays))
    if not all(compatible_dtypes(dtype, first.dtype) for dtype in dtypes) or len(set(map(len, shapes))) > 1:
        raise StructureMismatch(
            next(i for i, a in enumerate(arrays) if not compatible_dtypes(a.dtype, first.dtype) or a.ndim != first.ndim)
        )
    if first.dtype.hasobject:
        raise invalid_leaf_error(first)
    for array in arrays:
        # Readers in this process get references. `setflags` takes a third of the time of `flags.writeable = False`.
        array.setflags(write=False)
    if len(dtypes) > 1:  # text of several widths: use the widest
        widest = np.result_type(*dtypes)
        arrays = [array.astype(widest) for array in arrays]
        first = arrays[0]
    if len(shapes) == 1:
        # Scalars such as dates, fixed-width strings and records export no buffer; one array of all of them does.
        return Dense(first.dtype, first.shape, arrays if first.shape else np.array(arrays, first.dtype))
    return Ragged(first.dtype, first.ndim, arrays)


def plain_array(value: Any) -> Array:
    """A leaf as a plain `np.ndarray`, never a subclass; shares the memory of a leaf that is an array already.

    Raises:
        InvalidArgumentError: the value is not a valid leaf.
    """
    if is_masked(value):
        raise invalid_leaf_error(value)
    try:
        array = np.asarray(value)
    except Exception as error:
        # Arrays of other libraries may raise anything here, e.g. a tensor on a device or one that requires a gradient.
        raise invalid_leaf_error(value, str(error)) from error
    if array.dtype.hasobject:
        raise invalid_leaf_error(value)
    return array


def column_from(layout: Layout, body: Array, count: int) -> Column:
    """The column at `layout` in a received body; its values are read-only views of the body.

    The layouts must have passed `check_layouts`.

    Raises:
        DataLossError: the column's table of sizes does not match its data.
    """
    dtype = dtype_from_text(layout.dtype)
    part = body[layout.offset : layout.offset + layout.nbytes]
    if not layout.ragged:
        shape = (count, *layout.shape)
        return Dense(dtype, layout.shape, part.view(dtype).reshape(shape) if part.size else np.zeros(shape, dtype))
    if dtype in (BYTES, STR):
        return _text_from(dtype, part, count)
    rank = layout.shape[0]
    head = 8 * rank * count
    shapes = part[:head].view(np.int64).reshape(count, rank).tolist()
    if not dtype.itemsize:
        return Ragged(dtype, rank, [np.zeros(shape, dtype) for shape in shapes])
    data = part[aligned(head) :].view(dtype)
    ends = _ends([math.prod(shape) for shape in shapes], len(data))
    return Ragged(dtype, rank, [data[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)])


def _text_from(dtype: np.dtype[Any], part: Array, count: int) -> Text:
    data = part[aligned(8 * count) :].tobytes()
    ends = _ends(part[: 8 * count].view(np.int64).tolist(), len(data))
    values: list[Any] = [data[a:b] for a, b in pairwise(ends)]
    if dtype == STR:
        values = [value.decode("utf-8", "surrogatepass") for value in values]
    return Text(dtype, values, len(data))


def _ends(sizes: Sequence[int], total: int) -> list[int]:
    """Where each value begins, and where the last one ends. Checked, because Python silently cuts slices too long."""
    ends = [0, *accumulate(sizes)]
    if min(sizes, default=0) < 0 or ends[-1] != total:
        raise _damaged_frame_error()
    return ends


def check_layouts(layouts: Sequence[Layout], count: int) -> int:
    """The length of the body that these layouts describe.

    Raises:
        DataLossError: `lay_out` makes no such layouts for `count` elements.
    """
    end = 0
    for layout in layouts:
        if layout.offset != aligned(end) or not _size_fits(layout, count):
            raise _damaged_frame_error()
        end = layout.offset + layout.nbytes
    return end


def _size_fits(layout: Layout, count: int) -> bool:
    if min(layout.shape, default=0) < 0:
        return False
    if layout.ragged:
        return layout.nbytes >= aligned(8 * count * math.prod(layout.shape))
    return layout.nbytes == dtype_from_text(layout.dtype).itemsize * count * math.prod(layout.shape)


def _damaged_frame_error() -> DataLossError:
    return DataLossError("a damaged frame arrived", did="the read was broken off")


def _small_copies(rows: list[Array]) -> list[Array]:
    copies = [row.copy() for row in rows]
    # `setflags` takes a quarter of the time of `flags.writeable`; a second loop is faster than doing both in one.
    for copy in copies:
        copy.setflags(write=False)
    return copies


def _is_small_view(value: Array) -> bool:
    return value.base is not None and value.nbytes < COPY_BELOW


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the next offset at which a column may begin, a multiple of 16."""
    return -(-nbytes // _ALIGN) * _ALIGN


def _padded(table: Array) -> bytes:
    return table.tobytes().ljust(aligned(table.nbytes), b"\0")


def lay_out(columns: Sequence[Column], start: int, stop: int) -> tuple[list[Layout], list[Buffer], int]:
    """Lay out columns one after another, each at a multiple of 16: layouts, buffers to join, length of the body."""
    layouts: list[Layout] = []
    buffers: list[Buffer] = []
    offset = 0
    for column in columns:
        gap = aligned(offset) - offset
        if gap:
            buffers.append(bytes(gap))
        layout = column.layout(start, stop, offset + gap)
        layouts.append(layout)
        buffers += column.buffers(start, stop)
        offset = layout.offset + layout.nbytes  # computed by `layout`, not measured: both must agree on the padding
    return layouts, buffers, offset


def bytes_of(buffer: Buffer) -> memoryview:
    """A buffer's bytes, copied only if they are not contiguous; also accepts scalars of dates and records."""
    if isinstance(buffer, (np.ndarray, np.generic)):
        buffer = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return memoryview(buffer).cast("B")


def join_bytes(buffers: Sequence[Buffer]) -> bytes:
    """The bytes of several buffers, copied once."""
    try:
        return b"".join(buffers)
    except (BufferError, TypeError, ValueError):  # one of them is not contiguous, or exports no buffer
        return b"".join(map(bytes_of, buffers))


def coalesce_buffers(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """The same bytes in few buffers, for code that pays for each buffer: more than `_MAX_BUFFERS` are joined."""
    return buffers if len(buffers) <= _MAX_BUFFERS else [join_bytes(buffers)]
