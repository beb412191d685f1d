"""`TextLineDataset`: lines as text, through compression, past what cannot be read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import TextLineDataset
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, by_turns, context, outcomes, plain, run, values

LINES = [f"line {number} ü" for number in range(500)]
TEXT = ("\n".join(LINES) + "\n").encode()


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("wants", [[1], [7], [1024]], ids=str)
@pytest.mark.parametrize(
    "name, compression, pack",
    [
        ("a.txt", None, bytes),
        ("a.txt.gz", None, gzip.compress),
        ("a.txt", "GZIP", gzip.compress),
        ("a.txt", "ZLIB", zlib.compress),
        ("a.gz", "", bytes),
    ],
    ids=["plain", "gz by suffix", "gz by name", "zlib", "plain by name"],
)
def test_lines_are_text_whatever_the_compression(
    tmp_path: Path, name: str, compression: str | None, pack: Callable[[bytes], bytes], wants: list[int]
) -> None:
    path = write(tmp_path / name, pack(TEXT))
    assert run(TextLineDataset(path, compression, buffer_size=100), wants) == LINES


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\r\nb\n", ["a", "b"]),
        (b"\n\na\n", ["", "", "a"]),
        (b"a\rb\n", ["a\rb"]),
    ],
    ids=["empty", "no end", "windows", "empty lines", "return inside"],
)
def test_line_ends_are_taken_off(tmp_path: Path, data: bytes, lines: list[str]) -> None:
    assert values(TextLineDataset(write(tmp_path / "a", data))) == lines


def test_files_follow_each_other(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, f"{name}\n".encode()) for name in "abc"]
    assert values(TextLineDataset(paths)) == ["a", "b", "c"]


def test_it_can_be_the_function_of_interleave(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, f"{name}1\n{name}2\n".encode())
    ds = Dataset.list_files(f"{tmp_path}/*", shuffle=False).interleave(TextLineDataset, cycle_length=2)
    assert values(ds) == ["a1", "b1", "a2", "b2"]


def test_a_missing_file_is_an_error_in_its_place(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", b"a\n"), str(tmp_path / "missing"), write(tmp_path / "b", b"b\n")]
    assert [plain(x) for x in outcomes(TextLineDataset(paths))] == ["a", "FileNotFoundError", "b"]


def test_a_line_that_is_no_text_is_an_error_in_its_place(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"a\n\xff\nb\n\xfe\n")
    found = [plain(x) for x in outcomes(TextLineDataset(path))]
    assert found == ["a", "UnicodeDecodeError", "b", "UnicodeDecodeError"]


@pytest.mark.parametrize("compression, pack", [("GZIP", gzip.compress), ("ZLIB", zlib.compress)])
def test_a_file_cut_short_is_an_error_behind_what_can_be_read(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(TEXT)
    paths = [write(tmp_path / "a", whole[: len(whole) // 2]), write(tmp_path / "b", pack(b"b\n"))]
    found = [plain(x) for x in outcomes(TextLineDataset(paths, compression))]
    assert found[-2:] == ["DataLossError", "b"]
    assert found[:-2] == LINES[: len(found) - 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"compression_type": "gzip"},
        {"filenames": 5},
        {"filenames": ["a", 5]},
        {"filenames": Dataset.range(1)},
        {"buffer_size": 0},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    arguments = {"filenames": "a", **wrong}
    with pytest.raises(InvalidArgumentError):
        TextLineDataset(**arguments)  # type: ignore[arg-type]


def test_one_file_is_one_split(tmp_path: Path) -> None:
    paths = [write(tmp_path / str(n), f"{n}\n{n}\n".encode()) for n in range(5)]
    ds = TextLineDataset(paths)
    feed = Feed([provider.count for provider in split_providers(ds.operation)], piece=1)
    first, second = by_turns([ds.operation.build(context(splits=feed.task())) for _ in range(2)])
    assert sorted(first + second) == sorted(f"{n}" for n in range(5) for _ in range(2))
    assert not set(first) & set(second)
