"""Which way elements come, what `status()` says of it, and that every way keeps what is read as it was produced."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import DsnbError, FailedPreconditionError, InvalidArgumentError
from dsnb.notebook.service import DataService
from dsnb.transfer import selection
from dsnb.transfer.tcp.server import TcpServer
from dsnb.wire.messages import LinkReport
from tests.support.cluster import Cluster
from tests.support.ports import unused_port
from tests.support.processes import python_process
from tests.support.transfers import BETWEEN_PROCESSES, TESTS_TRANSFER_CHOICE, TRANSFERS, overwrite_memory
from tests.support.waiting import wait_for
from tests.wire.serving import port_of_nobody

MIB = 1 << 20
BATCH = (32, 224, 224, 3)
"""Of 4.8 MB, as of small images."""


def images(count: int = 1 << 40, nbytes: int = MIB) -> dsnb.Dataset:
    """Elements that are all different, made by the worker."""
    return dsnb.Dataset.range(count).map(lambda n: np.full(nbytes, n % 251, np.uint8))


def read(dataset: dsnb.Dataset, service: Any, **options: Any) -> Any:
    return iter(dataset.apply(dsnb.distribute("parallel_epochs", service, **options)))


def link(service: DataService, job: str | None = None) -> LinkReport:
    """How the newest reader gets its elements."""
    jobs = service.status().jobs
    links = [link for one in jobs if job in (None, one.name) for link in one.links]
    assert links, "nobody reads"
    return links[-1]


@pytest.fixture(scope="module")
def service() -> Iterator[DataService]:
    """A worker in a process of its own."""
    with dsnb.start(workers=1, isolation="process", shared_memory_bytes=32 * MIB) as service:
        yield service


# ---- the choice


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_on_one_host_the_way_is_shared_memory(service: DataService) -> None:
    with read(images(), service) as elements:
        assert [int(next(elements)[0]) for _ in range(5)] == list(range(5))
        found = link(service)
    assert (found.transfer, found.reason) == ("shared_memory", "client and worker are two processes of one host")
    assert found.frame_slices >= 5
    assert (found.fallbacks, found.fallback_reason) == (0, "")


@TESTS_TRANSFER_CHOICE
def test_in_one_process_the_way_is_by_reference() -> None:
    with Cluster(1) as cluster, read(images(), cluster.service) as elements:
        next(elements)
        assert (link(cluster.service).transfer, link(cluster.service).reason) == (
            "local",
            "client and worker are one process",
        )


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_way_that_is_asked_for_is_taken(transfer: str) -> None:
    with Cluster(1) as cluster, read(images(), cluster.service, data_transfer_protocol=transfer) as elements:
        assert [int(next(elements)[0]) for _ in range(3)] == [0, 1, 2]
        assert link(cluster.service).transfer == transfer
        assert link(cluster.service).reason == "data_transfer_protocol asks for it"


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_a_worker_on_another_host_is_read_over_tcp(monkeypatch: pytest.MonkeyPatch, service: DataService) -> None:
    monkeypatch.setattr("dsnb.transfer.shared_memory.messages.socket_name", lambda uid: f"\0dsnb-not-here-{uid}")
    with read(images(), service) as elements:
        assert int(next(elements)[0]) == 0
        assert (link(service).transfer, link(service).reason) == (
            "tcp",
            "the worker is on another host, or in another container",
        )
    with pytest.raises(FailedPreconditionError, match="'shared_memory' is not available: the worker is on another"):
        next(read(images(), service, data_transfer_protocol="shared_memory"))


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_who_wants_checksums_is_served_by_what_carries_them_and_told_where_there_is_nothing_to_check() -> None:
    with Cluster(0) as cluster:
        cluster.add_worker(remote=True)
        with read(images(), cluster.service, checksum=True) as elements:
            assert [int(next(elements)[0]) for _ in range(3)] == [0, 1, 2]
            found = link(cluster.service)
    assert (found.transfer, found.reason) == ("tcp", "checksum=True: shared memory carries no checksums")
    with Cluster(1) as cluster, read(images(), cluster.service, checksum=True) as elements:
        next(elements)
        found = link(cluster.service)
    assert found.transfer == "local"
    assert "checksum=True has nothing to check: references are passed" in found.reason


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_a_worker_without_shared_memory_is_read_over_tcp() -> None:
    with Cluster(0) as cluster:
        cluster.add_worker(remote=True, shared_memory_bytes=0)
        with read(images(), cluster.service) as elements:
            assert [int(next(elements)[0]) for _ in range(3)] == [0, 1, 2]
            assert link(cluster.service).reason == "the worker is set up without shared memory"
            assert link(cluster.service).transfer == "tcp"
        forced = read(images(), cluster.service, data_transfer_protocol="shared_memory")
        with pytest.raises(FailedPreconditionError, match="the worker is set up without shared memory"):
            next(forced)


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_where_the_system_has_no_such_memory_asking_for_it_is_an_error_at_the_call(
    monkeypatch: pytest.MonkeyPatch, service: DataService
) -> None:
    monkeypatch.setattr(selection, "supported", lambda: False)
    with pytest.raises(FailedPreconditionError, match="it needs Linux"):
        dsnb.distribute("parallel_epochs", service, data_transfer_protocol="shared_memory")
    with read(images(), service) as elements:
        next(elements)
        assert link(service).transfer == "tcp"


@pytest.fixture
def closed_data_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Workers announce a port on which nobody listens, as where ports of a container are not published."""
    with port_of_nobody() as port:
        real = TcpServer.start

        def start(server: TcpServer, *args: Any) -> None:
            real(server, *args)
            server.port = port

        monkeypatch.setattr(TcpServer, "start", start)
        yield port


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_a_worker_whose_data_port_cannot_be_reached_is_read_by_grpc_and_the_reason_is_shown(
    closed_data_port: int,
) -> None:
    with Cluster(0) as cluster:
        cluster.add_worker(remote=True, shared_memory_bytes=0)
        with read(images(), cluster.service) as elements:
            assert [int(next(elements)[0]) for _ in range(3)] == [0, 1, 2]
            found = link(cluster.service)
        assert found.transfer == "grpc"
        assert found.reason == (
            "the worker is set up without shared memory; "
            f"127.0.0.1:{closed_data_port} cannot be reached (Connection refused)"
        )
        with pytest.raises(FailedPreconditionError, match=r"'tcp' is not available: 127.0.0.1:\d+ cannot be reached"):
            next(read(images(), cluster.service, data_transfer_protocol="tcp"))


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_a_worker_without_a_data_port_is_read_by_grpc_and_cannot_be_read_over_tcp() -> None:
    """As where a range of ports has none for it."""
    with Cluster(0) as cluster:
        first = unused_port()
        cluster.add_worker(remote=True, shared_memory_bytes=0, port=f"{first}-{first + 2}")
        with read(images(), cluster.service) as elements:
            next(elements)
            found = link(cluster.service)
        assert (found.transfer, found.reason) == (
            "grpc", "the worker is set up without shared memory; worker w0 has no data port"
        )  # fmt: skip
        with pytest.raises(FailedPreconditionError, match="'tcp' is not available: worker w0 has no data port"):
            next(read(images(), cluster.service, data_transfer_protocol="tcp"))


def test_more_shared_memory_than_the_host_has_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`shared_memory_bytes` is 1,000,000,000,000,000, more than the .*"):
        dsnb.start(workers=1, name="too-large", shared_memory_bytes=10**15)
    with pytest.raises(InvalidArgumentError, match="`shared_memory_bytes` is -1"):
        dsnb.WorkerConfig(dispatcher_address="127.0.0.1:1", shared_memory_bytes=-1)


# ---- what a reader keeps


@pytest.mark.slow
@TESTS_TRANSFER_CHOICE
def test_a_reader_that_keeps_everything_reads_on_and_it_is_told(service: DataService) -> None:
    with read(images(60), service, job_name="miser") as elements:
        kept = list(islice(elements, 59))
        found = wait_for(lambda: (it := link(service, "miser")).fallbacks and it, what="the fallback to be told")
        assert "which is its share" in found.fallback_reason
        assert found.held_bytes <= 16 * MIB
        assert [int(element[-1]) for element in kept] == list(range(59))


@pytest.mark.slow
@pytest.mark.parametrize("transfer", BETWEEN_PROCESSES)
def test_a_reader_that_keeps_some_elements_holds_those_and_no_others(service: DataService, transfer: str) -> None:
    check_keeping(service, transfer, passes=300, every=50, shape=(MIB,))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("transfer", BETWEEN_PROCESSES)
@pytest.mark.parametrize("shape", [(768,), BATCH], ids=["3 KB samples", "4.8 MB batches"])
def test_a_reader_that_keeps_every_thousandth_of_ten_gigabytes(transfer: str, shape: tuple[int, ...]) -> None:
    with dsnb.start(workers=1, name="another", isolation="process") as service:
        dtype = np.float32 if len(shape) == 1 else np.uint8
        check_keeping(service, transfer, 10**10 // (np.zeros(shape, dtype).nbytes), 1000, shape, dtype)


def check_keeping(
    service: DataService,
    transfer: str,
    passes: int,
    every: int,
    shape: tuple[int, ...] = BATCH,
    dtype: Any = np.uint8,
) -> None:
    """Keep some elements: they stay what they are, and at the end no more is held than they and the last frame.

    And one element that was let go of, or less than 4 MiB of them: that is told along with the next credit.
    """
    dataset = dsnb.Dataset.range(passes).map(lambda n: np.full(shape, n % 251, dtype))
    kept: list[np.ndarray] = []
    before, job = resident(), f"keeping {transfer}"
    with read(dataset, service, data_transfer_protocol=transfer, job_name=job) as elements:
        for number, element in enumerate(elements):
            if number % every == 0:
                kept.append(element)
            if number == passes - 1:
                most = sum(keep.nbytes for keep in kept) + max(element.nbytes, MIB) + max(element.nbytes, 4 * MIB)
                wait_for(
                    lambda m=most: link(service, job).held_bytes <= m,
                    what="the rest to be given back",
                    timeout=30,
                )
                assert resident() - before <= most + 96 * MIB
    assert len(kept) == -(-passes // every)
    assert all((element == number * every % 251).all() for number, element in enumerate(kept))


def resident() -> int:
    """This process's memory, shared memory that it looks at included."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- writing in place


@pytest.mark.slow
@pytest.mark.parametrize("transfer", BETWEEN_PROCESSES)
def test_writing_into_an_element_reaches_neither_another_reader_nor_a_later_element(
    service: DataService, transfer: str
) -> None:
    """As `torch.from_numpy(x).add_(1)` does, which does not know of read-only arrays."""
    trainers = [
        read(images(), service, job_name=f"writing {transfer}", data_transfer_protocol=transfer,
             cross_trainer_cache=dsnb.CrossTrainerCache(name, on_lag="wait"))
        for name in ("one", "other")
    ]  # fmt: skip
    for number in range(60):
        mine, its = (next(trainer) for trainer in trainers)
        assert (mine == number).all()
        with pytest.raises(ValueError, match="read-only"):
            mine += 1
        overwrite_memory(mine)
        assert (mine == 0xEE).all()
        assert (its == number).all()
    for trainer in trainers:
        trainer.close()


def test_an_element_by_reference_is_everybodys_unless_it_is_asked_for_as_ones_own() -> None:
    """What is not copied cannot be kept from who writes to its memory; NumPy refuses to, and `writable` copies."""
    own = dsnb.Options(writable=True)
    with Cluster(1) as cluster:
        trainers = [
            iter(images().apply(dsnb.distribute("parallel_epochs", cluster.service, "job",
                                                data_transfer_protocol="local",
                                                cross_trainer_cache=dsnb.CrossTrainerCache(name)))
                 .with_options(own))
            for name in ("one", "other")
        ]  # fmt: skip
        for number in range(10):
            mine, its = (next(trainer) for trainer in trainers)
            assert (mine == number).all()
            mine += 100
            overwrite_memory(mine)
            assert (its == number).all()
        for trainer in trainers:
            trainer.close()
        with read(images(), cluster.service, data_transfer_protocol="local") as elements:
            shared = next(elements)
            with pytest.raises(ValueError, match="read-only"):
                shared += 1
            overwrite_memory(shared)
            assert (next(elements) == 1).all(), "a later element is another array"


# ---- readers that die

READER = """
import sys, dsnb, numpy as np
service = dsnb.connect({target!r}, token={token!r})
images = dsnb.from_dataset_id("parallel_epochs", service, "images", job_name="job {number}",
                              data_transfer_protocol={transfer!r})
kept = []
for number, image in enumerate(images):
    assert image[0] == number % 251
    kept = kept[-{keeps}:] + [image]
    if number == {after}:
        print("READY", flush=True)
"""


def check_killed(times: int, seed: int) -> None:
    """Kill readers in the midst of it; the worker's memory is all free again, and it serves on.

    What a reader looked at is free when its socket ends, at once. What it had not consumed lies there for the seconds
    in which somebody may come for it, or until its job is cancelled: mostly that, as it need not be waited for.
    """
    chance = random.Random(seed)
    with Cluster(0) as cluster:
        worker = cluster.add_worker(remote=True, shared_memory_bytes=32 * MIB)

        def memory() -> dict[str, int]:
            return dict(worker.debug_state()["shared_memory"])

        dsnb.register_dataset(cluster.service, images(), dataset_id="images")
        for number in range(times):
            code = READER.format(
                target=cluster.dispatcher.target, token=cluster.dispatcher.token, transfer="shared_memory",
                number=number, keeps=chance.randrange(1, 30), after=chance.randrange(40),
            )  # fmt: skip
            with python_process(code) as reader:
                os.kill(reader.pid, signal.SIGKILL)
                reader.wait_for_exit()
            wait_for(lambda: not memory()["connections"], what="the end of its socket to be heard")
            if number % 20:
                cluster.service.cancel(f"job {number}")
            wait_for(lambda: not memory()["reserved_bytes"], what=f"the memory of reader {number}", timeout=60.0)
        gc.collect()
        with read(images(), cluster.service, data_transfer_protocol="shared_memory") as elements:
            assert [int(next(elements)[0]) for _ in range(3)] == [0, 1, 2]


@pytest.mark.slow
def test_readers_that_are_killed_leave_no_memory_behind() -> None:
    check_killed(times=4, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_readers_that_are_killed_leave_no_memory_behind() -> None:
    check_killed(times=200, seed=int(os.environ.get("DSNB_SEED", "7")))


@pytest.mark.slow
def test_a_reader_outlives_its_worker_and_keeps_what_it_has() -> None:
    with dsnb.start(workers=1, name="another", isolation="process") as service:
        elements = read(images(), service, data_transfer_protocol="shared_memory")
        kept = [next(elements) for _ in range(3)]
        pid = service.status().workers[0].pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not os.path.exists(f"/proc/{pid}/fd"), what="the worker's end")
        with pytest.warns(dsnb.errors.DataLossWarning):
            list(takewhile(lambda element: element[0], elements))  # until the worker that replaces it begins again
        assert [int(element[-1]) for element in kept] == [0, 1, 2]
        elements.close()


@pytest.mark.slow
@pytest.mark.parametrize("transfer", BETWEEN_PROCESSES)
def test_an_element_larger_than_all_shared_memory_comes_whole(service: DataService, transfer: str) -> None:
    huge = dsnb.Dataset.range(2).map(lambda n: np.arange(n, n + 10_000_000))
    with read(huge, service, data_transfer_protocol=transfer, job_name=f"huge {transfer}") as elements:
        found = list(elements)
        assert [np.array_equal(element, np.arange(n, n + 10_000_000)) for n, element in enumerate(found)] == [True] * 2


def test_an_unknown_way_is_told_with_those_there_are() -> None:
    with pytest.raises(DsnbError, match="shared_memory"):
        dsnb.distribute("parallel_epochs", "127.0.0.1:9", data_transfer_protocol="shm")
