"""What is promised of a DYNAMIC pass, in as many runs as were promised: each element once, counted so, and in time.

The name of a run is its seed, so `-k "killed and grpc and 3-7"` repeats it. After the last fault, workers make what is
still missing, and repeat what died with other workers. Time in which no worker makes anything is printed with the run;
the soak form also limits it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import pytest

import dsnb
from dsnb.monitor.receipt import Receipt
from dsnb.monitor.snapshot import JobStatus
from tests.faults.chaos import END_S, TIMES, Scene, paced
from tests.faults.reader_process import RECORD
from tests.support.cluster import Cluster
from tests.support.dispatchers import KillableCluster
from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.proxy import Proxy, poor_link
from tests.support.waiting import wait_for
from tests.support.workers import address_of

COUNT: Final = 10_000
WORKERS: Final = 3
PACE_S: Final = 0.001
MOMENTS: Final = (COUNT // 100, COUNT * 19 // 20)
"""Faults happen when so many elements have arrived: at least, and at most."""
IN_TIME_S: Final = 2.0
SHORT_S: Final = 0.1
"""Pauses up to this length are put down to the machine."""
WORKER_TIMEOUT_S: Final = TIMES["worker_timeout_ms"] / 1000


class Pass:
    """One pass over all numbers, in which things fail at moments that follow from a seed.

    Args:
        scene: A service with three workers.
        seed: Determines all random choices.
    """

    def __init__(self, scene: Scene, seed: str) -> None:
        self.scene = scene
        self.random = random.Random(seed)
        self.allowed_s = IN_TIME_S
        """How long workers may be idle in all after the last fault."""
        self._last_fault = 0.0

    def begin(self, transfer: str, readers: int) -> None:
        self.scene.register(dsnb.Dataset.range(COUNT).map(noted(self.scene.folder)))
        for _ in range(readers):
            self.scene.read(transfer=transfer, gate=self.scene.gate)
        self.scene.open_gate()

    def moments(self, count: int) -> Iterator[int]:
        """Wait for each of `count` random moments, and yield how many elements have arrived by then."""
        for moment in sorted(self.random.sample(range(*MOMENTS), count)):
            wait_for(lambda moment=moment: self.came() >= moment, what=f"{moment} elements", timeout=END_S)
            yield moment

    def came(self) -> int:
        return sum(reader.log.stat().st_size for reader in self.scene.readers) // RECORD.size

    def failed(self) -> None:
        """Note that something has failed just now, or works again."""
        self._last_fault = time.monotonic()

    def any_worker(self) -> PythonProcess:
        return self.random.choice(self.scene.living)

    def kill_a_worker(self) -> None:
        """SIGKILL; another one is started in its place."""
        self.any_worker().kill()
        self.failed()
        self.scene.add_worker(ready=False)

    def end(self) -> float:
        """Wait for the end, check what came and what was counted, and return for how long no worker made anything."""
        if len(self._ready()) < WORKERS - 1:
            wait_for(lambda: len(self._ready()) >= WORKERS - 1, what="other workers", timeout=END_S)
            self.failed()
        ends = self.scene.ended()
        ended = time.monotonic()
        assert not [text for end in ends for text in end["warnings"] if "did not arrive" in text]
        by_reader = [len(reader.got) for reader in self.scene.readers]
        check_each_once_and_counted_so(self.scene.counts(), self.scene.cluster, by_reader)
        return sum(pause for pause in self._pauses(ended) if pause > SHORT_S)

    def _ready(self) -> list[PythonProcess]:
        return [worker for worker in self.scene.living if "{" in worker.stdout]

    def _pauses(self, ended: float) -> Iterator[float]:
        """The seconds between one element and the next one made, by any worker, since the last fault."""
        made = [float(at) for path in self.scene.folder.glob("made.*") for at in path.read_text().split()]
        moments = sorted(at for at in made if self._last_fault < at < ended)
        return (after - before for before, after in pairwise([self._last_fault, *moments, ended]))


def noted(folder: Path) -> Callable[[int], int]:
    """A function that takes a while for each number, and notes in a file of its process when that was."""

    def make(number: int) -> int:
        time.sleep(PACE_S)
        with open(f"{folder}/made.{os.getpid()}", "a", encoding="ascii") as file:
            file.write(f"{time.monotonic()}\n")
        return number

    return make


def check_each_once_and_counted_so(seen: Counter[int], cluster: Cluster, by_reader: list[int]) -> None:
    """Check that the service counted what came, no more and no less, and that each element came once."""
    receipt: Receipt = wait_for(lambda: over(cluster), what="the receipt of a pass that is over", timeout=END_S)
    job = cluster.job("train")
    story = "\n".join((repr(receipt), repr(job), *(event.text for event in cluster.status().events)))
    missing, twice = set(range(COUNT)) - set(seen), seen.total() - len(seen)
    assert (receipt.missing, receipt.twice) == (len(missing), twice), story
    assert sorted(reader.elements for reader in receipt.readers) == sorted(by_reader), story
    assert reported_as_lost(job) == len(missing), story
    assert seen == Counter(range(COUNT)), f"missing {sorted(missing)[:20]}, {twice} twice\n{story}"
    assert f"{COUNT:,} of {COUNT:,} elements, each once" in repr(receipt)
    assert (job.state, job.guarantee) == ("finished", "exactly once")


def over(cluster: Cluster) -> Receipt | None:
    receipt = cluster.service.receipt("train")
    return receipt if receipt.over else None


def reported_as_lost(job: JobStatus) -> int:
    """How many elements are lost by every counter that there is; all counters must agree."""
    trainers = sum(trainer.lost for trainer in job.trainers)
    assert not any(trainer.lost_parts for trainer in job.trainers)
    assert job.lost_splits == trainers == sum(splits.lost for splits in job.splits)
    return trainers


# ---- what fails


def kill_workers(run: Pass) -> None:
    for _ in run.moments(3):
        run.kill_a_worker()


def suspend_workers(run: Pass) -> None:
    """Suspend a worker until it is given up, and a while longer; it wakes up still holding its elements."""
    service = run.scene.cluster.service
    for _ in run.moments(2):
        victim = run.any_worker()
        os.kill(victim.pid, signal.SIGSTOP)
        run.failed()
        address = address_of(victim)
        service.wait_until(lambda status, at=address: at not in {worker.address for worker in status.workers}, END_S)
        run.scene.suspend(victim.pid, run.random.uniform(0.0, 1.0))
        run.scene.go_on()
    run.allowed_s += WORKER_TIMEOUT_S


def kill_workers_and_the_dispatcher(run: Pass) -> None:
    """If a worker dies while the dispatcher is away, its missing heartbeat is the only sign."""
    cluster = run.scene.cluster
    dispatcher_at = run.random.randrange(4)
    for number, _ in enumerate(run.moments(4)):
        if number == dispatcher_at:
            cluster.restart_dispatcher()
        else:
            run.kill_a_worker()
    cluster.dispatcher.wait_until_ready()
    run.failed()
    run.allowed_s += WORKER_TIMEOUT_S


def trouble_connections(run: Pass) -> None:
    """Disturb connections between any process and the dispatcher, and over gRPC between readers and workers."""
    delayed = list[Proxy]()
    for _ in run.moments(6):
        while delayed:
            delayed.pop().delay_s = 0.0
        link = run.random.choice(run.scene.links)
        trouble = run.random.choice(["cut", "half-close", "half-close upstream", "delay"])
        if trouble == "cut":
            link.cut()
        elif trouble == "delay":
            link.delay_s = run.random.uniform(0.02, 0.2)
            delayed.append(link)
        else:
            link.half_close(upstream="upstream" in trouble)
        run.failed()


class PoorlyConnected(Scene):
    """A service in which every process reaches the dispatcher, and readers reach workers, through a proxy."""

    def __init__(self, folder: Path) -> None:
        self.links: list[Proxy] = []
        # On a busy machine a reader may need more than 0.3 s to connect again. It would count as lost then, and what it
        # holds would rightly come to another reader too.
        super().__init__(folder, WORKERS, reconnect_ms=5_000)

    def target(self) -> str:
        return f"grpc://{self._link(self.cluster.address).address}"

    def add_worker(self, port: int = 0, *more: str, **named: Any) -> PythonProcess:
        port = port or unused_port()
        link = self._link(f"127.0.0.1:{port}")
        return super().add_worker(port, "--worker-address", link.address, *more, **named)

    def _link(self, address: str) -> Proxy:
        link = self._stack.enter_context(poor_link())
        host, _, port = address.rpartition(":")
        link.upstream = (host, int(port))
        self.links.append(link)
        return link


def in_one_process(folder: Path) -> Scene:
    """A service whose dispatcher runs in this process."""
    return Scene(folder, WORKERS)


def with_a_killable_dispatcher(folder: Path) -> Scene:
    return Scene(folder, WORKERS, KillableCluster(folder / "work", **TIMES))


# ---- the runs

FAULTS: dict[str, tuple[int, Callable[[Path], Scene], Callable[[Pass], None]]] = {
    "killed": (20, in_one_process, kill_workers),
    "suspended": (5, in_one_process, suspend_workers),
    "dispatcher": (5, with_a_killable_dispatcher, kill_workers_and_the_dispatcher),
    "connections": (5, PoorlyConnected, trouble_connections),
}
IN_CI = {
    "killed": [("shared_memory", 1, 0), ("grpc", 3, 0)],
    "suspended": [("tcp", 3, 0)],
    "dispatcher": [("grpc", 3, 0)],
    "connections": [("shared_memory", 1, 0), ("tcp", 3, 0)],
}
RUNS = [
    pytest.param(fault, *how, marks=pytest.mark.slow if how in IN_CI[fault] else pytest.mark.soak)
    for fault, (runs, *_) in FAULTS.items()
    for how in product(["shared_memory", "tcp", "grpc"], [1, 3], range(runs))
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault, transfer, readers, run", RUNS)
def test_each_element_comes_once_and_in_time(
    fault: str, transfer: str, readers: int, run: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    _, scenery, strike = FAULTS[fault]
    with scenery(tmp_path) as scene:
        one = Pass(scene, seed=f"{fault} {transfer} {readers} {run}")
        one.begin(transfer, readers)
        strike(one)
        idle_s = one.end()
    record_property("idle_s", idle_s)
    sys.stdout.write(f"no worker made anything for {idle_s:.2f} s; {one.allowed_s:g} s are allowed\n")
    assert (transfer, readers, run) in IN_CI[fault] or idle_s <= one.allowed_s


@pytest.mark.timeout(300)
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.soak if run else pytest.mark.slow) for run in range(10)]
)
def test_a_thread_worker_that_is_stopped_without_leaving_loses_nothing(run: int, heard: bool) -> None:
    """The reader runs in the same process. The worker's last report reaches the dispatcher, or does not."""
    moment = random.Random(f"{heard} {run}").randrange(*MOMENTS)
    with poor_link() as link, Cluster(WORKERS - 1, dispatcher=TIMES) as cluster:
        link.upstream = ("127.0.0.1", int(cluster.address.rpartition(":")[2]))
        victim = cluster.add_worker(dispatcher_address=link.address)

        def stop() -> None:
            if not heard:
                link.close()
            victim.stop()

        stopping = threading.Thread(target=stop, daemon=True)
        policy = dsnb.distribute("distributed_epoch", cluster.service, job_name="train", data_transfer_protocol="local")
        got = list[int]()
        for element in dsnb.Dataset.range(COUNT).map(paced(PACE_S)).apply(policy):
            got.append(int(element))
            if len(got) == moment:
                stopping.start()
        stopping.join(END_S)
        assert victim.stopped
        check_each_once_and_counted_so(Counter(got), cluster, [len(got)])
