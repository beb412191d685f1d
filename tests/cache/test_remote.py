"""`Dataset.cache` in what fsspec knows."""

from __future__ import annotations

import errno
import os
import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.cache.recordings.remote import RemoteFolder
from dsnb.errors import CacheWarning, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from tests.support.requires import require_module

N = 40


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    require_module("fsspec")


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    import fsspec

    path = str(tmp_path / "cache") if request.param == "file" else f"/{uuid.uuid4().hex}"
    yield f"{request.param}://{path}"
    system = fsspec.filesystem(request.param)
    if system.exists(path):
        system.rm(path, recursive=True)


def squares(calls: Path, where: str, **arguments: Any) -> Dataset:
    path = str(calls)

    def square(x: int) -> dict[str, Any]:
        with open(path, "ab", buffering=0) as file:
            file.write(b".")
        return {"x": x * x, "rows": np.full(10, x), "name": f"{x}"}

    return Dataset.range(N).map(square).cache(where, chunk_bytes=500, **arguments)


def check(elements: list[Any], count: int = N) -> None:
    assert [int(element["x"]) for element in elements] == [x * x for x in range(count)]
    assert [element["rows"].tolist() for element in elements] == [[x] * 10 for x in range(count)]


def test_one_pass_serves_all_and_goes_on_where_it_stopped(tmp_path: Path, url: str) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, url).take(7)), 7)
    for _ in range(2):
        check(list(squares(calls, url)))
    assert os.path.getsize(calls) == N
    assert [element["name"] for element in squares(calls, url).skip(38)] == ["38", "39"]


def files_of(url: str, folder: str) -> list[str]:
    import fsspec

    system, root = fsspec.core.url_to_fs(url)
    found: list[str] = system.glob(f"{root}/*/*/{folder}/*")
    return found


def test_what_is_damaged_or_gone_is_recorded_anew(tmp_path: Path, url: str) -> None:
    import fsspec

    calls = tmp_path / "calls"
    check(list(squares(calls, url)))
    system = fsspec.core.url_to_fs(url)[0]
    victim = max(files_of(url, "data"))
    data = bytearray(system.cat_file(victim))
    data[300] ^= 1
    system.pipe_file(victim, bytes(data))
    with pytest.warns(CacheWarning, match="is damaged"):
        check(list(squares(calls, url)))
    system.rm_file(max(files_of(url, "data")))
    with pytest.warns(CacheWarning, match="is gone"):
        check(list(squares(calls, url)))
    before = os.path.getsize(calls)
    check(list(squares(calls, url)))
    assert os.path.getsize(calls) == before


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_a_record_that_another_process_is_writing_is_waited_for(tmp_path: Path, url: str) -> None:
    """A file that is written in place is there before it is whole."""
    calls = tmp_path / "calls"
    check(list(squares(calls, url).take(7)), 7)
    newest = Path(max(files_of(url, "log")))
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    finishing = threading.Timer(0.2, newest.write_bytes, [whole])
    finishing.start()
    check(list(squares(calls, url)))  # a CacheWarning would be an error
    finishing.join()
    assert os.path.getsize(calls) == N, "nothing was lost"


@pytest.mark.parametrize("slot", range(10))
def test_a_record_that_is_damaged_just_before_a_run_appends_its_own_stops_no_pass(
    tmp_path: Path, url: str, slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = RemoteFolder.create

    def create_damaged(folder: RemoteFolder, name: str, data: bytes) -> bool:
        if name == f"{slot:08d}" and folder.path.endswith("/000001/log"):
            folder.write(name, b"something else\n\n")
        return create(folder, name, data)

    monkeypatch.setattr(RemoteFolder, "create", create_damaged)
    calls = tmp_path / "calls"
    with pytest.warns(CacheWarning, match="damaged"):
        check(list(squares(calls, url)))
    made = calls.stat().st_size
    check(list(squares(calls, url)))
    assert calls.stat().st_size == made, "the next pass has nothing to do"


def test_a_limit_ends_the_recording_and_not_the_pass(tmp_path: Path, url: str) -> None:
    with pytest.warns(CacheWarning, match="larger than the 2,000 bytes"):
        check(list(squares(tmp_path / "calls", url, limit_bytes=2000)))


def test_a_store_that_refuses_ends_the_recording_and_not_the_pass(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    system = fsspec.core.url_to_fs(url)[0]

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(system), "pipe_file", refuse)
    with pytest.warns(CacheWarning, match="failed: Permission denied"):
        check(list(squares(tmp_path / "calls", url)))


def test_a_protocol_that_nobody_knows_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="nosuch"):
        Dataset.range(3).cache("nosuch://place")


@pytest.mark.parametrize("where", ["redis://host:port/0"])
def test_an_address_without_a_possible_port_is_refused_at_the_call(where: str) -> None:
    require_module("redis")
    with pytest.raises(InvalidArgumentError, match="port"):
        Dataset.range(3).cache(where)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsnb.errors.CacheWarning")
@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_a_file_system_that_raises_anything_at_any_moment_stops_no_pass(tmp_path: Path, rate: float) -> None:
    import fsspec

    fsspec.register_implementation("flaky", _flaky(), clobber=True)
    for seed in range(15):
        calls = tmp_path / f"calls-{seed}"
        ds = squares(calls, f"flaky:///{seed}-{rate}")
        fsspec.filesystem("flaky").begin(seed, rate)
        for number in range(1, 4):
            check(list(ds))
            assert os.path.getsize(calls) <= number * 2 * N, f"seed {seed}"
        fsspec.filesystem("flaky").begin(seed, 0.0)
        check(list(ds))
        before = os.path.getsize(calls)
        check(list(ds))
        assert os.path.getsize(calls) == before, f"seed {seed}: it is used again"


def _flaky() -> type:
    """A file system in memory whose operations fail at random, as stores and their libraries do."""
    from fsspec.implementations.memory import MemoryFileSystem

    class Flaky(MemoryFileSystem):
        protocol = "flaky"
        draw, rate = random.Random(), 0.0

        def begin(self, seed: int, rate: float) -> None:
            type(self).draw, type(self).rate = random.Random(seed), rate

    errors = [
        *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.EACCES, errno.ENOSPC, errno.ECONNRESET)),
        *(kind("the library's own") for kind in (ValueError, TimeoutError, KeyError, RuntimeError)),
    ]

    def failing(name: str) -> Any:
        real = getattr(MemoryFileSystem, name)

        def act(self: Any, *arguments: Any, **named: Any) -> Any:
            before = self.draw.random() < 0.5
            fails = self.draw.random() < self.rate
            if fails and before:
                raise self.draw.choice(errors)
            result = real(self, *arguments, **named)
            if fails:
                raise self.draw.choice(errors)
            return result

        return act

    for name in ("cat_file", "pipe_file", "ls", "rm_file", "rm", "makedirs"):
        setattr(Flaky, name, failing(name))
    return Flaky
