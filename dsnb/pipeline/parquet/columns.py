"""The columns of Parquet files as arrays: which Arrow types become which dtypes, and the conversion of a batch.

A type whose values would lose something is refused by name when the dataset is made. A value that would (a null where
the dtype has no place for it, lists of different lengths) is refused with its batch. Each error has the line that
converts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsnb.elements.spec import BYTES, STR, TensorSpec
from dsnb.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

_MOST_TEXT_BYTES: Final = 1 << 30
_MOST_PADDING: Final = 16


class UnsupportedColumn(Exception):
    """A column, or a part of it, that cannot become an array.

    Attributes:
        reason: What it is, as in "is of the type decimal128(9, 2)".
        hint: The line that converts it.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def column_spec(kind: pa.DataType, rows: int | None = None) -> Any:
    """Return the spec of a batch of one column: a `TensorSpec`, or a dict of them for a column of structs.

    Args:
        kind: The column's Arrow type.
        rows: The number of rows of each batch; None if it varies.

    Raises:
        UnsupportedColumn: the type cannot become an array.
    """
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return column_spec(kind.value_type, rows)
    if t.is_struct(kind):
        return {field.name: column_spec(field.type, rows) for field in kind}
    if t.is_fixed_size_binary(kind) and not t.is_decimal(kind):
        return TensorSpec((rows, kind.byte_width), np.uint8)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        values = column_spec(kind.value_type)
        if isinstance(values, dict):
            raise UnsupportedColumn(
                f"is of the type {kind}", "leave it out with `columns`, or write one column a field"
            )
        size = kind.list_size if t.is_fixed_size_list(kind) else None
        return TensorSpec((rows, size, *values.shape[1:]), values.dtype)
    return TensorSpec((rows,), _dtype_of(kind))


def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The dtype of a type whose values are single ones."""
    import pyarrow.types as t

    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return STR
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return BYTES
    if t.is_date(kind):
        return np.dtype("datetime64[D]" if t.is_date32(kind) else "datetime64[ms]")
    if t.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if t.is_time(kind) or t.is_duration(kind):
        return np.dtype(f"timedelta64[{kind.unit}]")
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind):
        # Not `to_pandas_dtype`: in older releases it needs pandas.
        return np.dtype(f"float{kind.bit_width}" if t.is_floating(kind) else str(kind))
    if t.is_decimal(kind):
        raise UnsupportedColumn(
            f"is of the type {kind}, which NumPy has no dtype for",
            'convert it: columns={"NAME": "float64"}, or "str" to keep every digit; None for each other column',
        )
    raise UnsupportedColumn(f"is of the type {kind}", "leave it out with `columns`")


def arrow_type(dtype: np.dtype[Any]) -> pa.DataType:
    """Return the Arrow type of a dtype that a user asked for.

    Raises:
        UnsupportedColumn: Arrow has no such type.
    """
    import pyarrow as pa

    if dtype.kind == "U":
        return pa.large_string()
    if dtype.kind == "S":
        return pa.large_binary()
    try:
        return pa.from_numpy_dtype(dtype)
    except pa.ArrowNotImplementedError:
        raise UnsupportedColumn(f"cannot be converted to {dtype}", "pass a dtype of numbers, dates or text") from None


def to_array(column: pa.Array) -> Any:
    """Return the values of one column as an array, or as a dict of arrays for structs. The caller may keep it.

    Raises:
        UnsupportedColumn: a value cannot be represented.
    """
    import pyarrow.types as t

    kind = column.type
    if t.is_dictionary(kind):
        return to_array(column.dictionary_decode())
    for accepts, convert in _CONVERTERS:
        if accepts(kind):
            return convert(column)
    return _numbers(column)


def _numbers(column: pa.Array) -> Array:
    import pyarrow.types as t

    kind = column.type
    if t.is_boolean(kind) or t.is_integer(kind):
        _refuse_nulls(column, f'columns={{"NAME": "float64"}} makes them NaN; {_NOT_NULL}')
    # Nulls of floats become NaN, those of dates NaT.
    return np.asarray(column.to_numpy(zero_copy_only=False))


_NOT_NULL: Final = 'filters=pyarrow.compute.field("NAME").is_valid() leaves their rows out'


def _refuse_nulls(column: pa.Array, hint: str = _NOT_NULL) -> None:
    if column.null_count:
        raise UnsupportedColumn(f"has {column.null_count:,} nulls in {len(column):,} rows", hint)


def _times(column: pa.Array) -> Array:
    import pyarrow as pa

    whole = column.cast(pa.int32()).cast(pa.int64()) if column.type.bit_width == 32 else column.cast(pa.int64())
    plain = whole.fill_null(np.iinfo(np.int64).min)  # NaT
    return np.asarray(plain.to_numpy(zero_copy_only=False)).view(f"timedelta64[{column.type.unit}]")


def _text(column: pa.Array) -> Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    _refuse_nulls(column)
    is_bytes = _dtype_of(column.type) == BYTES
    column = column.cast(pa.large_binary() if is_bytes else pa.large_string())  # few functions know views
    if pc.any(pc.ends_with(column, b"\0" if is_bytes else "\0")).as_py():
        raise UnsupportedColumn(
            "has values that end in NUL, which an array of text would drop",
            "write it as a list of uint8, or as fixed-size binary",
        )
    lengths = (pc.binary_length if is_bytes else pc.utf8_length)(column)
    padded = (pc.max(lengths).as_py() or 1) * (1 if is_bytes else 4) * len(column)
    if padded > max(_MOST_TEXT_BYTES, _MOST_PADDING * column.nbytes):
        raise UnsupportedColumn(
            f"would take {padded:,} bytes as one array: its longest value sets the width of all",
            "batch_size=1 and .unbatch() for values of very different lengths",
        )
    return np.array(column.to_pylist(), bytes if is_bytes else str)


def _fixed_bytes(column: pa.Array) -> Array:
    _refuse_nulls(column)
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(len(column), width)


def _lists(column: pa.Array) -> Array:
    import pyarrow.compute as pc

    _refuse_nulls(column)
    lengths = np.unique(np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False)))
    if len(lengths) > 1:
        raise UnsupportedColumn(
            f"has lists of {lengths[0]:,} to {lengths[-1]:,} values in one batch",
            "batch_size=1 and .unbatch() for one row at a time; then .padded_batch(n)",
        )
    values = to_array(column.flatten())
    return np.asarray(values).reshape(len(column), int(lengths[0]), *values.shape[1:])


def _structs(column: pa.Array) -> dict[str, Any]:
    _refuse_nulls(column)
    # `flatten` also cuts the fields to the rows of a slice, and passes nulls of the struct on.
    return {field.name: _field(field.name, values) for field, values in zip(column.type, column.flatten(), strict=True)}


def _field(name: str, values: pa.Array) -> Any:
    try:
        return to_array(values)
    except UnsupportedColumn as error:
        raise UnsupportedColumn(f"has a field {name!r} that {error.reason}", error.hint) from None


def _accepting(*names: str) -> Callable[[Any], bool]:
    def accepts(kind: Any) -> bool:
        import pyarrow.types as t

        return any(getattr(t, f"is_{name}")(kind) for name in names)

    return accepts


_CONVERTERS: Final[list[tuple[Callable[[Any], bool], Callable[[Any], Any]]]] = [
    (_accepting("struct"), _structs),
    (_accepting("list", "large_list", "fixed_size_list"), _lists),
    (_accepting("fixed_size_binary"), _fixed_bytes),
    (
        _accepting("string", "large_string", "string_view", "binary", "large_binary", "binary_view"),
        _text,
    ),
    (_accepting("time"), _times),
]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one Arrow array, without a copy if it is one already."""
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def column_error(path: str, group: int, name: str, error: UnsupportedColumn) -> InvalidArgumentError:
    """The error that takes the place of a batch."""
    return InvalidArgumentError(
        f"the column {name!r} of {path}, row group {group}, {error.reason}",
        did="this error takes the place of the batch; reading continues with the next",
        hint=error.hint.replace("NAME", name),
    )
