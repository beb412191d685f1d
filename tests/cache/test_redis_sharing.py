"""Runs in processes of their own that share one recording on a real Redis server, which is restarted meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dsnb.cache.recordings.recording import Chunk, decode_record
from tests.cache.company import CHUNK, Going, Runs, kill_at_random, report
from tests.support.redis import RedisServer
from tests.support.requires import require_module
from tests.support.waiting import wait_for

GONE = "is gone: it was restarted"
PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    require_module("redis")


Begin = Callable[..., tuple[RedisServer, Runs]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def start(length: int, pause: float, *settings: str) -> tuple[RedisServer, Runs]:
            server = stack.enter_context(RedisServer(tmp_path, *settings))
            return server, Runs(tmp_path, length, pause, stack, server.url)

        yield start


def restart(server: RedisServer, told: str = "") -> Callable[[Going], None]:
    """Kill the server as the system would, start it again, and wait until one of the runs has told of it."""

    def act(going: Going) -> None:
        server.kill()
        server.start()
        wait_for(lambda: any(told in process.stderr for process in going), what="what the writer says", timeout=60)

    return act


def strays(client: Any) -> list[str]:
    """Data on the server that stay and are in no record, or are in a record and will not stay."""
    logs = client.scan_iter("dsnb:*:log")
    records = [decode_record(data) for log in logs for name, data in client.hgetall(log).items()
               if name != b"id"]  # fmt: skip
    named = {f"dsnb:data:{place.name}:0" for record in records if isinstance(record, Chunk) for place in record.frames}
    staying = {key.decode() for key in client.scan_iter("dsnb:data:*") if client.pttl(key) == -1}
    return sorted(named ^ staying)


@pytest.mark.slow
def test_a_follower_takes_over_when_the_writer_is_killed(begin: Begin) -> None:
    server, runs = begin(150, 0.01)
    started = [runs.start() for _ in range(3)]
    wait_for(lambda: runs.calls() > 40, what="forty elements", timeout=60)
    victim = runs.writer()
    for process in started:
        if process.pid == victim:
            process.kill()
        else:
            runs.finished(process)
    assert runs.calls() <= runs.length + CHUNK
    with server.client() as client:
        assert strays(client) == []


@pytest.mark.slow
def test_where_the_server_persists_a_restart_of_it_loses_nothing(begin: Begin) -> None:
    server, runs = begin(250, 0.03, *PERSISTENT)
    kill_at_random(runs, 3, 4.0, seed=1, meanwhile=restart(server))
    assert runs.deaths >= 1
    assert GONE not in runs.told
    assert "recorded anew" not in runs.told
    assert runs.calls() <= runs.most_calls() + CHUNK  # the restart may cost a chunk, too
    with server.client() as client:
        assert strays(client) == []


@pytest.mark.slow
def test_where_it_does_not_all_is_recorded_anew_and_that_is_said(begin: Begin) -> None:
    server, runs = begin(250, 0.03)
    kill_at_random(runs, 3, 4.0, seed=2, meanwhile=restart(server, GONE))
    assert GONE in runs.told
    # One of them begins anew, or goes on from what it had.
    assert runs.calls() <= runs.length + runs.most_calls() + CHUNK
    with server.client() as client:
        assert strays(client) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("persistent", [True, False], ids=["with persistence", "without"])
def test_four_runs_a_killer_and_a_restart_of_the_server_in_two_minutes(begin: Begin, persistent: bool) -> None:
    server, runs = begin(3500, 0.02, *(PERSISTENT if persistent else ()))
    kill_at_random(runs, 4, 120.0, seed=3, meanwhile=restart(server, "" if persistent else GONE))
    report(runs)
    assert runs.deaths > 15
    assert (GONE in runs.told) is not persistent
    assert runs.calls() <= runs.most_calls() + CHUNK + (0 if persistent else runs.length)
    with server.client() as client:
        assert strays(client) == []
