"""A run in a file: written while it happens, read while it is written and afterwards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import dsnb
from dsnb.errors import DataLossError, FailedPreconditionError, NotFoundError
from dsnb.monitor.run_file import RunReader, RunWriter
from tests.support.cluster import Cluster
from tests.support.dispatchers import KillableCluster
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def service() -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=1, name="recorded") as started:
        yield started


def kept(path: Path) -> list[float]:
    with RunReader(path) as reader:
        return reader.times()


@pytest.mark.usefixtures("patient_status")
def test_a_run_can_be_read_while_it_is_written_and_is_whole_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Cluster(workers=1) as cluster:
        data = dsnb.Dataset.range(50).apply(dsnb.distribute("distributed_epoch", cluster.service, job_name="train"))
        began = time.time()
        with cluster.service.record(path, every=0.1), iter(data) as elements:
            first(10, elements)
            wait_for(lambda: len(kept(path)) >= 3, what="three snapshots")
            rest = numbers(elements)
        assert len(rest) == 40
        live = cluster.job("train")
    with RunReader(path) as reader:
        times = reader.times()
        assert began <= times[0] < times[-1] <= time.time()
        played = [snapshot.seq for snapshot in reader.between(times[0], times[-1])]
        assert played == sorted(played)
        last = reader.at(times[-1]).job("train")
        assert last is not None
        assert (last.produced, last.consumed) == (live.produced, live.consumed) == (50, 50)
        assert [grant.state for grant in last.grants] == [grant.state for grant in live.grants]
        assert reader.at(times[1] + 1e-6) == reader.at(times[1])
        assert reader.at(0.0) == reader.at(times[0])
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.slow
def test_a_service_that_needs_three_seconds_to_answer_is_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with KillableCluster(tmp_path) as cluster:
        cluster.dispatcher.wait_until_ready()
        with cluster.dispatcher.suspended():
            began = time.monotonic()
            writer = cluster.service.record(path, every=600)  # so no later snapshot makes up for the first one
            wait_for(lambda: time.monotonic() > began + 3.0, what="three seconds to pass")
        wait_for(lambda: kept(path), what="the snapshot")
        writer.stop()


def test_a_writer_ends_with_its_service(tmp_path: Path) -> None:
    with dsnb.start(workers=0, name="ends") as started:
        writer = started.record(tmp_path / "run.db", every=0.1)
    assert repr(writer).endswith("stopped)")
    assert kept(tmp_path / "run.db")


@pytest.mark.slow
def test_a_long_run_stays_within_bounds_and_keeps_its_beginning(tmp_path: Path, service: dsnb.DataService) -> None:
    path = tmp_path / "run.db"
    with RunWriter(path, service.target, service.token, every_s=0.1, max_snapshots=8):
        wait_for(lambda: len(kept(path)) >= 3, what="the first snapshots")
        beginning = kept(path)[0]
        wait_for(lambda: kept(path)[-1] - beginning > 2.0, what="two seconds to be kept")
    times = kept(path)
    assert len(times) <= 9
    assert times[0] == beginning
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] > min(gaps[-4:-1])


def test_a_writer_goes_on_when_the_dispatcher_is_back_and_behind_what_an_earlier_run_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Cluster(workers=0) as cluster:
        with cluster.service.record(path, every=0.1):
            wait_for(lambda: kept(path), what="a snapshot")
        before = kept(path)
        with cluster.service.record(path, every=0.1):
            cluster.dispatcher.stop()
            cluster.restart_dispatcher()
            # The one that was started again has another token; nothing comes of it, and nothing breaks.
        assert kept(path)[: len(before)] == before


@pytest.mark.slow
def test_what_is_no_run_is_refused_and_left_as_it_is(tmp_path: Path, service: dsnb.DataService) -> None:
    text, other, newer = tmp_path / "text", tmp_path / "other.db", tmp_path / "newer.db"
    text.write_text("this is no database, and long enough to be seen as such" * 100)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()
    with service.record(newer):
        wait_for(lambda: kept(newer), what="a snapshot")
    with sqlite3.connect(newer) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    for path, why in ((text, "not a database"), (other, "another program"), (newer, "a newer dsnb wrote it")):
        before = path.read_bytes()
        for use in (service.record, RunReader):
            with pytest.raises(FailedPreconditionError, match=why):
                use(path)
        assert path.read_bytes() == before
    with pytest.raises(NotFoundError, match="there is no file"):
        RunReader(tmp_path / "none.db")
    with pytest.raises(FailedPreconditionError, match="unable to open"):
        service.record(tmp_path / "no folder" / "run.db")


@pytest.mark.slow
def test_a_damaged_snapshot_is_told(tmp_path: Path, service: dsnb.DataService) -> None:
    path = tmp_path / "run.db"
    with service.record(path):
        wait_for(lambda: kept(path), what="a snapshot")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE snapshots SET data = x'0102'")
    database.close()
    with RunReader(path) as reader, pytest.raises(DataLossError, match="is damaged"):
        reader.at(time.time())
