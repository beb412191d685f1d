"""`Dataset.cache` on a real Redis server."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dsnb.cache.recordings.recording import decode_record, encode_record
from dsnb.errors import CacheWarning, FailedPreconditionError, PermissionDeniedError
from dsnb.pipeline.dataset import Dataset
from dsnb.storage.failpoints import failpoint_hook
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


def test_a_heartbeat_under_way_at_the_end_leaves_nothing_behind(server: RedisServer) -> None:
    beating, removed = threading.Event(), threading.Event()

    def hold_the_heartbeat(name: str, when: str) -> None:
        if (name, when) == ("redis beat", "before"):
            beating.set()
            removed.wait(0.5)
        elif (name, when) == ("redis forget", "after"):
            removed.set()

    def wait_for_heartbeat(x: int) -> int:
        assert beating.wait(10.0)
        return x

    with failpoint_hook(hold_the_heartbeat):
        assert len(list(Dataset.range(3).map(wait_for_heartbeat).cache(server.url, lease_seconds=0.2))) == 3
    assert removed.is_set()
    with server.client() as client:
        assert list(client.scan_iter("dsnb:*:beat")) == []


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
    check(list(squares(calls, server.url, expire_seconds=1.5)))

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
        with pytest.raises(PermissionDeniedError, match="rejects the user name or the password") as caught:
            list(ds)
        assert "secret" not in str(caught.value)
        right = server.url.replace("redis://", "redis://:secret@")
        assert [int(x) for x in Dataset.range(3).cache(right)] == [0, 1, 2]


def test_a_recording_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url)))
    with server.client() as client:
        (log,) = client.scan_iter("dsnb:*:log")
        newer = encode_record(replace(decode_record(client.hget(log, "0")), version=2))
        client.hset(log, "0", newer)
        with pytest.raises(FailedPreconditionError, match="written by a newer version of dsnb"):
            list(squares(calls, server.url))
        assert client.hget(log, "0") == newer
    assert count(calls) == N


def test_a_server_that_is_not_there_is_named_and_stops_no_pass(tmp_path: Path) -> None:
    require("redis-server")
    with pytest.warns(CacheWarning, match=r"127\.0\.0\.1:1 cannot be reached"):
        check(list(squares(tmp_path / "calls", "redis://127.0.0.1:1/0")))


def test_a_server_that_is_gone_between_two_epochs_does_not_end_the_training(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsnb.cache.recordings.redis._RETRY_S", 0.2)
    calls = tmp_path / "calls"
    ds = squares(calls, server.url)
    check(list(ds))
    server.kill()
    for _ in range(2):
        with pytest.warns(CacheWarning, match="cannot be reached"):
            check(list(ds))
    assert count(calls) == 3 * N
    server.start()
    for _ in range(2):
        check(list(ds))
    assert count(calls) == 4 * N, "it has lost everything, and is used again"


@pytest.mark.filterwarnings("ignore::dsnb.errors.CacheWarning")
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_evicts_costs_no_pass_more_than_two_calls_for_an_element(tmp_path: Path, policy: str) -> None:
    calls = tmp_path / "calls"
    settings = ("--maxmemory", "6mb", "--maxmemory-policy", policy)
    with RedisServer(tmp_path, *settings) as server:
        for number in range(1, 5):
            before = count(calls) if number > 1 else 0
            check(list(squares(calls, server.url, width=40_000)))
            assert count(calls) - before <= 2 * N, f"pass {number}"


@pytest.mark.filterwarnings("ignore::dsnb.errors.CacheWarning")
@pytest.mark.parametrize("what", ["dsnb:*:log", "dsnb:data:*", "dsnb:*"])
def test_a_server_that_forgets_again_and_again_costs_no_more_than_two_calls_for_an_element(
    tmp_path: Path, server: RedisServer, what: str
) -> None:
    calls = tmp_path / "calls"
    ds = squares(calls, server.url)
    with server.client() as client:
        for number in range(1, 4):
            for index, element in enumerate(ds):
                check([element], index, index + 1)
                if index % 4 == 0:
                    client.unlink("", *client.scan_iter(what))
            assert count(calls) <= number * 2 * N


@pytest.mark.parametrize("value", [b"many", b"-3", b""])
def test_a_damaged_counter_on_the_server_is_no_raw_error(tmp_path: Path, server: RedisServer, value: bytes) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url)))
    with server.client() as client:
        (newest,) = client.scan_iter("dsnb:*:newest")
        client.set(newest, value)
        check(list(squares(calls, server.url)))
        assert count(calls) == N, "the recording is found all the same"
        client.delete(*client.scan_iter("dsnb:*:log"))
        check(list(squares(calls, server.url)))
        check(list(squares(calls, server.url)))
    assert count(calls) == 2 * N


@pytest.mark.parametrize("name", ["newest", "1:log", "1:beat"])
def test_a_key_of_another_kind_on_the_server_is_no_raw_error(tmp_path: Path, server: RedisServer, name: str) -> None:
    calls = tmp_path / "calls"
    ds = squares(calls, server.url)
    check(list(ds.take(5)), last=5)
    with server.client() as client:
        (newest,) = client.scan_iter("dsnb:*:newest")
        key = newest.decode().replace("newest", name)
        client.delete(key)
        client.rpush(key, "what")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        check(list(squares(calls, server.url)))


@pytest.mark.slow
def test_a_replica_that_may_only_be_read_is_read(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    check(list(squares(calls, server.url)))
    (tmp_path / "replica").mkdir()
    primary = ("--replicaof", "127.0.0.1", str(server.port))
    with RedisServer(tmp_path / "replica", *primary) as replica:
        with replica.client() as client:
            wait_for(lambda: client.info("replication")["master_link_status"] == "up", what="the replica", timeout=60)
        # The address is no part of a recording's key.
        check(list(squares(calls, replica.url)))
        assert count(calls) == N
        with pytest.warns(CacheWarning, match="read only replica"):
            assert len(list(squares(calls, replica.url, width=11))) == N
        server.kill()
        check(list(squares(calls, replica.url)))
    assert count(calls) == 2 * N


def test_connections_that_the_server_closes_cost_nothing(tmp_path: Path, server: RedisServer) -> None:
    calls = tmp_path / "calls"
    with server.client() as client:
        for _ in range(2):
            for number, element in enumerate(squares(calls, server.url)):
                check([element], number, number + 1)
                if number % 5 == 0:
                    client.client_kill_filter(_type="normal", skipme=True)
    assert count(calls) == N


def test_a_password_that_changes_between_two_epochs_does_not_end_the_training(
    tmp_path: Path, server: RedisServer
) -> None:
    ds = squares(tmp_path / "calls", server.url)
    check(list(ds))
    with server.client() as client:
        client.config_set("requirepass", "new")
    with pytest.warns(CacheWarning, match="rejects the user name or the password"):
        check(list(ds))
