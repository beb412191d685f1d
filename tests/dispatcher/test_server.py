"""Dispatchers as objects: started, stopped, asked; with real ports and calls as any client makes them."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import dsnb
from dsnb.dispatcher.service import Dispatcher
from dsnb.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.watch import fetch_snapshot, watch_snapshots
from dsnb.transfer import local
from dsnb.wire.blobs import blob_digest
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import BlobPiece, BlobRequest, ForgetRequest, SplitsRequest, TaskRequest, WatchRequest
from dsnb.wire.methods import FORGET, GET_BLOB, GET_SPLITS, GET_TASK, PUT_BLOB, WATCH
from tests.support.cluster import Cluster
from tests.support.reading import first
from tests.support.waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1) as cluster:
        yield cluster


@pytest.fixture
def channel(cluster: Cluster) -> Iterator[Channel]:
    with closing(open_channel(cluster.address, cluster.dispatcher.token)) as channel:
        yield channel


def test_starting_may_wait_and_may_be_asked_for_twice() -> None:
    dispatcher = dsnb.DispatchServer(start=False)
    assert repr(dispatcher) == "DispatchServer('dsnb', not started)"
    for call in (lambda: dispatcher.target, dispatcher.join):
        with pytest.raises(FailedPreconditionError, match="was not started"):
            call()
    with dispatcher:
        dispatcher.start()
        assert repr(dispatcher) == "DispatchServer('dsnb', running)"
        assert fetch_snapshot(dispatcher.target, dispatcher.token).workers == ()


def test_a_stopped_dispatcher_stays_stopped() -> None:
    dispatcher = dsnb.DispatchServer()
    dispatcher.stop()
    dispatcher.stop()
    dispatcher.join()
    assert repr(dispatcher) == "DispatchServer('dsnb', stopped)"
    with pytest.raises(FailedPreconditionError, match="cannot be started after it has been stopped"):
        dispatcher.start()


def test_one_that_was_never_started_can_be_stopped() -> None:
    dispatcher = dsnb.DispatchServer(start=False)
    dispatcher.stop()
    dispatcher.join()


def test_join_waits_until_somebody_stops_it() -> None:
    with dsnb.DispatchServer() as dispatcher:
        thread = threading.Thread(target=dispatcher.join)
        thread.start()
        assert thread.is_alive()
        dispatcher.stop()
        thread.join(5.0)
        assert not thread.is_alive()


def test_a_port_that_was_asked_for_is_used_and_a_taken_one_is_refused() -> None:
    with dsnb.DispatchServer() as one:
        port = int(one.target.rpartition(":")[2])
        with pytest.raises(AlreadyExistsError, match=f"127.0.0.1:{port}: the port is taken"):
            dsnb.DispatchServer(dsnb.DispatcherConfig(port=port))
    with dsnb.DispatchServer(dsnb.DispatcherConfig(port=port)) as other:
        assert other.target == f"grpc://127.0.0.1:{port}"


def test_each_dispatcher_has_a_token_of_its_own_unless_one_was_given() -> None:
    with dsnb.DispatchServer() as one, dsnb.DispatchServer() as other:
        assert one.token != other.token
        assert len(one.token) >= 32
    with dsnb.DispatchServer(dsnb.DispatcherConfig(token="given")) as third:
        assert third.token == "given"


@pytest.mark.slow
def test_stopping_ends_all_streams_soon(cluster: Cluster) -> None:
    stop = threading.Event()
    told: list[Snapshot] = []
    viewer = threading.Thread(target=lambda: _watch(cluster, stop, told))
    elements = iter(dsnb.Dataset.range(5).repeat().apply(dsnb.distribute("parallel_epochs", cluster.service)))
    first(3, elements)
    viewer.start()
    wait_for(lambda: told, what="a snapshot")
    began = time.monotonic()
    cluster.dispatcher.stop()
    assert time.monotonic() - began < 4.0
    viewer.join(5.0)
    assert not viewer.is_alive()
    stop.set()
    elements.close()  # type: ignore[attr-defined]


def _watch(cluster: Cluster, stop: threading.Event, told: list[Snapshot]) -> None:
    try:
        told.extend(watch_snapshots(cluster.address, cluster.dispatcher.token, 0.1, stop))
    except dsnb.errors.UnavailableError:
        return


def test_a_bug_that_meets_the_clock_is_seen_and_the_clock_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[Dispatcher] = []

    def tick(dispatcher: Dispatcher) -> None:
        ticks.append(dispatcher)
        raise KeyError("nobody")

    monkeypatch.setattr(Dispatcher, "tick", tick)
    with Cluster(workers=0, dispatcher={"job_gc_check_interval_ms": 20}) as cluster:
        wait_for(lambda: len(ticks) > 5, what="more ticks, each of which meets it")
        (event,) = cluster.status().events
        assert (event.level, "a bug of dsnb in its clock: KeyError: 'nobody'" in event.text) == ("warning", True)
    assert "tick" in str(caplog.records[0].exc_text)


@pytest.mark.slow
def test_who_starts_or_stops_it_second_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that makes it known is done when any call of `start` returns; nothing of it is left when `stop` does."""
    gate = threading.Event()
    offer, withdraw = local.offer_blobs, local.withdraw_blobs
    monkeypatch.setattr(local, "offer_blobs", lambda *blobs: gate.wait(30.0) and offer(*blobs))
    monkeypatch.setattr(local, "withdraw_blobs", lambda address: gate.wait(30.0) and withdraw(address))
    dispatcher = dsnb.DispatchServer(start=False)
    for call, known in ((dispatcher.start, True), (dispatcher.stop, False), (dispatcher.join, False)):
        both = [threading.Thread(target=call) for _ in range(2)]
        gate.clear()  # the first one comes no further than to what makes it known
        for thread in both:
            thread.start()
        for thread in both:
            thread.join(0.2)
        assert [thread.is_alive() for thread in both] == [call != dispatcher.join] * 2
        gate.set()
        for thread in both:
            thread.join(10.0)
        assert _known(dispatcher) is known


def _known(dispatcher: dsnb.DispatchServer) -> bool:
    return local.find_blobs(dispatcher.target.removeprefix("grpc://")) is not None


# ---- work folders


def test_a_work_dir_keeps_the_token_and_what_was_registered(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with Cluster(workers=0, dispatcher={"work_dir": folder}) as cluster:
        registered = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(7))
        token = cluster.dispatcher.token
        assert cluster.restart_dispatcher().token == token
        cluster.add_worker()
        assert len(list(dsnb.from_dataset_id("parallel_epochs", cluster.service, registered))) == 7
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600


def test_without_fault_tolerant_mode_a_work_dir_keeps_the_token_alone(tmp_path: Path) -> None:
    config = dsnb.DispatcherConfig(work_dir=tmp_path, fault_tolerant_mode=False)
    with dsnb.DispatchServer(config) as one, dsnb.DispatchServer(config) as other:
        dsnb.register_dataset(one.target, dsnb.Dataset.range(7))
        assert one.token == other.token
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_service_is_found_where_it_was_if_that_is_free(tmp_path: Path) -> None:
    config = dsnb.DispatcherConfig(work_dir=tmp_path)
    with dsnb.DispatchServer(config) as one:
        target = one.target
    with dsnb.DispatchServer(config) as again:
        assert again.target == target
    port = int(target.rpartition(":")[2])
    with dsnb.DispatchServer(dsnb.DispatcherConfig(port=port)), dsnb.DispatchServer(config) as elsewhere:
        assert elsewhere.target != target
    for nonsense in ("", "a port", "99999"):
        (tmp_path / "port").write_text(nonsense)
        with dsnb.DispatchServer(config):
            pass


def test_a_work_dir_has_one_dispatcher(tmp_path: Path) -> None:
    config = dsnb.DispatcherConfig(work_dir=tmp_path)
    with dsnb.DispatchServer(config), pytest.raises(AlreadyExistsError, match="another dispatcher uses the journal"):
        dsnb.DispatchServer(config)


def test_a_dispatcher_that_could_not_start_leaves_its_work_dir_free(tmp_path: Path) -> None:
    with dsnb.DispatchServer() as one:
        port = int(one.target.rpartition(":")[2])
        with pytest.raises(AlreadyExistsError, match="the port is taken"):
            dsnb.DispatchServer(dsnb.DispatcherConfig(port=port, work_dir=tmp_path))
    with dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=tmp_path)):
        pass


def test_a_work_dir_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FailedPreconditionError, match=f"the work_dir {wrong} cannot be used"):
            dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=wrong))


# ---- calls


@pytest.mark.slow
@pytest.mark.usefixtures("patient_status")
def test_a_status_is_fresh_when_it_is_asked_for(cluster: Cluster) -> None:
    """Whoever read five elements and asks is not told of four: everybody is asked to report first."""
    policy = dsnb.distribute("parallel_epochs", cluster.service, job_name="j", max_outstanding_requests=1)
    elements = iter(dsnb.Dataset.range(100).apply(policy))
    for count in (5, 12, 30):
        first(count - (cluster.job("j").consumed if count > 5 else 0), elements)
        assert cluster.job("j").consumed == count
    elements.close()  # type: ignore[attr-defined]


def test_watchers_get_snapshots_at_their_interval(cluster: Cluster) -> None:
    stop = threading.Event()
    snapshots = watch_snapshots(cluster.address, cluster.dispatcher.token, 0.1, stop)
    seen = [next(snapshots).seq for _ in range(3)]
    assert seen == sorted(set(seen))
    snapshots.close()  # type: ignore[attr-defined]


def test_an_interval_that_is_none_is_refused(channel: Channel) -> None:
    with pytest.raises(InvalidArgumentError, match="an interval above a minute is no watching"):
        next(channel.replies(WATCH, WatchRequest(interval_ms=60_001)))


def test_what_is_unknown_is_not_found(channel: Channel) -> None:
    with pytest.raises(NotFoundError, match="the task 9 is unknown"):
        channel.call(GET_TASK, TaskRequest(task_id="9"))
    with pytest.raises(NotFoundError, match="the task 9 is unknown"):
        channel.call(GET_SPLITS, SplitsRequest(task_id="9"))
    with pytest.raises(NotFoundError, match="there is no job 'nowhere'"):
        channel.call(FORGET, ForgetRequest(job_name="nowhere"))
    with pytest.raises(NotFoundError, match="does not hold the blob nowhere"):
        list(channel.replies(GET_BLOB, BlobRequest(digest="nowhere")))


def test_a_blob_goes_up_and_comes_down_in_pieces(channel: Channel) -> None:
    data = bytes(range(256)) * 10_000
    digest = blob_digest(data)
    pieces = [
        BlobPiece(digest=digest, nbytes=len(data), data=data[at : at + 700_000]) for at in range(0, len(data), 700_000)
    ]
    channel.upload(PUT_BLOB, lambda: iter(pieces), timeout=10.0)
    assert b"".join(piece.data for piece in channel.replies(GET_BLOB, BlobRequest(digest=digest))) == data
    with pytest.raises(dsnb.errors.DataLossError, match="arrived with"):
        channel.upload(PUT_BLOB, lambda: iter(pieces[:-1]), timeout=10.0)
