"""Records of files in order; damage is told with the file and the offset, and costs no more than it must."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import BYTES, TensorSpec
from dsnb.errors import DataLossError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import TFRecordDataset
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from dsnb.pipeline.splits import split_providers
from dsnb.pipeline.tfrecord.crc32c import masked_crc32c
from dsnb.pipeline.tfrecord.writer import TFRecordWriter
from dsnb.pipeline.validate import AUTOTUNE
from tests.pipeline.driving import Feed, by_turns, context, outcomes, plain, run, values

HEAD, TAIL = 12, 4


def write(path: Path, records: Sequence[bytes], compression: str | None = None) -> str:
    with TFRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def records_of(file: int, count: int) -> list[bytes]:
    return [b"record %d-%d" % (file, number) for number in range(count)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [write(tmp_path / f"{file}.tfrecord", records_of(file, 3)) for file in range(3)]


ALL = [record for file in range(3) for record in records_of(file, 3)]


def test_records_come_file_after_file(files: list[str]) -> None:
    ds = TFRecordDataset(files)
    assert values(ds) == ALL
    assert (ds.element_spec, ds.cardinality()) == (TensorSpec((), BYTES), UNKNOWN_CARDINALITY)


@given(st.lists(st.lists(st.integers(0, 3000), max_size=6), max_size=4), st.integers(1, 5000), st.data())
def test_records_of_any_size_come_through_buffers_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], buffer: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    wants = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    compression = data.draw(st.sampled_from(["", "GZIP", "ZLIB"]))
    records = [[bytes([number % 251]) * size for number, size in enumerate(file)] for file in sizes]
    paths = [write(folder / str(number), file, compression) for number, file in enumerate(records)]
    ds = TFRecordDataset(paths, compression, buffer)
    assert run(ds, wants) == [record for file in records for record in file]


@pytest.mark.parametrize("reads", [1, 2, 3, 5, AUTOTUNE])
def test_files_may_be_read_side_by_side(files: list[str], reads: int) -> None:
    found = values(TFRecordDataset(files, num_parallel_reads=reads))
    assert sorted(found) == ALL
    if reads == 3:
        assert found == [record for number in range(3) for record in ALL[number::3]], "by turns"


@pytest.mark.parametrize("reads", [None, 2])
def test_names_may_come_from_a_dataset(files: list[str], reads: int | None) -> None:
    ds = TFRecordDataset(Dataset.from_tensor_slices(files), num_parallel_reads=reads)
    assert sorted(values(ds)) == ALL


def damaged(path: str, at: int, byte: int = 1) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= byte
    Path(path).write_bytes(data)


SIZE = HEAD + len(b"record 0-0") + TAIL


@pytest.mark.parametrize("at", [SIZE + HEAD, SIZE + HEAD + 9, 2 * SIZE - 1], ids=["data", "end of data", "checksum"])
def test_a_record_with_damaged_data_is_one_error(files: list[str], at: int) -> None:
    damaged(files[1], at)
    found = outcomes(TFRecordDataset(files))
    assert [plain(x) for x in found] == [*ALL[:4], "DataLossError", *ALL[5:]]
    assert f"the record at byte {SIZE} of {files[1]} has data" in str(found[4])


@pytest.mark.parametrize("at", [SIZE, SIZE + 7, SIZE + 8, SIZE + 11], ids=["low", "high", "checksum", "its end"])
def test_a_damaged_length_ends_the_file_and_not_the_others(files: list[str], at: int) -> None:
    damaged(files[1], at)
    found = outcomes(TFRecordDataset(files))
    assert [plain(x) for x in found] == [*ALL[:4], "DataLossError", *ALL[6:]]
    assert f"the record at byte {SIZE} of {files[1]} has a length" in str(found[4])


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(1, 2 * SIZE))
def test_a_file_that_is_cut_off_says_where_and_loses_nothing_before(files: list[str], cut: int) -> None:
    path = Path(files[1])
    path.write_bytes(path.read_bytes()[:cut])
    found = outcomes(TFRecordDataset(files))
    whole, rest = divmod(cut, SIZE)
    error = ["DataLossError"] if rest else []
    assert [plain(x) for x in found] == [*ALL[: 3 + whole], *error, *ALL[6:]]
    if rest:
        assert f"the record at byte {whole * SIZE} of {files[1]} is cut off" in str(found[3 + whole])


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("kind", ["cut off", "damaged", "not packed"])
def test_damage_to_what_is_packed_is_data_loss_too(tmp_path: Path, compression: str, kind: str) -> None:
    first = write(tmp_path / "a", [bytes(range(256)) * 40] * 3, compression)
    second = write(tmp_path / "b", [b"good"], compression)
    data = bytearray(Path(first).read_bytes())
    if kind == "cut off":
        data = data[: len(data) // 2]
    elif kind == "damaged":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(b"no compression at all")
    Path(first).write_bytes(data)
    found = outcomes(TFRecordDataset([first, second], compression))
    assert found[-1] == b"good"
    assert isinstance(found[-2], DataLossError)
    assert first in str(found[-2])


def test_a_length_beyond_all_memory_does_not_ask_for_it(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**62)
    (tmp_path / "r").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"short")
    (error,) = outcomes(TFRecordDataset(tmp_path / "r"))
    assert "is cut off: it should have 4,611,686,018,427,387,904 bytes" in str(error)


def test_a_file_that_is_not_there_stands_for_its_records(files: list[str]) -> None:
    found = outcomes(TFRecordDataset([files[0], "/nowhere/at.all", files[2]]))
    assert [plain(x) for x in found] == [*ALL[:3], "FileNotFoundError", *ALL[6:]]


def test_each_file_is_one_split(files: list[str]) -> None:
    ds = TFRecordDataset(files)
    assert [provider.count for provider in split_providers(ds.operation)] == [3]
    feed = Feed([3], piece=1)
    shares = by_turns([ds.operation.build(context(splits=feed.task())) for _ in range(2)])
    assert sorted(record for share in shares for record in share) == ALL
    assert all(share for share in shares)


def test_stopping_early_closes_the_file(files: list[str]) -> None:
    elements = iter(TFRecordDataset(files))
    assert next(elements) == ALL[0]
    elements.close()  # the check after each test finds an open file


@pytest.mark.parametrize(
    "arguments",
    [{"filenames": 5}, {"compression_type": "BZIP2"}, {"buffer_size": 0}, {"num_parallel_reads": 0}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_wrong_arguments_are_refused_at_the_call(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        TFRecordDataset(**{"filenames": "a", **arguments})
