"""A page's place in a recorded run: what it finds there, and how little it reads for it."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dsnb.dashboard.replay import MAX_DRAWN_SAMPLES, Replay
from dsnb.monitor.run_file import RUN_FILE, RunReader
from dsnb.storage.sqlite import Database
from dsnb.wire.codec import encode
from tests.dashboard.snapshots import job, snapshot

SECONDS = 1000
BEGAN = 1_000_000.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of so many seconds, in each of which ten elements were produced; nothing was kept in the last hundred."""
    made = tmp_path_factory.mktemp("replay") / "run.db"
    with closing(Database(made, RUN_FILE)) as database, database.transaction():
        rows = [packed(second) for second in (*range(SECONDS - 100), SECONDS)]
        database.execute_many("INSERT INTO snapshots VALUES (?, ?)", rows)
    return made


def packed(second: int) -> tuple[float, bytes]:
    told = snapshot(second + 1, time=BEGAN + second, jobs=(job(produced=10 * second),))
    return told.time, zlib.compress(encode(told))


@pytest.fixture
def reader(path: Path) -> Iterator[RunReader]:
    with RunReader(path) as opened:
        yield opened


@pytest.fixture
def replay(reader: RunReader) -> Replay:
    standing = Replay(reader)
    standing.play(on=False)
    return standing


def test_it_shows_the_newest_that_is_not_younger_than_its_place(replay: Replay) -> None:
    replay.seek(BEGAN + 42.7)
    latest = replay.latest()
    assert latest is not None
    assert latest.arrived_at == BEGAN + 42
    assert [one.arrived_at - BEGAN for one in replay.since(BEGAN + 39)] == [40, 41, 42]
    assert replay.since(BEGAN + 39)[-1].rates.job("train").produced == 10
    replay.seek(BEGAN + 950)  # amid the silence
    assert replay.latest().arrived_at == BEGAN + 899  # type: ignore[union-attr]


def test_a_long_span_is_shown_from_bounded_many_and_ends_with_the_newest(replay: Replay) -> None:
    replay.seek(BEGAN + 899)
    found = [one.arrived_at - BEGAN for one in replay.since(BEGAN - 1)]
    assert found == sorted(found)
    assert MAX_DRAWN_SAMPLES // 2 < len(found) <= MAX_DRAWN_SAMPLES + 1
    assert found[-1] == 899


@pytest.fixture
def traced(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunReader, list[str]]]:
    """A reader, and the statements that its database was asked to run."""
    asked: list[str] = []

    class Traced(Database):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.connection.set_trace_callback(asked.append)

    monkeypatch.setattr("dsnb.monitor.run_file.Database", Traced)
    with RunReader(path) as reader:
        asked.clear()
        yield reader, asked


def test_a_tick_reads_only_what_it_has_not_read_yet(traced: tuple[RunReader, list[str]]) -> None:
    reader, asked = traced
    replay = Replay(reader)
    replay.play(on=False)
    replay.seek(BEGAN + 500)
    replay.since(BEGAN + 440)
    asked.clear()
    replay.since(BEGAN + 440)
    replay.latest()
    assert asked == []
    replay.seek(BEGAN + 501)
    replay.since(BEGAN + 441)
    assert len(asked) == 1
    assert f"{BEGAN + 501}" in asked[0]


def test_a_moment_is_found_by_the_index_of_the_file(path: Path, traced: tuple[RunReader, list[str]]) -> None:
    reader, asked = traced
    reader.at(BEGAN + 500)
    reader.at(BEGAN - 1)
    assert len(list(reader.between(BEGAN + 10, BEGAN + 12))) == 3
    assert len(asked) >= 5
    with closing(sqlite3.connect(path)) as database:
        for query in asked:
            (plan,) = database.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
            assert "SEARCH snapshots USING PRIMARY KEY" in plan[-1]


def test_an_empty_run_has_no_moment(tmp_path: Path) -> None:
    Database(tmp_path / "empty.db", RUN_FILE).close()
    with RunReader(tmp_path / "empty.db") as reader:
        assert Replay(reader).latest() is None
        assert Replay(reader).since(0.0) == []
