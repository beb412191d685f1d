"""`Dataset.cache` on a real Redis server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.cache.recording import decode, encode
from dsnb.errors import CacheWarning, FailedPreconditionError, PermissionDeniedError, UnavailableError
from dsnb.pipeline.dataset import Dataset
from tests.support.redis import RedisServer
from tests.support.requires import require, require_module
from tests.support.waiting import wait_for

N = 40


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    require_module("redis")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


def squares(calls: Path, where: str, width: int = 10, **arguments: Any) -> Dataset:
    path = str(calls)

    def square(x: int) -> dict[str, Any]:
        with open(path, "ab", buffering=0) as file:
            file.write(b".")
        return {"x": x * x, "rows": np.full(width, x), "name": f"{x}"}

    return Dataset.range(N).map(square).cache(where, chunk_bytes=width * 50, **arguments)


def count(calls: Path) -> int:
    return os.path.getsize(calls)


def check(elements: list[Any], first: int = 0, last: int = N) -> None:
    assert [int(element["x"]) for element in elements] == [x * x for x in range(first, last)]
    assert [int(element["rows"][-1]) for element in elements] == list(range(first, last))


def test_one_pass_serves_all_and_goes_on_where_it_stopped(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url).take(7)), last=7)
    for _ in range(2):
        check(list(squares(calls, server.url)))
    assert count(calls) == N
    check(list(squares(calls, server.url).skip(38)), first=38)


def test_elements_larger_than_a_piece_come_back_whole(tmp_path: Path, server: RedisServer) -> None:
    ds = Dataset.range(2).map(lambda x: np.arange(700_000) + x).cache(server.url)
    for _ in range(2):
        assert [(int(row[0]), int(row[-1]), len(row)) for row in ds] == [(0, 699_999, 700_000), (1, 700_000, 700_000)]


@pytest.mark.parametrize("when", ["after", "in the middle"])
def test_what_the_server_forgot_is_recorded_anew_and_that_is_said(
    tmp_path: Path, server: RedisServer, when: str
) -> None:
    calls = tmp_path / "calls"
    ds = squares(calls, server.url)
    elements = iter(ds)
    found = [next(elements) for _ in range(N if when == "after" else 20)]
    with server.client() as client:
        client.flushall()
    if when == "after":
        elements.close()
        check(list(ds))
    else:
        with pytest.warns(CacheWarning, match="is gone: it was restarted, emptied or evicts"):
            found += elements
    check(found)
    before = count(calls)
    check(list(ds))
    assert count(calls) == before


def test_a_server_restarted_with_persistence_has_lost_nothing(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        with iter(squares(calls, server.url)) as elements:
            found = [next(elements) for _ in range(20)]
            server.kill()
            server.start()
            found += elements
        check(found)
        check(list(squares(calls, server.url)))
        assert count(calls) == N


def test_a_server_restarted_without_persistence_is_recorded_anew(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    with iter(squares(calls, server.url)) as elements:
        found = [next(elements) for _ in range(20)]
        server.kill()
        server.start()
        with pytest.warns(CacheWarning, match="is gone: it was restarted"):
            found += elements
    check(found)
    before = count(calls)
    check(list(squares(calls, server.url)))
    assert count(calls) == before


def test_what_the_server_evicted_is_noticed_and_recorded_anew(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url)))
    with server.client() as client:
        client.delete(max(client.scan_iter("dsnb:data:*")))
        rest = set(client.scan_iter("dsnb:data:*"))
        with pytest.warns(CacheWarning, match="has dropped a part of what was recorded"):
            check(list(squares(calls, server.url)))
        assert {client.pttl(key) for key in client.scan_iter("dsnb:data:*") if key not in rest} == {-1}
        assert min(client.pttl(key) for key in rest) > 0, "what nobody reads any more goes"
    before = count(calls)
    check(list(squares(calls, server.url)))
    assert count(calls) == before


def test_a_server_that_may_evict_is_told_of_at_the_start(tmp_path: Path) -> None:
    may = pytest.warns(CacheWarning, match="may evict what is recorded")
    with RedisServer(tmp_path, "--maxmemory-policy", "allkeys-lru") as server, may:
        check(list(squares(tmp_path / "calls", server.url)))


def test_a_full_server_ends_the_recording_and_not_the_pass(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with RedisServer(tmp_path, "--maxmemory", "6mb") as server:
        ds = squares(calls, server.url, width=40_000)
        with pytest.warns(CacheWarning, match=rf"127.0.0.1:{server.port} is full \(maxmemory is 6291456 bytes\)"):
            check(list(ds))
        assert count(calls) == N


def test_a_limit_ends_the_recording_and_not_the_pass(tmp_path: Path, server: RedisServer) -> None:
    with pytest.warns(CacheWarning, match="larger than the 2,000 bytes"):
        check(list(squares(tmp_path / "calls", server.url, limit_bytes=2000)))


def test_what_nobody_reads_expires(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url, expire_seconds=0.3)))

    def empty() -> bool:
        with server.client() as client:
            return not list(client.scan_iter("dsnb:data:*")) and not list(client.scan_iter("dsnb:*:log"))

    wait_for(empty, what="the expiry")
    check(list(squares(calls, server.url, expire_seconds=30)))
    assert count(calls) == 2 * N


def test_without_an_expiry_everything_stays(tmp_path: Path, server: RedisServer) -> None:
    check(list(squares(tmp_path / "calls", server.url)))
    with server.client() as client:
        assert {client.pttl(key) for key in client.scan_iter("dsnb:*")} == {-1}


@pytest.mark.parametrize("password", ["", "wrong:"])
def test_a_password_is_asked_for_and_never_shown(tmp_path: Path, password: str) -> None:
    with RedisServer(tmp_path, password="secret") as server:
        url = server.url.replace("redis://", f"redis://:{password}secret@" if password else "redis://")
        ds = Dataset.range(3).cache(url)
        assert "secret" not in repr(ds)
        with pytest.raises(PermissionDeniedError, match="asks for another user name or password") as caught:
            list(ds)
        assert "secret" not in str(caught.value)
        right = server.url.replace("redis://", "redis://:secret@")
        assert [int(x) for x in Dataset.range(3).cache(right)] == [0, 1, 2]


def test_a_recording_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url)))
    with server.client() as client:
        (log,) = client.scan_iter("dsnb:*:log")
        newer = encode(replace(decode(client.hget(log, "0")), version=2))
        client.hset(log, "0", newer)
        with pytest.raises(FailedPreconditionError, match="written by a newer version of dsnb"):
            list(squares(calls, server.url))
        assert client.hget(log, "0") == newer
    assert count(calls) == N


def test_a_server_that_is_not_there_is_named() -> None:
    require("redis-server")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        iter(Dataset.range(3).cache("redis://127.0.0.1:1/0"))
