"""`ParquetDataset`: batches of rows of Parquet files; one split for each row group.

The footers are read once, when the dataset is made. Row groups that cannot have a matching row are left out then.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from dsnb.arguments import each, encodable, short_repr
from dsnb.elements.spec import TensorSpec, dtype_to_text
from dsnb.elements.structure import flatten
from dsnb.errors import DataLossError, DsnbError, InvalidArgumentError, NotFoundError, did_you_mean
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext
from dsnb.pipeline.parquet.columns import (
    UnsupportedColumn,
    arrow_type,
    column_error,
    column_spec,
    one_array,
    to_array,
)
from dsnb.pipeline.parquet.footers import (
    Footer,
    Footers,
    broken,
    joined,
    matching_groups,
    metadata_of,
    read_footers,
    schema_of,
)
from dsnb.pipeline.parquet.row_groups import RowGroupReader, Selection
from dsnb.pipeline.specs import are_compatible
from dsnb.pipeline.splits import FileSource, SourceStage, SplitProvider
from dsnb.storage import urls

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

_NAMES: Final = each(encodable, 'pass a list of names, as in columns=["image", "label"]')

UNREADABLE: Final = -1
"""Instead of a number of row group and of rows: the footer could not be read, and reading the split gives the error."""


class ParquetRows(FileSource, frozen=True, kw_only=True):
    """Batches of the rows of row groups.

    Attributes:
        sizes: The sizes of the files.
        footers: Their footers.
        groups: For each split the number of the file, the number of the row group in it, and the number of its rows.
        selection: Which rows and columns are read.
        batch_size: Rows of a batch; 0 for a whole row group.
        broken: What is wrong with files whose footer could not be read, by their number.
        spec: The element spec.
    """

    sizes: tuple[int, ...]
    footers: Footers
    groups: Array
    selection: Selection
    batch_size: int
    broken: dict[int, str]
    spec: Any

    @property
    def name(self) -> str:
        return f"parquet({len(self.files)} files, {len(self.groups)} row groups)"

    @property
    def element_spec(self) -> Any:
        return self.spec

    @property
    def cardinality(self) -> int:
        """The number of batches; unknown with a filter, and if a footer could not be read."""
        rows = self.groups[:, 2]
        if len(rows) and (self.selection.condition or rows.min() == UNREADABLE):
            return UNKNOWN_CARDINALITY
        return int(batches_of_groups(rows, self.batch_size).sum())

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, len(self.groups))

    def shard_of_files(self, count: int, index: int) -> FileSource:
        kept = range(index, len(self.files), count)
        groups = self.groups[np.isin(self.groups[:, 0], np.asarray(kept))].copy()
        groups[:, 0] = (groups[:, 0] - index) // count
        return replace(
            self,
            files=self.files[index::count],
            sizes=self.sizes[index::count],
            footers=joined([self.footers.footer(file) for file in kept]),
            groups=groups,
            broken={(file - index) // count: what for file, what in self.broken.items() if file in kept},
        )

    def build(self, context: BuildContext) -> Stage:
        return ParquetStage(self, context)


def batches_of_groups(rows: Any, batch_size: int) -> Any:
    """The number of batches of row groups with these numbers of rows."""
    return -(-rows // batch_size) if batch_size else rows * 0 + 1


class _OpenGroup:
    """A row group that is being read: its table, once that is needed, and how many of its batches are done."""

    def __init__(self, file: int, number: int, batches: int) -> None:
        self.file = file
        self.number = number
        self.batches = batches
        """How many batches it has; unknown with a filter until the table was read."""
        self.done = 0
        self.table: pa.Table | None = None


class ParquetStage(SourceStage):
    """Returns the batches of one row group after another.

    A batch that cannot be converted is one error in its place, and so is a row group that cannot be read. A file that
    is missing or was replaced is one error; its other row groups that this task gets are left out.
    """

    def __init__(self, operation: ParquetRows, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(operation.groups))
        self._operation = operation
        self._reader = RowGroupReader(
            operation.files, operation.sizes, operation.footers, operation.selection, context.opened_files
        )
        self._reads_ahead = any(map(urls.is_url, operation.files))
        self._taken: deque[tuple[int, int, int]] = deque()
        """File, number and rows of the row groups that were taken and are not opened yet."""
        self._ended = False
        self._group: _OpenGroup | None = None
        self._finished = 0
        """How many row groups were read to their end, in the order in which they were taken."""

    @property
    def skips_cheaply(self) -> bool:  # type: ignore[override]  # a constant in other stages
        """Whether the number of batches is known without reading them."""
        return not self._operation.selection.condition

    def produce(self, want: int) -> Run:
        while (group := self._group or self._open_next()) is not None:
            try:
                table = self._table_of(group) if group.done < group.batches else None
            except Exception:
                self._finish_group()
                raise
            if table is not None and group.done < group.batches:
                return self._batches(group, table, want)
            self._finish_group()
        return []

    def skip(self, count: int) -> int:
        """Skip batches; row groups of which all are skipped are not read, unless there is a filter."""
        if not self.skips_cheaply or self._failure is not None:
            return super().skip(count)
        left = count
        while left and (group := self._group or self._open_next()) is not None:
            skipped = min(left, group.batches - group.done)
            group.done += skipped
            left -= skipped
            self.delivered += skipped
            if group.done == group.batches:
                self._finish_group()
        return count - left

    def _open_next(self) -> _OpenGroup | None:
        """Begin with the next row group, unless its file is known to be lost."""
        self.note_resumable_position(self._finished)
        while self._take_splits():
            file, number, rows = self._taken.popleft()
            if file in self._reader.lost_files:
                self._finished += 1
                continue
            batches = 1 if rows == UNREADABLE else int(batches_of_groups(np.int64(rows), self._operation.batch_size))
            self._group = _OpenGroup(file, number, batches)
            return self._group
        return None

    def _take_splits(self) -> bool:
        """Take a split, and of files in a store as many after it as should be fetched now; False at the end."""
        wanted = 1 + (self._reader.ahead if self._reads_ahead else 0)
        while len(self._taken) < wanted and not self._ended:
            positions = self._splits.take(1)
            self._ended = not positions
            for position in positions:
                file, number, rows = map(int, self._operation.groups[position])
                self._taken.append((file, number, rows))
                self._reader.expect(file, number)
        return bool(self._taken)

    def _table_of(self, group: _OpenGroup) -> pa.Table:
        """The row group as a table; read when its first batch is needed."""
        if group.table is None:
            what = self._operation.broken.get(group.file)
            if what is not None:
                raise broken(self._operation.files[group.file], what)
            group.table = self._reader.read(group.file, group.number)
            if self._operation.selection.condition:
                rows = np.int64(group.table.num_rows)
                group.batches = int(batches_of_groups(rows, self._operation.batch_size)) if rows else 0
        return group.table

    def _batches(self, group: _OpenGroup, table: pa.Table, want: int) -> Run:
        out: list[Any] = []
        error: DsnbError | None = None
        end = min(group.batches, group.done + want)
        number = group.done
        while number < end and error is None:
            try:
                out.append(self._batch(group, table, number))
            except InvalidArgumentError as failure:
                error = failure
            number += 1
        group.done = number
        if number == group.batches:
            group.table = None  # the next pull finishes the group: an interrupt there must not lose these batches
        return out if error is None else self.fail_after(error, out)

    def _batch(self, group: _OpenGroup, table: pa.Table, number: int) -> dict[str, Any]:
        size = self._operation.batch_size
        part = table.slice(number * size, size) if size else table
        element = {}
        for name, column in zip(part.column_names, part.columns, strict=True):
            try:
                value = to_array(one_array(column))
            except UnsupportedColumn as error:
                path = urls.shown(self._operation.files[group.file])
                raise column_error(path, group.number, name, error) from None
            # A batch that is kept must not keep the whole row group in memory.
            element[name] = value if part.num_rows == table.num_rows else _copied(value)
        return element

    def _finish_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            self._reader.forget(group.file, group.number)
            self._finished += 1

    def release(self, unread: int) -> None:
        self._group = None
        self._reader.close()


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return value if value.base is None else value.copy()


# ---- planning


def columns_rule(name: str, value: Any) -> Any:
    """Check the choice of columns: a list of names, a dict of dtypes by name, or None."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        names = _NAMES(name, value)
        return {key: None if value[key] is None else TensorSpec((), value[key]).dtype for key in names}
    return _NAMES(name, value)


def plan(
    files: Sequence[str], columns: Sequence[str] | Mapping[str, Any] | None, filters: Any, batch_size: int
) -> ParquetRows:
    """Read the footers of files and decide what a dataset reads.

    Args:
        files: Paths and URLs.
        columns: The columns to read; a mapping gives a dtype for those to convert. None for all.
        filters: An Arrow expression, or tuples; None for all rows.
        batch_size: Rows of a batch; 0 for a whole row group.

    Raises:
        NotFoundError: a file is missing.
        DataLossError: no footer can be read.
        InvalidArgumentError: columns or filter do not go with the files, or a column cannot be read.
    """
    footers = read_footers(files)
    _raise_first_error(footers)
    first = next(at for at, footer in enumerate(footers) if footer.error is None)
    schema = schema_of(footers[first].data)
    names, casts = _chosen_columns(schema, columns)
    condition = _expression(filters)
    for at, footer in enumerate(footers):
        if footer.error is None and at != first:
            _check_same_columns(files[at], schema_of(footer.data), files[first], schema, names, casts)
    groups = list(_groups(files, footers, condition, schema))
    table = np.array(groups, np.int64).reshape(-1, 3)
    rows = table[:, 2]
    sizes = _batch_lengths(rows, batch_size) if condition is None else set()
    return ParquetRows(
        files=tuple(files),
        sizes=tuple(footer.size for footer in footers),
        footers=joined([footer.data for footer in footers]),
        groups=table,
        selection=Selection(
            columns=tuple(names),
            casts=tuple((name, dtype_to_text(dtype)) for name, dtype in casts.items()),
            read_columns=tuple(name for name in schema.names if name in names or _mentions(condition, name)),
            condition=b"" if condition is None else pickle.dumps(condition),
        ),
        batch_size=batch_size,
        broken={at: footer.error.what for at, footer in enumerate(footers) if isinstance(footer.error, DataLossError)},
        spec=_spec(schema, names, casts, sizes.pop() if len(sizes) == 1 else None),
    )


def _raise_first_error(footers: Sequence[Footer]) -> None:
    """Raise the error of a file that cannot be reached; that of a damaged file only if there is no other file."""
    errors = [footer.error for footer in footers if footer.error is not None]
    for error in errors:
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(
                f"`paths`: there is no file {urls.shown(str(error.filename))}",
                did="no dataset was made",
                hint=f"look from {os.getcwd()}, or use a pattern such as data/*.parquet",
            ) from None
        if not isinstance(error, DataLossError) or len(errors) == len(footers):
            raise error


def _batch_lengths(rows: Array, batch_size: int) -> set[int]:
    if not batch_size:
        return set(map(int, np.unique(rows)))
    lengths = {batch_size} if (rows >= batch_size).any() else set()
    return lengths | {int(rest) for rest in np.unique(rows % batch_size) if rest}


def _groups(
    files: Sequence[str], footers: Sequence[Footer], condition: Any, schema: pa.Schema
) -> Iterator[tuple[int, int, int]]:
    for at, footer in enumerate(footers):
        if footer.error is not None:
            yield at, UNREADABLE, UNREADABLE
            continue
        metadata = metadata_of(footer.data)
        numbers: Sequence[int] = range(metadata.num_row_groups)
        if condition is not None:
            numbers = _matching(files[at], footer, condition, schema)
        for number in numbers:
            rows = metadata.row_group(number).num_rows
            if rows:
                yield at, number, rows


def _matching(path: str, footer: Footer, condition: Any, schema: pa.Schema) -> Sequence[int]:
    import pyarrow as pa

    try:
        return matching_groups(footer.data, condition, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidArgumentError(
            f"`filters` does not go with the columns of {urls.shown(path)}: {str(error).partition(chr(10))[0]}",
            hint=f"its columns are {', '.join(schema.names)}",
        ) from None


def _expression(filters: Any) -> Any:
    """Return a filter as an Arrow expression; None if there is none."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"`filters` is {short_repr(filters)}, which is no filter: {error}",
            hint='pass tuples, as in [("label", ">", 3)], or an expression, pyarrow.compute.field("label") > 3',
        ) from None


def _mentions(condition: Any, name: str) -> bool:
    # An expression does not list its columns, but its text has their names. Reading one too many does no harm.
    return condition is not None and name in str(condition)


def _chosen_columns(
    schema: pa.Schema, columns: Sequence[str] | Mapping[str, Any] | None
) -> tuple[list[str], dict[str, np.dtype[Any]]]:
    """Return the names of the chosen columns, and the dtypes of those to convert."""
    names = list(schema.names if columns is None else columns)
    repeated = sorted({name for name in names if schema.names.count(name) > 1 or names.count(name) > 1})
    if repeated:
        raise InvalidArgumentError(f"the column {repeated[0]!r} is there more than once", hint="name each column once")
    for name in names:
        if name not in schema.names:
            raise InvalidArgumentError(
                f"`columns` has {name!r}, and the files do not",
                hint=did_you_mean(name, schema.names) + f"their columns are {', '.join(schema.names)}",
            )
    if not names:
        raise InvalidArgumentError("`columns` is empty", hint="name one column or more; None for all")
    casts = {} if not isinstance(columns, Mapping) else columns
    return names, {name: dtype for name, dtype in casts.items() if dtype is not None}


def _spec(schema: pa.Schema, names: Sequence[str], casts: Mapping[str, np.dtype[Any]], rows: int | None) -> Any:
    spec = {}
    for name in names:
        try:
            kind = arrow_type(casts[name]) if name in casts else schema.field(name).type
            spec[name] = column_spec(kind, rows)
        except UnsupportedColumn as error:
            raise InvalidArgumentError(
                f"the column {name!r} {error.reason}", hint=error.hint.replace("NAME", name)
            ) from None
    return spec


def _check_same_columns(
    path: str,
    schema: pa.Schema,
    first_path: str,
    first: pa.Schema,
    names: Sequence[str],
    casts: Mapping[str, np.dtype[Any]],
) -> None:
    """Check that a file has the columns of the first one, with the same dtypes."""
    for name in names:
        there = schema.names.count(name) == 1
        if there and (name in casts or _same_spec(schema.field(name).type, first.field(name).type)):
            continue
        its = f"it is {schema.field(name).type}" if there else "there is none"
        convert = f' or convert it: columns={{"{name}": "float64"}}' if there else " or leave out the files without it"
        raise InvalidArgumentError(
            f"the column {name!r} is {first.field(name).type} in {urls.shown(first_path)}; in {urls.shown(path)} {its}",
            hint=f"leave it out with `columns`,{convert}",
        )


def _same_spec(one: pa.DataType, other: pa.DataType) -> bool:
    if one == other:
        return True
    try:
        first, second = column_spec(one), column_spec(other)
    except UnsupportedColumn:
        return False
    shapes = [[leaf.shape for leaf in flatten(spec)] for spec in (first, second)]
    return are_compatible(first, second) and shapes[0] == shapes[1]
