"""What `TFRecordWriter` writes is the format, byte by byte, and is read again."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.tfrecord.writer import TFRecordWriter


def masked(data: bytes) -> int:
    counted: int = google_crc32c.value(data)
    return (((counted >> 15) | (counted << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def format_of(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked(length)) + record + struct.pack("<I", masked(record))


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_the_bytes_are_those_of_the_format(tmp_path: Path, compression: str) -> None:
    records = [b"", b"a", bytes(range(256)) * 9]
    path = tmp_path / "r.tfrecord"
    with TFRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    unpack: Any = {"": bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}[compression]
    assert unpack(path.read_bytes()) == b"".join(map(format_of, records))
    assert list(dsnb.TFRecordDataset(path, compression)) == records


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("w") / "r.tfrecord.gz"
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    assert path.read_bytes()[:2] == b"\x1f\x8b", "packed as its name says"
    assert list(dsnb.TFRecordDataset(path)) == records


def test_whatever_exports_bytes_is_a_record(tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "r") as writer:
        for record in (bytearray(b"ab"), memoryview(b"cd"), np.array([1, 2], "<u2")):
            writer.write(record)
    assert list(dsnb.TFRecordDataset(tmp_path / "r")) == [b"ab", b"cd", b"\1\0\2\0"]


def test_records_are_there_after_a_flush(tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "r") as writer:
        writer.write(b"one")
        writer.flush()
        assert list(dsnb.TFRecordDataset(tmp_path / "r")) == [b"one"]


@pytest.mark.parametrize("wrong", ["text", 5, None, {"x": 1}], ids=repr)
def test_what_is_no_record_is_refused_and_leaves_no_trace(tmp_path: Path, wrong: Any) -> None:
    with (
        TFRecordWriter(tmp_path / "r") as writer,
        pytest.raises(InvalidArgumentError, match=r"`record` is .*, not bytes"),
    ):
        writer.write(wrong)
    assert (tmp_path / "r").read_bytes() == b""


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = TFRecordWriter(tmp_path / "r")
    writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(FailedPreconditionError, match="is closed"):
        writer.write(b"late")


def test_wrong_arguments_are_refused_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="compression_type"):
        TFRecordWriter(tmp_path / "r", "BZIP2")
    with pytest.raises(InvalidArgumentError, match="path"):
        TFRecordWriter(["a"])
    with pytest.raises(FailedPreconditionError, match=r"`path`.*nowhere.* \(No such file"):
        TFRecordWriter(tmp_path / "nowhere" / "r")
