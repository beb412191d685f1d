"""A command starts each worker: what it is given, how it ends, and what is said if it cannot start one."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

import dsnb
from dsnb.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.launchers import Command
from tests.support.processes import is_running
from tests.support.waiting import wait_for

WORKER = [sys.executable, "-m", "dsnb.worker", "{arguments}"]
BY_SHELL = ["bash", "-c", "echo 'welcome to this machine'; exec \"$@\"", "bash", *WORKER]


def read(service: dsnb.DataService, count: int = 50) -> list[int]:
    numbers = dsnb.Dataset.range(count).apply(dsnb.distribute("distributed_epoch", service))
    return sorted(int(x) for x in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("argv", [WORKER, BY_SHELL], ids=["plain", "with a greeting"])
def test_workers_that_a_command_starts_serve_and_end_with_the_service(argv: list[str]) -> None:
    with dsnb.start(workers=2, on=Command(argv)) as service:
        assert read(service) == list(range(50))
        service.scale(1)
        assert service.workers == 1
        wait_for(lambda: len(service.status().workers) == 1, what="the other worker to leave")
        pids = [worker.pid for worker in service.status().workers]
    wait_for(lambda: not any(map(is_running, pids)), what="the workers to end")


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_command_named() -> None:
    with dsnb.start(workers=1, on=Command(WORKER)) as service:
        (worker,) = service.status().workers
        os.kill(worker.pid, signal.SIGKILL)
        service.wait_until(lambda status: [w.uid for w in status.workers] not in ([], [worker.uid]), timeout=60)
        assert read(service) == list(range(50))
        told = " ".join(event.text for event in service.status().events)
        assert "-m dsnb.worker --remote' ended with SIGKILL" in told
        assert "worker w0 is being replaced (1 of 5)" in told


@pytest.mark.slow
def test_replacements_that_cannot_start_leave_the_service_and_it_can_be_scaled_again(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    script = 'test -e "$0" && { echo the queue is closed >&2; exit 3; }; exec "$@"'
    with dsnb.start(workers=1, on=Command(["bash", "-c", script, str(closed), *WORKER])) as service:
        (worker,) = service.status().workers
        closed.touch()
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: service.workers == 0, what="the end of all attempts", timeout=60)
        told = " ".join(event.text for event in service.status().events)
        assert "the queue is closed" in told
        assert "is not replaced: 5 workers died" in told
        closed.unlink()
        service.scale(1)
        assert read(service) == list(range(50))


def test_a_command_that_starts_no_worker_is_reported_with_what_it_said() -> None:
    with pytest.raises(UnavailableError, match="ended with exit code 3; it last said: no such partition"):
        dsnb.start(workers=1, on=Command(["bash", "-c", "echo no such partition >&2; exit 3", "{arguments}"]))


QUEUED = 'trap \'echo cancelled >>"$0"; exit 1\' TERM; echo queued >>"$0"; while :; do sleep 0.05; done'
"""Like `srun` in a queue: it reads no standard input, and cancels its job on SIGTERM."""


@pytest.mark.parametrize(
    "script", [QUEUED, f'bash -c {shlex.quote(QUEUED)} "$0"; exit 1'], ids=["itself", "by a shell"]
)
def test_a_command_that_started_no_worker_in_time_cancels_what_it_has_queued(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr("dsnb.launchers.pool._READY_TIMEOUT_S", 1.0)
    with pytest.raises(DeadlineExceededError, match="not ready within 1 seconds"):
        dsnb.start(workers=1, on=Command(["bash", "-c", script, str(log), "{arguments}"]))
    assert log.read_text().split() == ["queued", "cancelled"]


def test_a_program_that_is_not_installed_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=re.escape("the program 'no-such-program' was not found")):
        dsnb.start(workers=1, on=Command(["no-such-program", "{arguments}"]))


@pytest.mark.parametrize("argv", [[], ["srun", "dsnb"], "srun {arguments}", [1]])
def test_a_command_without_its_arguments_is_refused(argv: object) -> None:
    with pytest.raises(InvalidArgumentError, match="`argv`"):
        Command(argv)  # type: ignore[arg-type]


@pytest.mark.parametrize("on", ["rya", 3, dsnb.Dataset.range(3)])
def test_an_unknown_launcher_is_refused(on: object) -> None:
    with pytest.raises(InvalidArgumentError, match="`on` is"):
        dsnb.start(on=on)
