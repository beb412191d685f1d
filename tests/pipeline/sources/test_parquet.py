"""`ParquetDataset`: every type as it was written or refused by name, row groups as splits, and only what is wanted."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dsnb
from dsnb.cache.opened_files import OpenedFiles
from dsnb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import ParquetDataset
from dsnb.pipeline.graph import restore, serialise
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.splits import split_providers
from dsnb.storage import urls
from dsnb.testing import assert_resumable
from tests.pipeline.driving import Feed, by_turns, context, outcomes, plain, values
from tests.support.file_server import FileServer
from tests.support.parquet import numbers_of, write_numbers, write_parquet
from tests.support.requires import require_module

pa: Any = pytest.importorskip("pyarrow")
DAY = dt.date(2026, 11, 24)
NOON = dt.datetime(2026, 11, 24, 12, 0, 1)  # noqa: DTZ001 - a column without a zone


def array(values: list[Any], kind: Any) -> Any:
    return pa.array(values, kind)


def read_one(path: Path, column: Any, **arguments: Any) -> Any:
    """The only batch of a file with one column."""
    write_parquet(path / "a.parquet", {"c": column}, rows_per_group=100)
    (element,) = ParquetDataset(path / "a.parquet", **arguments)
    return element["c"]


# ---- types


@pytest.mark.parametrize(
    "values, kind, dtype",
    [
        ([True, False], pa.bool_(), "bool"),
        *(([0, 1, 100], kind(), str(kind())) for kind in (pa.int8, pa.int16, pa.int32, pa.int64)),
        *(([0, 1, 200], kind(), str(kind())) for kind in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)),
        ([np.float16(0.5)], pa.float16(), "float16"),
        ([0.5, -1.5], pa.float32(), "float32"),
        ([0.5, None], pa.float64(), "float64"),
        ([DAY, None], pa.date32(), "datetime64[D]"),
        ([DAY], pa.date64(), "datetime64[D]"),
        *(([NOON, None], pa.timestamp(unit), f"datetime64[{unit}]") for unit in ("ms", "us", "ns")),
        ([NOON], pa.timestamp("us", "Europe/Berlin"), "datetime64[us]"),
        ([dt.time(1, 2, 3), None], pa.time32("ms"), "timedelta64[ms]"),
        ([dt.time(1, 2, 3, 4)], pa.time64("us"), "timedelta64[us]"),
        ([dt.timedelta(seconds=3), None], pa.duration("us"), "timedelta64[us]"),
    ],
)
def test_numbers_and_times_keep_value_and_dtype(tmp_path: Path, values: list[Any], kind: Any, dtype: str) -> None:
    found = read_one(tmp_path, array(values, kind))
    assert found.dtype == np.dtype(dtype)
    for mine, its in zip(found, values, strict=True):
        if its is None:
            assert np.isnan(mine) if found.dtype.kind == "f" else np.isnat(mine)
        elif isinstance(its, dt.time):
            since_midnight = dt.timedelta(hours=its.hour, minutes=its.minute, seconds=its.second)
            assert mine.astype("timedelta64[us]").item() == since_midnight + dt.timedelta(microseconds=its.microsecond)
        else:
            assert mine == np.array(its).astype(found.dtype)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=["string", "large", "dict"]
)
def test_text_is_an_array_of_str(tmp_path: Path, kind: Any) -> None:
    found = read_one(tmp_path, array(["a", "", "größer", "a"], kind))
    assert found.dtype.kind == "U"
    assert found.tolist() == ["a", "", "größer", "a"]


def test_bytes_of_any_and_of_fixed_length(tmp_path: Path) -> None:
    assert read_one(tmp_path, array([b"a", b"\0b"], pa.binary())).tolist() == [b"a", b"\0b"]
    fixed = read_one(tmp_path, array([b"a\0", b"bc"], pa.binary(2)))
    assert fixed.dtype == np.uint8
    assert fixed.tolist() == [[97, 0], [98, 99]]


def test_lists_of_one_length_are_dimensions(tmp_path: Path) -> None:
    assert read_one(tmp_path, array([[1, 2], [3, 4]], pa.list_(pa.int16()))).tolist() == [[1, 2], [3, 4]]
    nested = read_one(tmp_path, array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int16(), 1), 2)))
    assert (nested.shape, nested.dtype) == ((2, 2, 1), np.int16)
    assert read_one(tmp_path, array([["a"], ["bc"]], pa.list_(pa.string()))).tolist() == [["a"], ["bc"]]
    assert read_one(tmp_path, array([[], []], pa.list_(pa.int64()))).shape == (2, 0)


def test_lists_are_right_in_each_batch_of_a_row_group(tmp_path: Path) -> None:
    rows = [[n, n + 1] for n in range(7)]
    for kind in (pa.list_(pa.int64()), pa.list_(pa.int64(), 2), pa.large_list(pa.int64())):
        path = write_parquet(tmp_path / "a.parquet", {"v": array(rows, kind), "b": array([b"xy"] * 7, pa.binary(2))})
        found = list(ParquetDataset(path, batch_size=3))
        assert [row.tolist() for element in found for row in element["v"]] == rows
        assert [len(element["b"]) for element in found] == [3, 3, 1]


def test_structs_are_dicts(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", {"image": [{"path": "a", "size": {"w": n}} for n in range(5)]}, rows_per_group=5
    )
    ds = ParquetDataset(path, batch_size=2)
    assert ds.element_spec["image"]["size"]["w"] == dsnb.TensorSpec((None,), np.int64)
    assert [plain(element)["image"]["size"]["w"] for element in ds] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "values, kind, words",
    [
        ([decimal.Decimal("1.50")], pa.decimal128(9, 2), r"'c' is of the type decimal128\(9, 2\)"),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int64()), "'c' is of the type map"),
        ([None], pa.null(), "'c' is of the type null"),
        ([[{"a": 1}]], pa.list_(pa.struct([("a", pa.int64())])), "'c' is of the type list"),
    ],
    ids=["decimal", "map", "null", "list of structs"],
)
def test_a_type_that_no_array_can_hold_is_refused_by_name_at_the_call(
    tmp_path: Path, values: list[Any], kind: Any, words: str
) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"x": [1], "c": array(values, kind)})
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        ParquetDataset(path)
    assert "columns" in caught.value.hint
    assert values_of(ParquetDataset(path, columns=["x"])) == [{"x": [1]}]


def values_of(dataset: Dataset) -> list[Any]:
    return [plain(element) for element in dataset]


@pytest.mark.parametrize(
    "good, bad, kind, words",
    [
        ([1, 2], [3, None], pa.int64(), "has 1 nulls in 2 rows"),
        ([True, True], [None, None], pa.bool_(), "has 2 nulls"),
        (["a", "b"], ["a", None], pa.string(), "has 1 nulls"),
        ([b"a", b"b"], [b"a\0", b"b"], pa.binary(), "end in NUL"),
        (["a", "b"], ["a", "b\0"], pa.string(), "end in NUL"),
        ([[1], [2]], [[1], [2, 3]], pa.list_(pa.int64()), "lists of 1 to 2 values"),
        ([[1], [2]], [[1], None], pa.list_(pa.int64()), "has 1 nulls"),
        ([[1], [2]], [[1], [None]], pa.list_(pa.int64()), "has 1 nulls"),
        ([{"a": 1}] * 2, [{"a": 1}, {"a": None}], pa.struct([("a", pa.int64())]), "a field 'a' that has 1 nulls"),
        ([{"a": 1}] * 2, [{"a": 1}, None], pa.struct([("a", pa.int64())]), "has 1 nulls"),
        ([b"ab", b"cd"], [b"ab", None], pa.binary(2), "has 1 nulls"),
    ],
)
def test_a_value_that_no_array_can_hold_is_an_error_in_place_of_its_batch(
    tmp_path: Path, good: list[Any], bad: list[Any], kind: Any, words: str
) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"c": array(good + bad + good, kind)}, rows_per_group=6)
    first, error, last = outcomes(ParquetDataset(path, batch_size=2))
    assert plain(first) == plain(last)
    assert isinstance(error, InvalidArgumentError)
    assert words in error.what
    assert f"the column 'c' of {path}, row group 0," in error.what
    assert error.hint
    assert "NAME" not in error.hint


def test_the_remedies_of_the_errors_work(tmp_path: Path) -> None:
    import pyarrow.compute as pc

    columns = {
        "n": array([1, None], pa.int64()),
        "d": array([decimal.Decimal("1.50"), decimal.Decimal("2.25")], pa.decimal128(9, 2)),
        "v": array([[1], [2, 3]], pa.list_(pa.int64())),
    }
    path = write_parquet(tmp_path / "a.parquet", columns)
    (element,) = ParquetDataset(path, columns={"n": "float64", "d": "float64"})
    assert element["n"][0] == 1.0
    assert np.isnan(element["n"][1])
    assert element["d"].tolist() == [1.5, 2.25]
    assert values_of(ParquetDataset(path, columns={"d": "str"})) == [{"d": ["1.50", "2.25"]}]
    assert values_of(ParquetDataset(path, ["n"], pc.field("n").is_valid())) == [{"n": [1]}]
    rows = ParquetDataset(path, columns=["v"], batch_size=1).unbatch()
    assert [plain(row["v"]) for row in rows] == [[1], [2, 3]]


def test_one_long_text_among_many_short_ones_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsnb.pipeline.parquet import columns

    monkeypatch.setattr(columns, "_MOST_TEXT_BYTES", 10_000)  # a machine with little memory
    path = write_parquet(tmp_path / "a.parquet", {"text": ["x" * 5000, *["y"] * 999]}, rows_per_group=1000)
    (error,) = outcomes(ParquetDataset(path))
    assert "its longest value sets the width" in error.what
    assert len(list(ParquetDataset(path, batch_size=1))) == 1000


KINDS = {
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "f": (pa.float64(), st.floats(allow_nan=False)),
    "s": (pa.string(), st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)),
    "b": (pa.bool_(), st.booleans()),
    "t": (pa.timestamp("us"), st.datetimes(min_value=dt.datetime(1900, 1, 1), max_value=dt.datetime(2200, 1, 1))),  # noqa: DTZ001 - no zone
    "l": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), min_size=3, max_size=3)),
}


@settings(max_examples=30)
@given(
    data=st.data(),
    rows=st.integers(1, 25),
    names=st.sets(st.sampled_from(sorted(KINDS)), min_size=1),
    rows_per_group=st.integers(1, 12),
    batch_size=st.none() | st.integers(1, 12),
)
def test_any_table_comes_back_row_by_row(
    tmp_path_factory: pytest.TempPathFactory,
    data: Any,
    rows: int,
    names: set[str],
    rows_per_group: int,
    batch_size: int | None,
) -> None:
    columns = {
        name: array(data.draw(st.lists(KINDS[name][1], min_size=rows, max_size=rows)), KINDS[name][0])
        for name in sorted(names)
    }
    path = write_parquet(tmp_path_factory.getbasetemp() / "any.parquet", columns, rows_per_group)
    ds = ParquetDataset(path, batch_size=batch_size)
    found = list(ds)
    assert len(found) == ds.cardinality()
    for name, column in columns.items():
        assert [value for element in found for value in element[name].tolist()] == column.to_pylist()
        spec = ds.element_spec[name]
        assert all(spec.accepts(dsnb.TensorSpec(e[name].shape, e[name].dtype)) for e in found) or name in "sl"


# ---- batches, columns, filters


@pytest.mark.parametrize(
    "batch_size, lengths",
    [(None, [10, 10, 5]), (4, [4, 4, 2, 4, 4, 2, 4, 1]), (10, [10, 10, 5]), (100, [10, 10, 5])],
)
def test_batches_lie_within_row_groups(tmp_path: Path, batch_size: int | None, lengths: list[int]) -> None:
    (path,) = write_numbers(tmp_path, 1, 25)
    ds = ParquetDataset(path, batch_size=batch_size)
    assert [len(element["x"]) for element in ds] == lengths
    assert len(ds) == len(lengths)
    assert numbers_of(list(ds.rebatch(7))) == list(range(25))
    assert [len(element["x"]) for element in ds.rebatch(7)] == [7, 7, 7, 4]


def test_the_size_of_batches_is_in_the_spec_if_all_have_it(tmp_path: Path) -> None:
    (path,) = write_numbers(tmp_path, 1, 40)
    assert ParquetDataset(path, batch_size=5).element_spec["x"].shape == (5,)
    assert ParquetDataset(path, batch_size=3).element_spec["x"].shape == (None,)
    assert ParquetDataset(path, batch_size=5).unbatch().cardinality() == 40


def test_folders_patterns_and_lists_of_paths(tmp_path: Path) -> None:
    files = write_numbers(tmp_path / "deep" / "er", 3, 10)
    for paths in (tmp_path, tmp_path / "deep" / "er" / "*.parquet", files, [files[0], f"{tmp_path}/**/00[12].parquet"]):
        assert numbers_of(list(ParquetDataset(paths))) == list(range(30))
    assert numbers_of(list(ParquetDataset(files[::-1])))[0] == 20
    with pytest.raises(NotFoundError, match="no file matches `paths`"):
        ParquetDataset(str(tmp_path / "*.arrow"))
    with pytest.raises(NotFoundError, match=r"`paths`: there is no file .*gone\.parquet"):
        ParquetDataset(str(tmp_path / "gone.parquet"))


def test_columns_come_in_the_order_asked_for_and_others_are_not_read(tmp_path: Path) -> None:
    (path,) = write_numbers(tmp_path, 1, 10)
    (element,) = ParquetDataset(path, columns=["square", "x"])
    assert list(element) == ["square", "x"]
    assert list(ParquetDataset(path, columns=["x"]).element_spec) == ["x"]


@pytest.mark.parametrize(
    "filters",
    [
        [("x", ">=", 33)],
        [[("x", "<", 3)], [("x", "in", [41, 42])]],
        [("square", "==", "1600")],
    ],
)
def test_filters_leave_out_rows_and_row_groups(tmp_path: Path, filters: Any) -> None:
    import pyarrow.parquet as pq

    files = write_numbers(tmp_path, 3, 20)
    wanted = pq.read_table(files, filters=filters).column("x").to_pylist()
    ds = ParquetDataset(files, ["x"], filters, batch_size=4)
    assert numbers_of(list(ds)) == wanted
    assert list(ds.element_spec) == ["x"]
    assert ds.cardinality() == dsnb.UNKNOWN_CARDINALITY
    assert split_providers(ds.operation)[0].count < 6


def test_a_filter_that_nothing_passes_leaves_no_splits(tmp_path: Path) -> None:
    ds = ParquetDataset(write_numbers(tmp_path, 2, 20), filters=[("x", ">", 1000)])
    assert (split_providers(ds.operation)[0].count, ds.cardinality(), list(ds)) == (0, 0, [])


def test_a_filter_by_expression_reads_columns_that_only_it_names(tmp_path: Path) -> None:
    import pyarrow.compute as pc

    found = ParquetDataset(write_numbers(tmp_path, 2, 20), ["square"], pc.field("x") == 27)
    assert values_of(found) == [{"square": ["729"]}]


def test_rows_keep_their_order_behind_a_filter(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"x": list(range(200_000))}, rows_per_group=200_000)
    (element,) = ParquetDataset(path, filters=[("x", "!=", 5)])
    assert (np.diff(element["x"]) > 0).all()


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"columns": ["y"]}, "`columns` has 'y'"),
        ({"columns": []}, "`columns` is empty"),
        ({"columns": ["x", "x"]}, "more than once"),
        ({"columns": "x"}, "`columns` is 'x'"),
        ({"columns": {"x": "no dtype"}}, "dtype"),
        ({"filters": [("y", ">", 1)]}, "`filters` does not go with"),
        ({"filters": 5}, "`filters` is 5"),
        ({"filters": [("x", "~", 1)]}, "`filters`"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"paths": []}, "`paths` is empty"),
        ({"paths": "https://me:secret@host/a.parquet"}, "`paths` holds a password"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    (path,) = write_numbers(tmp_path, 1, 10)
    with pytest.raises(InvalidArgumentError, match=words):
        ParquetDataset(**{"paths": path, **wrong})


def test_files_with_other_columns_are_refused_and_named(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "a.parquet", {"x": [1], "y": [1]})
    other = write_parquet(tmp_path / "b.parquet", {"x": [1.5]})
    with pytest.raises(InvalidArgumentError, match=r"'x' is int64 in .*a.parquet; in .*b.parquet it is double"):
        ParquetDataset([first, other], columns=["x"])
    with pytest.raises(InvalidArgumentError, match=r"'y' is int64 in .*a.parquet; in .*b.parquet there is none"):
        ParquetDataset([first, other], columns=["y"])
    assert values_of(ParquetDataset([first, other], columns={"x": "float64"})) == [{"x": [1.0]}, {"x": [1.5]}]


def test_kinds_of_text_may_differ_between_files(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "a.parquet", {"s": array(["a"], pa.string())})
    other = write_parquet(tmp_path / "b.parquet", {"s": array(["bc"], pa.dictionary(pa.int32(), pa.string()))})
    assert values_of(ParquetDataset([first, other])) == [{"s": ["a"]}, {"s": ["bc"]}]


def test_without_pyarrow_the_error_has_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls.importlib.util, "find_spec", lambda _name: None)  # a machine without pyarrow
    with pytest.raises(FailedPreconditionError, match="ParquetDataset needs the package pyarrow") as caught:
        ParquetDataset("a.parquet")
    assert caught.value.hint == "pip install 'dsnb[parquet]'"


# ---- splits and positions


def test_each_row_group_is_a_split_and_goes_to_one_task(tmp_path: Path) -> None:
    ds = ParquetDataset(write_numbers(tmp_path, 2, 35), batch_size=4)
    (provider,) = split_providers(ds.operation)
    assert provider.count == 8
    feed = Feed([provider.count], piece=1)
    shares = by_turns([ds.operation.build(context(splits=feed.task())) for _ in range(3)])
    assert all(shares)
    assert sorted(numbers_of([element for share in shares for element in share])) == list(range(70))


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("filters", [None, [("x", ">", 7)]], ids=["all rows", "filter"])
def test_reading_resumes_at_every_batch(tmp_path: Path, batch_size: int | None, filters: Any) -> None:
    assert_resumable(ParquetDataset(write_numbers(tmp_path, 2, 25), filters=filters, batch_size=batch_size))


@pytest.mark.parametrize("count", range(10))
def test_skipped_row_groups_are_not_opened(tmp_path: Path, count: int) -> None:
    ds = ParquetDataset(write_numbers(tmp_path, 3, 10), batch_size=4)
    opened = OpenedFiles()
    stage = ds.operation.build(replace(context(), opened_files=opened))
    assert stage.skip(count) == count
    rest = by_turns([stage])[0]
    stage.close()
    assert numbers_of(rest) == numbers_of(list(ds))[sum([4, 4, 2] * 3) - sum(([4, 4, 2] * 3)[count:]) :]
    assert len(opened.states("change")) == 3 - count // 3


def test_file_sharding_divides_the_files(tmp_path: Path) -> None:
    ds = ParquetDataset(write_numbers(tmp_path, 5, 20))
    shares = [numbers_of(list(Dataset(sharded(ds.operation, "FILE", 2, index)))) for index in range(2)]
    assert shares[0] == [x for file in (0, 2, 4) for x in range(file * 20, file * 20 + 20)]
    assert sorted(shares[0] + shares[1]) == list(range(100))


def test_a_kept_batch_does_not_keep_its_row_group(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"x": list(range(10_000))}, rows_per_group=10_000)
    first = next(iter(ParquetDataset(path, batch_size=10)))["x"]
    assert first.base is None or first.base.nbytes < 1000


# ---- what is broken


def test_a_broken_file_is_one_error_and_the_next_file_follows(tmp_path: Path) -> None:
    files = write_numbers(tmp_path, 3, 20)
    Path(files[1]).write_bytes(Path(files[1]).read_bytes()[:-3])
    ds = ParquetDataset(files)
    assert ds.cardinality() == dsnb.UNKNOWN_CARDINALITY
    found = outcomes(ds)
    assert [type(one).__name__ for one in found] == ["dict", "dict", "DataLossError", "dict", "dict"]
    assert "001.parquet does not end as a Parquet file does" in found[2].what
    with pytest.raises(DataLossError, match=r"001.parquet does not end"):
        ParquetDataset(files[1])


def test_damaged_metadata_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    (path,) = write_numbers(tmp_path, 1, 20)
    data = bytearray(Path(path).read_bytes())
    data[-200:-8] = b"\xff" * 192
    Path(path).write_bytes(data)
    with pytest.raises(DataLossError, match="has metadata that cannot be read"):
        ParquetDataset(path)
    for content in (b"", b"PAR1", b"x" * 100):
        Path(path).write_bytes(content)
        with pytest.raises(DataLossError, match="does not end as a Parquet file does"):
            ParquetDataset(path)


def test_a_damaged_row_group_is_one_error_and_the_next_follows(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", {"x": list(range(30))}, use_dictionary=False, compression="gzip", write_statistics=False
    )
    import pyarrow.parquet as pq

    offset = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data = bytearray(Path(path).read_bytes())
    data[offset + 5 : offset + 60] = b"\xff" * 55
    Path(path).write_bytes(data)
    first, error, last = outcomes(ParquetDataset(path))
    assert (numbers_of([first]), numbers_of([last])) == (list(range(10)), list(range(20, 30)))
    assert isinstance(error, DataLossError)
    assert "a row group that cannot be read, number 1" in error.what


def test_a_file_that_is_gone_is_one_error_that_names_the_host(tmp_path: Path) -> None:
    files = write_numbers(tmp_path, 3, 20)
    ds = ParquetDataset(files)
    Path(files[0]).unlink()
    error, *rest = outcomes(ds)
    assert isinstance(error, FileNotFoundError)
    assert "looked for on the host" in error.__notes__[0]
    assert numbers_of(rest) == list(range(20, 60))


def test_a_file_that_was_replaced_is_one_error(tmp_path: Path) -> None:
    files = write_numbers(tmp_path, 2, 20)
    ds = ParquetDataset(files)
    write_parquet(Path(files[0]), {"x": [1, 2, 3], "square": ["", "", ""]})
    error, *rest = outcomes(ds)
    assert "bytes when the dataset was made" in error.what
    assert numbers_of(rest) == list(range(20, 40))


# ---- stores


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    require_module("aiohttp")
    with FileServer(tmp_path) as served:
        yield served


def ranges(server: FileServer, name: str) -> list[tuple[int, int]]:
    found = [wanted for method, path, wanted in server.requests if method == "GET" and path == name]
    return [(int(start), int(end)) for start, _, end in (one.removeprefix("bytes=").partition("-") for one in found)]


def test_files_in_a_store_give_the_same_rows(server: FileServer) -> None:
    files = write_numbers(server.folder, 3, 40)
    ds = ParquetDataset([f"{server.url}/{Path(file).name}" for file in files], batch_size=7)
    assert values_of(ds) == values_of(ParquetDataset(files, batch_size=7))
    assert numbers_of(list(ds.skip(13))) == list(range(67, 120))
    with iter(ds) as elements:  # stopped with requests under way
        next(elements)


def test_a_row_group_is_fetched_once_and_only_its_wanted_columns(server: FileServer) -> None:
    rng = np.random.default_rng(1)
    columns = {name: rng.random(100_000) for name in "abcd"}
    write_parquet(server.folder / "a.parquet", columns, rows_per_group=50_000, compression="none", use_dictionary=False)
    ds = ParquetDataset(f"{server.url}/a.parquet", columns=["a", "d"])
    footer_reads = len(server.requests)
    restored = Dataset(restore(serialise(ds.operation).definition, lambda _digest: b""))
    found = list(restored)
    assert np.array_equal(np.concatenate([element["d"] for element in found]), columns["d"])
    fetched = ranges(server, "a.parquet")[1:]
    assert footer_reads == 2
    assert len(fetched) == 4
    assert sum(end - start for start, end in fetched) < 1.1 * 2 * 800_000


def test_row_groups_are_fetched_ahead(server: FileServer) -> None:
    write_numbers(server.folder, 1, 200)
    ds = ParquetDataset(f"{server.url}/000.parquet")
    server.delay_s = 0.02
    server.most_at_once = 0
    assert numbers_of(list(ds)) == list(range(200))
    assert server.most_at_once > 2


def test_the_size_of_a_file_is_asked_once_for_all_its_row_groups(server: FileServer) -> None:
    write_numbers(server.folder, 2, 200)
    ds = ParquetDataset([f"{server.url}/{number:03}.parquet" for number in range(2)])
    server.delay_s = 0.02
    server.requests.clear()
    assert numbers_of(list(ds)) == list(range(400))
    assert sorted(name for method, name, _ in server.requests if method == "HEAD") == ["000.parquet", "001.parquet"]


def test_a_store_that_fails_costs_one_row_group(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_ATTEMPTS", 1)
    write_numbers(server.folder, 1, 30)
    ds = ParquetDataset(f"{server.url}/000.parquet?signature=secret")
    server.failures = 1
    found = outcomes(ds)
    assert sorted(type(one).__name__ for one in found) == ["UnavailableError", "dict", "dict"]
    assert not any("secret" in str(one) for one in found if isinstance(one, Exception))


def test_a_missing_file_of_a_store_is_one_error(server: FileServer) -> None:
    files = write_numbers(server.folder, 2, 30)
    ds = ParquetDataset([f"{server.url}/{Path(file).name}" for file in files])
    Path(files[0]).unlink()
    found = outcomes(ds)
    assert [type(one).__name__ for one in found] == ["FileNotFoundError", "dict", "dict", "dict"]


def test_the_pipeline_is_plain_data_that_can_be_pickled(tmp_path: Path) -> None:
    import pyarrow.compute as pc

    ds = ParquetDataset(write_numbers(tmp_path, 2, 20), ["x"], pc.field("x") > 3, batch_size=3)
    assert values(pickle.loads(pickle.dumps(ds))) == values(ds)
