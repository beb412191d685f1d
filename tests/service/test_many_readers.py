"""One worker serves as many readers as it is set to, from several processes, and says so to the next one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import dsnb
from dsnb.errors import ResourceExhaustedError
from dsnb.notebook.service import DataService
from tests.support.processes import PythonProcess
from tests.support.reading import joined
from tests.support.waiting import wait_for

LONG_S = 120.0

READERS = """
import json, sys, threading, time
from itertools import islice
import dsnb

target, first, last, most, cached = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
got = {}
began = threading.Barrier(last - first + 1)
read_on = threading.Event()

def read(number):
    options = {"job_name": "shared", "max_outstanding_requests": 1}
    if cached == "cached":
        options["cross_trainer_cache"] = dsnb.CrossTrainerCache(f"trainer {number}")
    numbers = dsnb.from_dataset_id("parallel_epochs", target, "numbers", **options)
    elements = iter(numbers)
    mine = [int(next(elements))]
    began.wait(100)
    read_on.wait(100)
    mine += [int(x) for x in islice(elements, most - 1)]
    elements.close()
    got[number] = mine

threads = [threading.Thread(target=read, args=(number,)) for number in range(first, last)]
for thread in threads:
    thread.start()
began.wait(100)
print("BEGUN", flush=True)
input()
read_on.set()
for thread in threads:
    thread.join()
print("GOT", json.dumps(list(got.values())), flush=True)
"""


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=1, isolation="process") as service:
        yield service


@contextmanager
def readers(service: DataService, processes: int, each: int, most: int, kind: str) -> Iterator[list[PythonProcess]]:
    """So many processes with so many readers each, all of which have had their first element."""
    env = {"DSNB_TOKEN": service.token}
    with ExitStack() as stack:
        started = []
        for number in range(processes):
            told = (number * each, (number + 1) * each, most, kind)
            arguments = ["-c", READERS, service.target, *map(str, told)]
            started.append(stack.enter_context(PythonProcess(arguments, stdin=True, env=env)))
        for process in started:
            process.wait_for_line("BEGUN", timeout=LONG_S)
        yield started


def read_on(processes: Sequence[PythonProcess]) -> list[list[int]]:
    """What each reader got, when all are done."""
    for process in processes:
        assert process.popen.stdin is not None
        process.popen.stdin.write(b"\n")
        process.popen.stdin.flush()
    lines = [process.wait_for_line("GOT ", timeout=LONG_S) for process in processes]
    return joined(json.loads(line.removeprefix("GOT ")) for line in lines)


@pytest.mark.slow
def test_256_readers_of_four_processes_share_one_job_to_its_end(service: DataService) -> None:
    dsnb.register_dataset(service, dsnb.Dataset.range(4096), dataset_id="numbers")
    with readers(service, 4, 64, 1 << 20, "plain") as processes:
        service.wait_until(lambda now: now.workers[0].readers == 256)
        check_the_next_one_is_refused(service)
        check_control_calls_do_not_wait(service)
        shares = read_on(processes)
    assert len(shares) == 256
    assert all(shares), "each reader has its share"
    assert sorted(joined(shares)) == list(range(4096))


def check_the_next_one_is_refused(service: DataService) -> None:
    dataset = dsnb.from_dataset_id("parallel_epochs", service, "numbers", job_name="shared")
    with iter(dataset) as elements:
        began = time.monotonic()
        with pytest.raises(ResourceExhaustedError, match="serves 256 readers of other processes at once") as caught:
            next(elements)
        assert time.monotonic() - began < 10.0
        assert "max_readers" in caught.value.hint


def check_control_calls_do_not_wait(service: DataService) -> None:
    began = time.monotonic()
    for _ in range(5):
        service.status()
        dsnb.register_dataset(service, dsnb.Dataset.range(3), dataset_id="three")
    assert time.monotonic() - began < 10.0


@pytest.mark.slow
def test_each_of_256_trainers_reads_the_same_elements_from_one_window(service: DataService) -> None:
    dsnb.register_dataset(service, dsnb.Dataset.range(500).repeat(), dataset_id="numbers")
    with readers(service, 4, 64, 20, "cached") as processes:
        assert read_on(processes) == [list(range(20))] * 256
        [job] = service.status().jobs
        assert sum(trainer.misses for trainer in job.trainers) == 20, "each element was new to one trainer alone"
        assert {trainer.skipped for trainer in job.trainers} == {0}


@pytest.mark.slow
def test_a_killed_process_of_readers_gives_its_places_back() -> None:
    with dsnb.start(workers=1, isolation="process", max_readers=8) as service:
        dsnb.register_dataset(service, dsnb.Dataset.range(500).repeat(), dataset_id="numbers")
        with readers(service, 1, 8, 20, "plain") as [process]:
            process.kill()
            dataset = dsnb.from_dataset_id("parallel_epochs", service, "numbers", job_name="shared")
            with iter(dataset) as elements:

                def served() -> Any:
                    try:
                        return next(elements) is not None
                    except ResourceExhaustedError:
                        return False

                wait_for(served, what="a place", timeout=LONG_S)
