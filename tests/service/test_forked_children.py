"""What a user's function starts in a worker ends with the worker: nothing outlives its owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.processes import start_time
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for


def begun(isolation: str, kind: str, folder: Path) -> PythonProcess:
    return PythonProcess(["-m", "tests.service.forking", isolation, kind, str(folder / "child")], stdin=True)


def child_of(process: PythonProcess) -> int:
    return int(process.wait_for_line("CHILD", timeout=60.0).split()[1])


def is_gone(pid: int) -> bool:
    return not start_time(pid)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["returns", "stays", "daemon", "program"])
def test_what_a_function_starts_in_a_worker_process_ends_with_the_service(tmp_path: Path, kind: str) -> None:
    with begun("process", kind, tmp_path) as process:
        child = child_of(process)
        assert process.popen.stdin is not None
        process.popen.stdin.write(b"\n")
        process.popen.stdin.flush()
        process.wait_for_line("STOPPED", timeout=60.0)
        wait_for(lambda: is_gone(child), what="the end of what the function started")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stays", "daemon"])
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_what_a_function_forks_in_a_worker_ends_when_the_kernel_is_killed(
    tmp_path: Path, isolation: str, kind: str
) -> None:
    with begun(isolation, kind, tmp_path) as process:
        child = child_of(process)
        process.kill()
        wait_for(lambda: is_gone(child), what="the end of what the function forked")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_child_that_returns_from_the_function_ends_at_once_and_produces_nothing(
    tmp_path: Path, isolation: str
) -> None:
    with begun(isolation, "returns", tmp_path) as process:
        child = child_of(process)
        wait_for(lambda: is_gone(child), what="the end of the child, while the service runs")
