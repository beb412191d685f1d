"""Services whose workers are processes: what a user does with them, and what happens when they die."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

import dsnb
from dsnb.errors import DataLossWarning, DsnbError, InvalidArgumentError
from dsnb.launchers.launcher import LaunchedWorker, OnExit
from dsnb.launchers.local import Processes
from dsnb.launchers.restart_budget import RestartBudget
from dsnb.monitor.snapshot import Snapshot
from dsnb.notebook.service import DataService
from tests.support.processes import PythonProcess, is_running
from tests.support.waiting import wait_for

LONG_S = 60.0


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=2, isolation="process") as service:
        yield service


def shared(
    service: DataService, dataset: dsnb.Dataset, mode: str = "distributed_epoch", **options: object
) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute(mode, service, **options))  # type: ignore[arg-type]


@pytest.mark.slow
def test_elements_come_from_processes_of_their_own(service: DataService) -> None:
    pids = {int(x) for x in shared(service, dsnb.Dataset.range(2000).map(lambda _x: os.getpid()))}
    assert pids <= {worker.pid for worker in service.status().workers}
    assert os.getpid() not in pids


@pytest.mark.slow
def test_functions_and_their_data_go_along(service: DataService) -> None:
    table = np.arange(1 << 18, dtype=np.int64)  # 2 MB: travels as a blob

    class Adder:
        def __init__(self, by: int) -> None:
            self.by = by

        def __call__(self, x: int) -> int:
            return int(table[x]) + self.by

    assert sorted(int(x) for x in shared(service, dsnb.Dataset.range(50).map(Adder(7)))) == list(range(7, 57))


@pytest.mark.slow
def test_an_error_of_user_code_keeps_its_class_and_place(service: DataService) -> None:
    def pick(x: int) -> str:
        return {0: "nought", 1: "one", 3: "three"}[int(x)]

    iterator = iter(shared(service, dsnb.Dataset.range(4).map(pick)))
    got: list[str] = []
    with pytest.raises(KeyError, match="2") as caught:
        got += iterator
    assert any("worker w" in note for note in caught.value.__notes__)
    assert sorted(map(str, [*got, *iterator])) == ["nought", "one", "three"]


@pytest.mark.slow
def test_scaling_up_and_down_loses_nothing(service: DataService) -> None:
    def paced(x: int) -> int:
        time.sleep(0.002)
        return x

    slow = dsnb.Dataset.range(400).map(paced)
    iterator = iter(shared(service, slow, job_name="scaled"))
    got = [int(x) for x in islice(iterator, 20)]
    service.scale(4)
    assert service.workers == len(service.status().workers) == 4
    got += [int(x) for x in islice(iterator, 20)]
    service.scale(1)
    assert service.workers == 1
    got += [int(x) for x in iterator]
    assert sorted(got) == list(range(400))
    service.wait_until(lambda now: len(now.workers) == 1)


def replaced(now: Snapshot, pid: int) -> bool:
    """Whether there are two workers again, and none of them is that process."""
    return len(now.workers) == 2 and pid not in {worker.pid for worker in now.workers}


@pytest.mark.slow
def test_a_killed_worker_is_explained_replaced_and_its_readers_go_on(service: DataService) -> None:
    def paced(x: int) -> int:
        time.sleep(0.001)
        return x

    endless = dsnb.Dataset.range(100).map(paced).repeat()
    iterator = iter(shared(service, endless, "parallel_epochs", job_name="job"))
    assert len(list(islice(iterator, 10))) == 10
    victim = service.wait_until(lambda now: all(worker.produced for worker in now.workers)).workers[0]
    os.kill(victim.pid, signal.SIGKILL)

    def replaced_and_told() -> Snapshot | None:
        """The reader learns of the death in a way of its own, and may do so after the replacement has come."""
        next(iterator)
        now = service.status()
        return now if told.list and replaced(now, victim.pid) else None

    with pytest.warns(
        DataLossWarning, match=rf"worker {victim.name} .*process {victim.pid} was ended by SIGKILL"
    ) as told:
        now = wait_for(replaced_and_told, what="the replacement, and the reader to be told", timeout=LONG_S)
    assert now is not None
    assert sorted(worker.name for worker in now.workers) == ["w0", "w1"]
    (death,) = [event for event in now.events if "died" in event.text]
    assert death.level == "warning"
    assert f"process {victim.pid} was ended by SIGKILL" in death.text
    assert "element" in death.text  # the last that it reported
    assert any(f"{victim.name} is being replaced (1 of 5)" in event.text for event in now.events)
    assert len(list(islice(iterator, 100))) == 100
    iterator.close()


@pytest.mark.slow
def test_a_worker_that_dies_before_it_has_told_its_name_is_replaced() -> None:
    launched: list[LaunchedWorker] = []

    class Noting(Processes):
        def launch(self, config: dsnb.WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
            launched.append(super().launch(config, on_exit))
            return launched[-1]

    with dsnb.start(workers=2, on=Noting()) as service:
        victim = launched[0]
        pid = next(worker.pid for worker in service.status().workers if worker.uid == victim.uid)
        victim.name = ""
        os.kill(pid, signal.SIGKILL)
        now = service.wait_until(lambda now: replaced(now, pid), timeout=LONG_S)
    assert any("worker that had just begun is being replaced" in event.text for event in now.events)


@pytest.mark.slow
def test_a_pipeline_that_crashes_its_worker_again_and_again_is_not_retried_for_ever() -> None:
    def crash(x: int) -> int:
        os._exit(3)

    def read_on() -> None:
        with warnings.catch_warnings(), contextlib.suppress(DsnbError):
            warnings.simplefilter("ignore", DataLossWarning)
            next(iterator)

    with dsnb.start(workers=1, isolation="process") as service:
        iterator = iter(shared(service, dsnb.Dataset.range(1000).map(crash), "parallel_epochs", job_name="poison"))
        reader = threading.Thread(target=read_on)
        reader.start()
        given_up = service.wait_until(
            lambda now: any("is not replaced: 5 workers died" in event.text for event in now.events), timeout=LONG_S
        )
        assert not given_up.workers
        assert sum("exit code 3" in event.text for event in given_up.events) == 6
        iterator.close()
        reader.join(LONG_S)
        service.scale(1)
        assert sorted(int(x) for x in shared(service, dsnb.Dataset.range(5))) == list(range(5))


def test_replacements_are_bounded_within_a_stretch_of_time() -> None:
    replacements = RestartBudget(limit=2, window_s=10.0)
    assert [replacements.try_spend(now) for now in (0.0, 5.0, 9.0, 10.5, 14.0, 15.5)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    assert replacements.recent == 2


def test_another_isolation_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="`isolation` is 'fork'"):
        dsnb.start(isolation="fork")  # type: ignore[arg-type]


def rounds(count: int) -> None:
    """Start, read and stop so often."""
    for _ in range(count):
        with dsnb.start(workers=2, isolation="process") as service:
            assert len(list(shared(service, dsnb.Dataset.range(100).map(lambda x: x + 1)))) == 100


@pytest.mark.slow
def test_starts_reads_and_stops_leave_nothing() -> None:
    """The leak checks after each test look for threads, children, sockets, files and shared memory."""
    rounds(5)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_fifty_starts_reads_and_stops_leave_nothing() -> None:
    rounds(50)


OWNER = """
import sys, dsnb
service = dsnb.start(workers=2, isolation="process", name="doomed")
data = dsnb.Dataset.range(100).map(lambda x: x + 1).repeat().apply(dsnb.distribute("parallel_epochs", service))
iterator = iter(data)
print("READY", next(iterator) * 0, *(worker.pid for worker in service.status().workers), flush=True)
for _ in iterator: pass
"""


def kill_owners(count: int) -> None:
    """Kill the owner of a service that is being read, so often; its workers end, and `status` removes the file."""
    for _ in range(count):
        with PythonProcess(["-c", OWNER]) as owner:
            pids = [int(pid) for pid in owner.wait_for_line("READY", timeout=LONG_S).split()[2:]]
            assert len(pids) == 2
            os.kill(owner.pid, signal.SIGKILL)
            wait_for(lambda: not any(map(is_running, pids)), what="the workers to end", timeout=30.0)  # noqa: B023 - used up at once
        with PythonProcess(["-m", "dsnb", "status"]) as status:
            assert status.wait_for_exit() != 0
            assert "no dsnb service" in status.stderr + status.stdout


@pytest.mark.slow
def test_a_killed_owner_takes_its_workers_along() -> None:
    kill_owners(2)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_killed_owners_leave_nothing() -> None:
    kill_owners(10)
