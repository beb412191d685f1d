"""Files by URL: what is a URL, what is refused, what is read, and what errors say."""

from __future__ import annotations

import os
import random
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import _base as futures
from pathlib import Path

import pytest

from dsnb.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.storage import read_ahead, urls
from dsnb.storage.read_ahead import ReadAhead
from dsnb.storage.urls import RemoteFile
from tests.support.file_server import FileServer
from tests.support.interrupting import interrupted_at
from tests.support.requires import require_module

DATA = random.Random(1).randbytes(300_000)


@pytest.fixture(autouse=True)
def installed() -> None:
    require_module("fsspec")
    require_module("aiohttp")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "a.bin").write_bytes(DATA)
    with FileServer(tmp_path) as served:
        yield served


@pytest.mark.parametrize(
    "path, expected",
    [
        ("file:///data/a", "/data/a"),
        ("a", os.path.abspath("a")),
        ("s3://bucket/a", "s3://bucket/a"),
        ("simplecache::s3://bucket/a", "simplecache::s3://bucket/a"),
        ("/data/a:/b", "/data/a:/b"),
    ],
)
def test_paths_become_absolute_and_urls_stay(path: str, expected: str) -> None:
    assert urls.absolute(path) == expected


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@host/a",
        "https://secret@host/a",
        "simplecache::ftp://me:secret@host/a",
        "ftp://me:secret@[a-z]/b",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="holds a password") as caught:
        urls.check_file_url("paths", url)
    assert "secret" not in str(caught.value)
    assert "environment variables" in caught.value.hint


@pytest.mark.parametrize("url", ["memory://datasets/me/set@main/a.parquet", "memory://bucket/a@b:c/d"])
def test_an_at_sign_in_a_path_is_no_password(url: str) -> None:
    assert urls.check_file_url("paths", url) == url


def test_an_unknown_protocol_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="begins with s4://, which fsspec does not know"):
        urls.check_file_url("paths", "s4://bucket/a")


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls.importlib.util, "find_spec", lambda _name: None)  # a machine without fsspec
    with pytest.raises(FailedPreconditionError, match="reading from s3:// needs the package fsspec") as caught:
        urls.check_file_url("paths", "s3://bucket/a")
    assert caught.value.hint == "pip install 'dsnb[remote]'"


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("block_bytes", [30_000, 65_536, 1 << 20])
def test_reading_ahead_gives_all_bytes_in_order(server: FileServer, block_bytes: int, ranges: bool) -> None:
    server.ranges = ranges
    with ReadAhead(RemoteFile(f"{server.url}/a.bin"), block_bytes) as file:
        assert file.read() == DATA


def test_several_blocks_are_under_way_at_once(server: FileServer) -> None:
    server.delay_s = 0.02
    with ReadAhead(RemoteFile(f"{server.url}/a.bin"), 10_000) as file:
        read = b"".join(iter(lambda: file.read(10_000), b""))
    assert read == DATA
    assert server.most_at_once > 1


def test_an_interrupted_wait_for_a_block_loses_none(server: FileServer) -> None:
    remote = RemoteFile(f"{server.url}/a.bin")
    with interrupted_at([futures], None) as count, ReadAhead(remote, 30_000) as file:
        assert file.read() == DATA
    interrupts = 0
    for at in range(0, count.lines, max(1, count.lines // 15)):
        read = b""
        with interrupted_at([futures], at), ReadAhead(remote, 30_000) as file:
            for _ in range(len(DATA) // 30_000 + 1):
                try:
                    read += file.read(30_000)
                except KeyboardInterrupt:
                    interrupts += 1
        assert read == DATA, f"interrupted at line {at} of {count.lines}"
    assert interrupts


def test_a_failed_request_is_repeated(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_FIRST_PAUSE_S", 0.001)
    server.failures = 2
    assert RemoteFile(f"{server.url}/a.bin").read(10, 20) == DATA[10:20]


def test_a_store_that_keeps_failing_is_an_error_that_shows_no_signature(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_FIRST_PAUSE_S", 0.001)
    file = RemoteFile(f"{server.url}/a.bin?signature=secret")
    server.failures = 3
    with pytest.raises(UnavailableError, match=r"/a.bin cannot be read: .*503") as caught:
        file.read(0, 10)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_missing_file_names_the_host(server: FileServer) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.bin") as caught:
        RemoteFile(f"{server.url}/missing.bin")
    assert socket.gethostname() in caught.value.__notes__[0]
    assert "other local files" in caught.value.__notes__[0]


def test_a_new_version_of_a_file_has_another_version_text(server: FileServer) -> None:
    url = f"{server.url}/a.bin"
    before = urls.version_text(url)
    (server.folder / "a.bin").write_bytes(DATA[::-1])
    os.utime(server.folder / "a.bin", ns=(1, 1))
    assert before != urls.version_text(url)
    assert urls.version_text(f"{url}.missing") is None


def test_a_block_that_does_not_arrive_is_an_error(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "DEADLINE_S", 0.001)
    file = RemoteFile(f"{server.url}/a.bin")
    server.delay_s = 0.2
    with pytest.raises(read_ahead.DeadlineExceededError, match=r"a.bin did not arrive within 0.001 s"):
        ReadAhead(file).read(1)


def test_patterns_match_the_files_of_a_store() -> None:
    import fsspec

    root = f"/{uuid.uuid4().hex}"
    system = fsspec.filesystem("memory")
    system.pipe({f"{root}/{name}": b"x" for name in ("b.txt", "a.txt", "deep/c.txt", "a.bin")})
    try:
        assert urls.matching_urls(f"memory:/{root}/*.txt") == [f"memory://{root}/a.txt", f"memory://{root}/b.txt"]
        assert len(urls.matching_urls(f"memory:/{root}/**")) == 4
        (cached, _) = urls.matching_urls(f"simplecache::memory:/{root}/*.txt")
        assert cached == f"simplecache::memory://{root}/a.txt"
    finally:
        system.rm(root, recursive=True)


def test_the_query_of_an_https_url_is_no_pattern() -> None:
    assert urls.matching_urls("https://host/a.tar?x=1") == ["https://host/a.tar?x=1"]
