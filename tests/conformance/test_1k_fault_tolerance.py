"""Section 1K: dispatchers and workers that are stopped and started again, and the journal that lets them.

Here a server is stopped and another one is started in its place, in this process; tests/faults has real processes and
SIGKILL.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import dsnb
from dsnb.dispatcher.blobs import BlobStore
from dsnb.dispatcher.handlers.static_index import static_index
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import WorkerJoined
from dsnb.errors import (
    DataLossError,
    DataLossWarning,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import ForgetRequest
from dsnb.wire.methods import FORGET
from tests.conformance.conftest import MakeCluster
from tests.dispatcher.simulation import Service
from tests.support.cluster import Cluster
from tests.support.ports import unused_port
from tests.support.reading import first, numbers

HUNDRED = dsnb.Dataset.range(100)
MANY = 2 * (os.cpu_count() or 1) + 100


@pytest.fixture
def durable(cluster: MakeCluster, tmp_path: Path) -> Cluster:
    """One worker, and a dispatcher with a work folder."""
    return cluster(1, dispatcher={"work_dir": tmp_path / "work", "fault_tolerant_mode": True})


@pytest.fixture(params=["kept", "folder only", "memory"])
def configured(request: pytest.FixtureRequest, cluster: MakeCluster, tmp_path: Path) -> Cluster:
    """Each of the three configurations, with one worker."""
    folder = {"work_dir": tmp_path / "work"}
    settings: dict[str, dict[str, Any]] = {
        "kept": {**folder, "fault_tolerant_mode": True},
        "folder only": {**folder, "fault_tolerant_mode": False},
        "memory": {},
    }
    return cluster(1, dispatcher=settings[request.param])


def read(dataset: dsnb.Dataset, service: Any, mode: str = "parallel_epochs", **options: Any) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute(mode, service, **options))


# ---- dispatchers


@pytest.mark.slow
def test_line_166_dispatcher_stop(cluster: MakeCluster) -> None:
    one = cluster(1)
    elements = iter(read(HUNDRED, one.service))
    assert first(1, elements) == [0]
    one.dispatcher.stop()
    assert numbers(elements) == list(range(1, 100))


def test_line_167_dispatcher_restart_before_reading(durable: Cluster) -> None:
    dataset = read(HUNDRED, durable.service)
    durable.restart_dispatcher()
    assert numbers(dataset) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_168_dispatcher_restart_during_reading(durable: Cluster, limit: int | None) -> None:
    elements = iter(read(HUNDRED, durable.service, max_outstanding_requests=limit))
    got = first(50, elements)
    durable.restart_dispatcher()
    assert [*got, *numbers(elements)] == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_169_dispatcher_restart_during_a_distributed_epoch(durable: Cluster, limit: int | None) -> None:
    elements = iter(read(HUNDRED, durable.service, "distributed_epoch", max_outstanding_requests=limit))
    got = first(50, elements)
    durable.restart_dispatcher()
    assert [*got, *numbers(elements)] == list(range(100))


def test_line_170_dispatcher_restart_between_iterations(durable: Cluster) -> None:
    dataset = read(HUNDRED, durable.service)
    assert numbers(dataset) == list(range(100))
    durable.restart_dispatcher()
    assert numbers(dataset) == list(range(100))


@pytest.mark.slow
def test_line_171_dispatcher_restart_with_multiple_datasets(durable: Cluster) -> None:
    datasets = []
    for number in range(10):
        datasets.append(read(dsnb.Dataset.range(number, 100), durable.service))
        durable.restart_dispatcher()
    assert [numbers(dataset) for dataset in datasets] == [list(range(number, 100)) for number in range(10)]


@pytest.mark.slow
def test_line_172_dispatcher_many_restarts(durable: Cluster) -> None:
    datasets = []
    for size in range(10, 15):
        datasets.append((read(dsnb.Dataset.range(size), durable.service), size))
        durable.restart_dispatcher()
    for dataset, size in datasets:
        assert numbers(dataset) == list(range(size))
        durable.restart_dispatcher()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:worker w0 was:dsnb.errors.DataLossWarning")
def test_line_173_dispatcher_and_worker_restart(durable: Cluster) -> None:
    dataset = read(HUNDRED, durable.service)
    for _ in range(2):
        durable.restart_dispatcher()
        durable.restart_worker(same_port=True)
        assert numbers(dataset) == list(range(100))
        durable.restart_worker(same_port=True)
        durable.restart_dispatcher()
        assert numbers(dataset) == list(range(100))


def test_line_174_dispatcher_and_multi_worker_restart(durable: Cluster) -> None:
    durable.add_worker()
    elements = iter(read(HUNDRED, durable.service))
    assert Counter(numbers(elements)) == dict.fromkeys(range(100), 2)
    durable.restart_dispatcher()
    for _ in range(2):
        durable.restart_worker(same_port=True)
    assert numbers(elements) == []


@pytest.mark.slow
def test_line_175_start_servers_late(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client comes first: it describes a dataset and reads it before there is any server at the address."""
    monkeypatch.setenv("DSNB_TOKEN", "agreed on")
    got: list[int] = []
    reader = threading.Thread(
        target=lambda: got.extend(numbers(read(dsnb.Dataset.range(10), f"127.0.0.1:{free_port}"))), daemon=True
    )
    reader.start()
    reader.join(0.5)
    assert reader.is_alive(), "it keeps trying"
    with Cluster(0, dispatcher={"port": free_port, "token": "agreed on"}) as cluster:
        reader.join(0.5)
        cluster.add_worker()
        reader.join(30.0)
    assert got == list(range(10))


@pytest.fixture
def free_port() -> int:
    return unused_port()


# ---- workers


def test_line_176_add_worker_mid_job(durable: Cluster) -> None:
    elements = iter(read(dsnb.Dataset.range(MANY), durable.service, max_outstanding_requests=1))
    got = first(MANY // 2, elements)
    durable.add_worker()
    assert Counter([*got, *numbers(elements)]) == dict.fromkeys(range(MANY), 2)


@pytest.mark.slow
@pytest.mark.parametrize("same_port", [True, False], ids=["the same port", "another port"])
def test_line_177_restart_worker(configured: Cluster, same_port: bool) -> None:
    """The pass begins again; and, as the original cannot, it ends."""
    elements = iter(read(dsnb.Dataset.range(MANY), configured.service, max_outstanding_requests=1))
    got = first(MANY // 2, elements)
    configured.restart_worker(same_port=same_port)
    with pytest.warns(DataLossWarning, match=r"worker w0 was .*reading continues"):
        rest = numbers(elements)
    assert got == list(range(MANY // 2))
    left_over = list(itertools.takewhile(lambda number: number != 0, rest))
    assert left_over == list(range(MANY // 2, MANY // 2 + len(left_over)))
    assert rest[len(left_over) :] == list(range(MANY))


def test_line_178_change_processing_mode_after_restart(durable: Cluster) -> None:
    off = iter(read(HUNDRED, durable.service, job_name="test"))
    assert first(10, off) == list(range(10))
    durable.restart_dispatcher()
    told = "Tried to create job with name test, but found an existing job with different parameters"
    with pytest.raises(InvalidArgumentError, match=told):
        iter(read(HUNDRED, durable.service, "distributed_epoch", job_name="test")).start()
    assert numbers(off) == list(range(10, 100))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["with work folder", "without"])
def test_line_179_distribute_a_large_graph_then_register_a_worker(
    cluster: MakeCluster, tmp_path: Path, kept: bool
) -> None:
    later = cluster(0, dispatcher={"work_dir": tmp_path} if kept else {})
    large = np.arange(4_000_000, dtype=np.float64)
    dataset = read(dsnb.Dataset.range(3).map(lambda x: large[-1 - x]), later.service)
    elements = iter(dataset)
    later.add_worker(remote=True)
    assert numbers(elements) == [3_999_999, 3_999_998, 3_999_997]


# ---- the journal


def worker(uid: str) -> WorkerJoined:
    return WorkerJoined(uid=uid, name=uid, address=f"host:{uid}", isolation="thread", pid=1)


def names(path: Path) -> list[str]:
    """The workers that a journal knows of."""
    journal = Journal(path)
    try:
        return list(journal.load().workers)
    finally:
        journal.close()


@pytest.mark.parametrize("count", [1, 200])
def test_line_180_journal_round_trip(tmp_path: Path, count: int) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(count):
        journal.append([worker(f"w{number}")])
    journal.close()
    assert names(tmp_path / "journal") == [f"w{number}" for number in range(count)]


def test_line_181_journal_append_existing(tmp_path: Path) -> None:
    for uid in ("a", "b"):
        journal = Journal(tmp_path / "journal")
        journal.load()
        journal.append([worker(uid)])
        journal.close()
    assert names(tmp_path / "journal") == ["a", "b"]


def test_line_182_journal_missing_file(tmp_path: Path) -> None:
    assert names(tmp_path / "journal") == []
    with pytest.raises(FailedPreconditionError, match="cannot be used"):
        dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir="/dev/null/nowhere"))


def spoil(path: Path, fields: str, digest: str | None = None) -> None:
    """Put a record of a worker into a journal by hand."""
    Journal(path).close()
    text = xxhash.xxh3_64_hexdigest(f"1 WorkerJoined {fields}".encode())
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO records VALUES (1, 'WorkerJoined', ?, ?)", (fields, digest or text))
    connection.close()


def test_line_183_journal_non_record_data(tmp_path: Path) -> None:
    spoil(tmp_path / "journal", "not JSON", digest="not a checksum")
    with pytest.raises(DataLossError, match="corrupted record 1"):
        names(tmp_path / "journal")
    (tmp_path / "text").write_text("not record data" * 1000)
    with pytest.raises(DataLossError, match="file is not a database"):
        names(tmp_path / "text")


@pytest.mark.parametrize("fields", ["not JSON", '{"uid": "w"}', '{"uid": 7}', "[]"])
def test_line_184_journal_invalid_record_data(tmp_path: Path, fields: str) -> None:
    spoil(tmp_path / "journal", fields)
    with pytest.raises(DataLossError, match="Failed to parse journal record 1, a WorkerJoined"):
        names(tmp_path / "journal")


# ---- the state


def test_line_185_next_ids_and_what_is_unknown(tmp_path: Path) -> None:
    service = Service()
    assert [service.core.next_number("client") for _ in range(2)] == [3000, 3000]
    client = service.join(service.register(3))
    assert (client.client_id, service.core.next_number("client")) == ("3000", 3001)
    service.close(client)
    for missing in (
        lambda: service.hear(client),
        lambda: service.join("nowhere"),
        lambda: service.forget("nowhere"),
    ):
        with pytest.raises(NotFoundError):
            missing()
    journal = Journal(tmp_path / "journal")
    journal.append([worker("w")])
    journal.database.execute("UPDATE records SET kind = 'Unheard', digest = ?", _digest_of("Unheard", journal))
    with pytest.raises(DataLossError, match="Failed to parse journal record 1, a Unheard"):
        journal.load()


def _digest_of(kind: str, journal: Journal) -> str:
    [(fields,)] = journal.database.execute("SELECT fields FROM records").fetchall()
    return xxhash.xxh3_64_hexdigest(f"1 {kind} {fields}".encode())


def test_line_186_an_iteration_is_finished_when_all_its_tasks_are() -> None:
    service = Service()
    workers = [service.add_worker(uid) for uid in ("a", "b")]
    client = service.join(service.register(10), mode="OFF")
    for at, one in enumerate(workers):
        service.finish(one, service.task(one))
        assert service.core.state.iteration(client.job, 0).finished is (at == 1)


def test_line_187_clients_are_listed_while_they_read() -> None:
    service = Service()
    dataset = service.register(10)
    clients = [service.join(dataset, "train", mode="OFF") for _ in range(2)]
    assert service.core.state.jobs["train"].clients == [client.client_id for client in clients]
    for client in clients:
        service.close(client)
    assert service.core.state.jobs["train"].clients == []
    assert service.core.state.clients == {}


def test_line_188_workers_of_a_fixed_list(tmp_path: Path) -> None:
    assert static_index(["a", "b:%port%"], "a:5050", {}) == 0
    with pytest.raises(FailedPreconditionError, match="not configured"):
        static_index(["a", "b:%port%"], "c:5050", {})
    journal = Journal(tmp_path / "journal")
    journal.append([worker("listed nowhere")])
    assert list(journal.load().workers) == ["listed nowhere"], "a record that was made was refused"
    journal.close()


@pytest.mark.parametrize("kept", [True, False], ids=["file", "memory"])
def test_line_189_dataset_store(tmp_path: Path, kept: bool) -> None:
    store = BlobStore(tmp_path / "blobs" if kept else None)
    digests = [store.put_definition(f"definition {number}".encode()) for number in range(10)]
    assert store.put_definition(b"definition 3") == digests[3]
    assert [bytes(store.get(digest)) for digest in digests] == [f"definition {n}".encode() for n in range(10)]
    with pytest.raises(NotFoundError):
        store.get("missing")


@pytest.mark.slow
def test_line_190_what_is_tried_again(durable: Cluster) -> None:
    """A call is tried again while the server is away, and never when it has answered."""
    channel = open_channel(durable.address, durable.dispatcher.token)
    try:
        with pytest.raises(NotFoundError):
            channel.call(FORGET, ForgetRequest(job_name="nowhere"), timeout=60.0)
        durable.dispatcher.stop()
        with pytest.raises(UnavailableError, match=r"no server answers .*\n.*tried for 0\.5 seconds"):
            channel.call(FORGET, ForgetRequest(job_name="nowhere"), timeout=0.5)
        late = threading.Timer(0.3, durable.restart_dispatcher)
        late.start()
        with pytest.raises(NotFoundError):
            channel.call(FORGET, ForgetRequest(job_name="nowhere"), timeout=60.0)
        late.join()
    finally:
        channel.close()


def test_line_191_a_leftover_file_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1000").write_text("left over")
    with Cluster(1, dispatcher={"work_dir": tmp_path}) as cluster:
        assert dsnb.register_dataset(cluster.service, HUNDRED) == "1000"
        assert dsnb.register_dataset(cluster.service, dsnb.Dataset.range(8)) == "1001"
        assert numbers(dsnb.from_dataset_id("parallel_epochs", cluster.service, "1000")) == list(range(100))
