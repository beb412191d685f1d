"""`list_files`, `TextLineDataset` and `TFRecordDataset` by URL: the same elements as from local files."""

from __future__ import annotations

import gzip
import os
import pickle
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import TextLineDataset, TFRecordDataset
from dsnb.pipeline.graph import serialise
from dsnb.storage import urls
from tests.pipeline.driving import outcomes, plain, run, values
from tests.support.file_server import FileServer
from tests.support.requires import require_module

LINES = [f"line {number} ü" for number in range(3000)]
TEXT = ("\n".join(LINES) + "\n").encode()


@pytest.fixture(autouse=True)
def installed() -> None:
    require_module("aiohttp")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    with FileServer(tmp_path) as served:
        yield served


@pytest.mark.parametrize(
    "name, compression, pack",
    [
        ("a.txt", None, bytes),
        ("a.txt.gz", None, gzip.compress),
        ("a.txt.gz?version=1", None, gzip.compress),
        ("a.txt", "GZIP", gzip.compress),
        ("a.txt", "ZLIB", zlib.compress),
    ],
)
def test_lines_are_those_of_the_local_file(
    server: FileServer, name: str, compression: str | None, pack: Callable[[bytes], bytes]
) -> None:
    (server.folder / name.partition("?")[0]).write_bytes(pack(TEXT))
    assert run(TextLineDataset(f"{server.url}/{name}", compression), [100]) == LINES


def test_records_of_several_files_are_read_by_turns(server: FileServer) -> None:
    for name in "ab":
        with dsnb.TFRecordWriter(str(server.folder / name)) as writer:
            for number in range(3):
                writer.write(f"{name}{number}".encode())
    ds = TFRecordDataset([f"{server.url}/{name}" for name in "ab"], num_parallel_reads=dsnb.AUTOTUNE)
    assert values(ds) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


def test_interleave_has_several_files_under_way(server: FileServer) -> None:
    for name in "abcd":
        (server.folder / name).write_bytes(f"{name}\n".encode())
    server.delay_s = 0.02
    names = Dataset.from_tensor_slices([f"{server.url}/{name}" for name in "abcd"])
    assert values(names.interleave(TextLineDataset, num_parallel_calls=dsnb.AUTOTUNE)) == list("abcd")
    assert server.most_at_once > 1


@pytest.mark.parametrize("kind", [TextLineDataset, TFRecordDataset])
def test_a_missing_file_is_one_error_in_its_place(server: FileServer, kind: Any) -> None:
    (server.folder / "a").write_bytes(b"")
    found = outcomes(kind([f"{server.url}/missing", f"{server.url}/a", f"{server.url}/gone"]))
    assert [plain(error) for error in found] == ["FileNotFoundError", "FileNotFoundError"]
    assert "looked for on the host" in found[0].__notes__[0]


def test_a_missing_local_file_names_the_host_too(tmp_path: Path) -> None:
    (error,) = outcomes(TextLineDataset(str(tmp_path / "missing")))
    assert "other local files" in error.__notes__[0]


@pytest.mark.parametrize("kind", [TextLineDataset, TFRecordDataset])
def test_a_file_that_its_store_does_not_give_is_one_error_and_the_next_file_follows(
    server: FileServer, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_ATTEMPTS", 1)
    for name in "ab":
        with dsnb.TFRecordWriter(str(server.folder / name)) as writer:
            writer.write(b"x")
    server.failures = 1
    found = [plain(one) for one in outcomes(kind([f"{server.url}/{name}" for name in "ab"]))]
    assert found[0] == "UnavailableError"
    assert found[1:2] == [b"x"] if kind is TFRecordDataset else len(found) == 2


def test_the_files_of_a_store_are_listed_sorted_and_as_urls() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe({"/listed/b.txt": b"b\n", "/listed/a.txt": b"a\n"})
    try:
        listed = Dataset.list_files("memory://listed/*.txt", shuffle=False)
        assert values(listed) == ["memory:///listed/a.txt", "memory:///listed/b.txt"]
        assert values(listed.flat_map(TextLineDataset)) == ["a", "b"]
        with pytest.raises(NotFoundError, match="no file matches"):
            Dataset.list_files("memory://listed/*.png")
    finally:
        system.rm("/listed", recursive=True)


@pytest.mark.parametrize(
    "use, name",
    [
        (TextLineDataset, "filenames"),
        (TFRecordDataset, "filenames"),
        (dsnb.ParquetDataset, "paths"),
        (dsnb.WebDataset, "urls"),
        (Dataset.list_files, "file_pattern"),
        (Dataset.load, "path"),
        (Dataset.range(1).cache, "where"),
    ],
)
@pytest.mark.parametrize("url", ["https://me:hush@host/a", "simplecache::https://me:hush@host/a*"])
def test_a_password_is_refused_at_the_call_and_not_shown(use: Callable[[str], Any], name: str, url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{name}` holds a password") as caught:
        use(url)
    assert "hush" not in "".join(traceback.format_exception_only(caught.value))


def test_an_address_that_cannot_be_saved_to_is_shown_without_its_password() -> None:
    with pytest.raises(UnimplementedError, match="`path` is a URL: https://host/a") as caught:
        Dataset.range(1).save("https://me:hush@host/a")
    assert "hush" not in str(caught.value)


def test_credentials_are_in_no_pickle_and_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-store")
    ds = TextLineDataset(["s3://bucket/a.txt"])
    definition = serialise(ds.operation)
    assert b"secret-of-the-store" not in pickle.dumps(definition)
    assert "secret" not in repr(ds)


def test_another_version_of_a_file_gives_another_state(server: FileServer) -> None:
    """The caches compare these states: a result of the old version is not used for the new one."""
    from dsnb.cache.opened_files import OpenedFiles, file_states, first_change

    path, url = server.folder / "a.txt", f"{server.url}/a.txt?signature=secret"
    path.write_bytes(b"a\n")
    ds, opened = TextLineDataset(url), OpenedFiles()
    assert set(fingerprint(ds.operation).files) == {url}
    states = file_states([url], "change")
    opened.add_url(url, urls.version_text(url))
    assert opened.states("change") == states
    assert first_change(states) == ""
    path.write_bytes(b"b\n")
    os.utime(path, ns=(1, 1))
    assert first_change(states) == f"the file {server.url}/a.txt has changed since it was read"
    path.unlink()
    assert first_change(states).endswith("is not there any more")
