"""A process dies or stands still at each named step of the protocol: no element is lost, and none comes twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import dsnb
from tests.faults.chaos import Scene, paced
from tests.support.dispatchers import RestartableDispatcher
from tests.support.reading import numbers
from tests.support.waiting import wait_for
from tests.support.workers import worker_processes

COUNT = 600
OF_DISPATCHERS = (
    "journal commit",
    "decision carry out",
    "answer Hello",
    "answer Join",
    "answer GetTask",
    "answer GetSplits",
    "answer ConfirmEnd",
)
OF_WORKERS = ("elements send", "call GetSplits", "call GetTask")
OF_READERS = ("call Join", "call ConfirmEnd", "credit send")
WHENS = ("before", "after")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    # On a busy machine, the service may take so long to start again that it counts the reader as lost meanwhile.
    pytest.mark.filterwarnings("ignore:this reader was silent:dsnb.errors.DsnbWarning"),
]


def dataset() -> dsnb.Dataset:
    return dsnb.Dataset.range(COUNT).map(paced(0.001))


@contextmanager
def restarted(dispatcher: RestartableDispatcher) -> Iterator[list[int]]:
    """Start a dispatcher again whenever it has died; the exit codes."""
    ended, codes = threading.Event(), list[int]()

    def watch() -> None:
        while not ended.wait(0.02):
            code = dispatcher.exit_code
            if code is not None:
                codes.append(code)
                dispatcher.restart()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield codes
    finally:
        ended.set()
        watching.join()


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("name", OF_DISPATCHERS)
def test_a_dispatcher_that_dies_there_costs_no_element(tmp_path: Path, name: str, when: str) -> None:
    nth = {"answer Join": 1, "answer ConfirmEnd": 1, "answer GetTask": 2}.get(name, 4)
    with (
        RestartableDispatcher(tmp_path / "work", f"{name}/{when}:kill:{nth}") as dispatcher,
        restarted(dispatcher) as codes,
        worker_processes(2, dispatcher.target, dispatcher.token),
    ):
        service = dsnb.connect(dispatcher.target, token=dispatcher.token)
        policy = dsnb.distribute("distributed_epoch", service, job_name="train")
        assert sorted(numbers(dataset().apply(policy))) == list(range(COUNT))
        assert codes == [-signal.SIGKILL], "it died there"


@pytest.mark.parametrize("transfer", ["grpc", "shared_memory"])
@pytest.mark.parametrize("action", ["kill", "suspend"])
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("name", OF_WORKERS)
def test_a_worker_that_dies_or_stands_still_there_costs_no_element(
    tmp_path: Path, name: str, when: str, action: str, transfer: str
) -> None:
    nth = 1 if name == "call GetTask" else 3
    with Scene(tmp_path, workers=1) as scene:
        doomed = scene.add_worker(fault=f"{name}/{when}:{action}:{nth}")
        scene.register(dataset())
        scene.read(transfer=transfer)
        wait_for(lambda: has_met(doomed.pid, action), what=f"the worker to reach {name!r}", timeout=60)
        if action == "suspend":
            wait_for(lambda: len(scene.cluster.status().workers) == 1, what="the worker to be lost", timeout=60)
            os.kill(doomed.pid, signal.SIGCONT)
        scene.ended()
        scene.check_each_once(COUNT)


@pytest.mark.parametrize("transfer", ["grpc", "shared_memory"])
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("name", OF_READERS)
def test_a_reader_that_dies_there_leaves_what_it_had_not_used_to_the_others(
    tmp_path: Path, name: str, when: str, transfer: str
) -> None:
    with Scene(tmp_path, workers=2) as scene:
        scene.register(dataset())
        scene.read(transfer=transfer, gate=scene.gate, pause_s=0.001)
        doomed = scene.read(transfer=transfer, gate=scene.gate, pause_s=0.001, fault=f"{name}/{when}:kill")
        scene.open_gate()
        wait_for(lambda: has_met(doomed.process.pid, "kill"), what=f"the reader to reach {name!r}", timeout=60)
        doomed.kill()
        scene.ended()
        # The end of one reader waits for no other: once it is known to be dead, what it had is kept for a successor.
        wait_for(lambda: scene.cluster.status().jobs[0].state != "running", what="the dead reader to be missed")
        scene.read(transfer=transfer)
        scene.ended()
        scene.check_each_once(COUNT, in_hand=1, again=2 * 16)


def has_met(pid: int, action: str) -> bool:
    """Whether a process was killed, or is suspended."""
    state = ""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in ({"T"} if action == "suspend" else {"", "Z"})
