"""A frame: a run of consecutive elements of one task, laid out for transfer. Immutable.

Ownership. The elements of a frame with a single reader are exclusive and are passed by reference. A frame with
`is_shared` set (in a log that several trainers read, or in a recording) has other readers, now or later, so each reader
gets copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

import numpy as np

from dsnb.elements.columns import (
    COPY_BELOW,
    Column,
    Dense,
    Layout,
    column_from,
    column_of,
    compatible_dtypes,
    join_bytes,
    lay_out,
)
from dsnb.elements.copying import IMMUTABLE, copy_rows
from dsnb.elements.failure import Failure
from dsnb.elements.spec import TensorSpec
from dsnb.elements.structure import (
    LEAF,
    Structure,
    StructureMismatch,
    columns_of,
    describe,
    elements_of,
    local_class_of,
    structure_of,
)
from dsnb.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]

LARGE_BYTES: Final = 2 << 20
"""From this size (bytes for each element) on, an array of a shared frame is mapped for each reader, not copied."""

_NBYTES = attrgetter("nbytes")
_DENSE = {Dense}


class SharedBuffer(Protocol):
    """A buffer that several readers use."""

    @property
    def base_array(self) -> Array:
        """The buffer as it was written. Elements for readers must not be views of it."""
        ...

    def private_view(self) -> Array:
        """A private copy-on-write mapping or a copy of the buffer: the caller's writes reach no other reader."""
        ...


class SharedBufferStore(Protocol):
    """A place to store buffers that several readers use."""

    def store(self, buffers: Sequence[Any], nbytes: int) -> SharedBuffer | None:
        """Store a buffer, given in parts, of `nbytes` bytes in total; None if there is no room for it."""
        ...


class Frame:
    """A run of elements, or one failure that replaces an element.

    Attributes:
        structure: How each element is nested.
        columns: One for each leaf.
        count: The number of elements.
        nbytes: Bytes of all leaves.
        failure: The error that replaces an element; then `count` is 1 and there are no columns.
        is_shared: Whether other readers use the frame too, so that each reader must get copies of its elements.
    """

    __slots__ = (
        "__weakref__",
        "_body",
        "_run",
        "columns",
        "count",
        "encoded",
        "failure",
        "is_shared",
        "nbytes",
        "reserve_encoded_bytes",
        "slab",
        "structure",
    )

    def __init__(
        self,
        structure: Structure,
        columns: Sequence[Column],
        count: int,
        failure: Failure | None = None,
        run: Sequence[Any] | Array | None = None,
    ) -> None:
        self.structure = structure
        self.columns = columns
        self.count = count
        self.failure = failure
        self.is_shared = False
        self.nbytes: int = sum(map(_NBYTES, columns))
        self.encoded: dict[tuple[str, bool], tuple[bytes, ...]] | None = None
        """Encoded messages of the whole frame, by form. The transfer that made them caches them for its next reader."""
        self.reserve_encoded_bytes: Callable[[int], bool] | None = None
        """Reserves memory for cached messages: returns whether the given number of bytes may be kept with the frame,
        and counts them from then on if so."""
        self.slab: Any = None
        """The slab that holds the whole frame in shared memory, kept for the next reader."""
        self._run = run
        self._body: tuple[SharedBuffer, Sequence[Layout]] | None = None

    @classmethod
    def of_failure(cls, failure: Failure) -> Frame:
        """The frame of an error that replaces one element."""
        return cls(LEAF, (), 1, failure)

    def elements(self, start: int, stop: int) -> Sequence[Any]:
        """The elements from `start` up to `stop`, exclusive to the caller.

        Elements of a shared frame are copies, or views of a private mapping. Elements of other frames are references
        if they were made in this process; if they were received, small values are copies and large ones views.

        The frame of a failure has none: `FrameSlice.elements` raises its error.
        """
        assert self.failure is None
        if self._run is not None:
            part = self._run[start:stop]
            return list(part) if isinstance(part, np.ndarray) else part
        columns = self._rows(start, stop)
        if self.structure is LEAF:
            return columns[0]
        return elements_of(self.structure, iter(columns), stop - start, local_class_of)

    def _rows(self, start: int, stop: int) -> list[Sequence[Any]]:
        if not self.is_shared:
            return [column.rows(start, stop) for column in self.columns]
        if (body := self._body) is None:
            return [column.copies(start, stop) for column in self.columns]
        shared, layouts = body
        private = shared.private_view()
        return [column_from(layout, private, self.count).rows(start, stop) for layout in layouts]

    def make_shared(self, *, pack: bool = False, buffer_store: SharedBufferStore | None = None) -> None:
        """Mark the frame as shared by several readers. Call this before any reader gets its elements.

        Args:
            pack: Whether to move small arrays into one buffer, which takes less memory and is copied faster.
            buffer_store: Where to move large arrays, so that they are mapped instead of copied.
        """
        self.is_shared = True
        if self._run is None or not _immutable(self._run):
            self._run = None  # readers could write to these objects; numbers and text still pass by reference
        if pack and self._has_small_separate_arrays:
            layouts, buffers, _ = lay_out(self.columns, 0, self.count)
            self.move_into(layouts, np.frombuffer(join_bytes(buffers), np.uint8))
        if buffer_store is not None and self._has_large_rows:
            layouts, buffers, nbytes = lay_out(self.columns, 0, self.count)
            shared = buffer_store.store(buffers, nbytes)
            if shared is not None:
                self.move_into(layouts, shared.base_array)
                self._body = shared, layouts

    @property
    def _has_small_separate_arrays(self) -> bool:
        """Whether the frame holds several small arrays, each in its own memory."""
        small = self.count > 1 and 0 < self.nbytes < COPY_BELOW * self.count
        return small and self.movable and any(isinstance(column.values, list) for column in self.columns)

    @property
    def _has_large_rows(self) -> bool:
        largest = max((column.nbytes for column in self.columns), default=0)
        return largest >= LARGE_BYTES * self.count and self.movable

    @property
    def movable(self) -> bool:
        """Whether the columns may become views of one body.

        False if readers in this process get references to the run, or if making a view would cost time for each value.
        """
        return self._run is None and _DENSE.issuperset(map(type, self.columns))

    def move_into(self, layouts: Sequence[Layout], body: Array) -> None:
        """Make the columns of a `movable` frame views of a body that holds the same data, to free their own memory."""
        self.columns = [column_from(layout, body, self.count) for layout in layouts]
        self._body = None

    @property
    def schema(self) -> Schema:
        """The schema that the next frame of the same task must match."""
        return Schema(self.structure, tuple(column.spec for column in self.columns))


class Schema:
    """The structure and the leaves' dtypes and ranks of a task's first element; sizes may vary."""

    def __init__(self, structure: Structure, leaves: tuple[TensorSpec, ...]) -> None:
        self.structure = structure
        self.leaves = leaves

    def agrees(self, frame: Frame) -> bool:
        """Whether the elements of `frame` may be part of the same stream."""
        if self.structure is not frame.structure and self.structure != frame.structure:
            return False
        for mine, its in zip(self.leaves, frame.columns, strict=True):
            if len(mine.shape) != its.rank or not compatible_dtypes(mine.dtype, its.dtype):
                return False
        return True

    def __str__(self) -> str:
        return describe(self.structure, map(str, self.leaves))


def frames_of(
    run: Sequence[Any] | Array, schema: Schema | None, *, packed: bool = False
) -> Iterator[Frame | Exception]:
    """Lay a run of elements out as frames.

    Args:
        run: Elements that dsnb owns; an array stands for its rows, which readers in this process get as views.
        schema: What the elements must match; None for the first run of a task.
        packed: Whether to lay out compactly, instead of keeping references for readers in this process.

    Yields:
        Frames that together hold the run, in order; an exception replaces each element that does not match the first.
    """
    laid_out = _single_array_frame(run, schema, packed) or _attempt(run, schema, packed)
    if isinstance(laid_out, Frame) or len(run) == 1:
        yield laid_out
        return
    # Some element does not match. Halving isolates the mismatches in O(log n) steps each; without any it never runs.
    middle = len(run) // 2
    for half in (run[:middle], run[middle:]):
        for part in frames_of(half, schema, packed=packed):
            if schema is None and isinstance(part, Frame):
                schema = part.schema
            yield part


def _single_array_frame(run: Sequence[Any] | Array, schema: Schema | None, packed: bool) -> Frame | None:
    """Fast path for latency: the frame of a single array that matches `schema`; None for anything else."""
    if schema is None or schema.structure is not LEAF or len(run) != 1:
        return None
    known = schema.leaves[0]
    if isinstance(run, np.ndarray):
        if not packed or run.dtype != known.dtype or run.ndim != len(known.shape) + 1:
            return None
        rows = run.view()
        rows.setflags(write=False)
        return Frame(LEAF, (Dense(run.dtype, run.shape[1:], rows),), 1)
    array = run[0]
    if type(array) is not np.ndarray or array.dtype != known.dtype or not array.ndim == len(known.shape) > 0:
        return None
    dtype, shape = array.dtype, array.shape
    array.setflags(write=False)
    values = [array]
    return Frame(LEAF, (Dense(dtype, shape, values),), 1, run=None if packed else values)


def _attempt(run: Sequence[Any] | Array, schema: Schema | None, packed: bool) -> Frame | Exception:
    try:
        frame = _lay_out(run, schema, packed)
    except StructureMismatch:
        return _mismatch_error(schema, _describe_element(run[0]))
    except InvalidArgumentError as error:
        return error
    if schema is None or schema.agrees(frame):
        return frame
    return _mismatch_error(schema, str(frame.schema))


def _lay_out(run: Sequence[Any] | Array, schema: Schema | None, packed: bool = False) -> Frame:
    if isinstance(run, np.ndarray) and run.dtype.hasobject:
        run = list(run)  # each object decides by itself whether it is a valid leaf
    if isinstance(run, np.ndarray):
        rows = run.view()
        rows.setflags(write=False)
        column = Dense(run.dtype, run.shape[1:], rows)
        # A record taken out of an array is a writable view of it, so readers must not get the rows by reference.
        return Frame(
            LEAF, (column,), len(run), run=None if packed or run.dtype.names else _rows_for_local_readers(rows)
        )
    structure = schema.structure if schema else structure_of(run[0])
    columns = [column_of(values, packed) for values in columns_of(structure, run)]
    return Frame(structure, columns, len(run), run=run if _shareable(structure) and not packed else None)


def _rows_for_local_readers(rows: Array) -> Sequence[Any] | Array:
    """The rows of an array as readers in this process get them: views of it, or for small rows views of copied blocks.

    Otherwise a reader that keeps one small row would keep the whole array in memory.
    """
    return rows if rows.ndim == 1 or rows[:1].nbytes >= COPY_BELOW else copy_rows(rows)


def _immutable(run: Sequence[Any] | Array) -> bool:
    """Whether all elements are numbers or text, alone or in tuples."""
    if isinstance(run, np.ndarray):
        return run.ndim == 1 and run.dtype.names is None
    kinds = set(map(type, run))
    if kinds == {tuple}:
        kinds = {type(leaf) for element in run for leaf in element}
    return kinds <= IMMUTABLE


def _shareable(structure: Structure) -> bool:
    """Whether readers in this process may get references to the same elements.

    False for lists and dicts, which a reader may modify, and for named tuples and dataclasses: unpickling a pipeline
    creates new classes on the worker, which are not the reader's classes of the same name.
    """
    if structure is LEAF:
        return True
    return structure.kind in ("leaf", "none", "tuple") and all(map(_shareable, structure.children))


def _describe_element(element: Any) -> str:
    try:
        return str(_lay_out([element], None).schema)
    except (InvalidArgumentError, StructureMismatch):
        return type(element).__name__


def _mismatch_error(expected: Schema | None, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"an element is built differently from the first one: {found} instead of {expected}",
        did="this error takes its place in the data; reading can continue after it",
        hint="return the same structure and dtypes for each element (sizes may vary)",
    )
