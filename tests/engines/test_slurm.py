"""Workers in a real SLURM of one node: started by `srun`, by the script of docs/slurm.md, and by dask-jobqueue."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from dsnb.errors import DeadlineExceededError
from dsnb.launchers import Command
from tests.faults.chaos import paced
from tests.support.processes import ROOT, PythonProcess, is_running
from tests.support.requires import require_peer
from tests.support.slurm import Slurm, running_slurm
from tests.support.waiting import wait_for

require_peer("dask_jobqueue")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PAGE = ROOT / "docs" / "slurm.md"
SRUN = Command(["srun", "-n1", "-c2", sys.executable, "-m", "dsnb.worker", "{arguments}"])
AFTER_START = """
print(svc.workers, sorted(map(int, dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", svc)))))
input_ended = __import__("sys").stdin.read()
svc.stop()
cluster.close()
"""
READY_S = 90.0
COUNT = 2_000


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with running_slurm() as found:
        yield found


def read(service: dsnb.DataService) -> Iterator[int]:
    numbers = dsnb.Dataset.range(COUNT).map(paced(0.002)).apply(dsnb.distribute("distributed_epoch", service))
    return map(int, numbers)


def wait_for_jobs(slurm: Slurm, count: int) -> list[str]:
    wait_for(lambda: len(slurm.jobs()) == count, what=f"{count} jobs of SLURM", timeout=READY_S, every=0.2)
    return slurm.jobs()


def test_srun_starts_a_job_for_each_worker_which_ends_with_the_worker(slurm: Slurm) -> None:
    with dsnb.start(workers=3, on=SRUN, host="auto") as service:
        pids = [worker.pid for worker in service.status().workers]
        assert len(slurm.jobs()) == 3
        elements = read(service)
        seen = Counter([next(elements)])
        service.scale(1)
        seen.update(elements)
        assert seen == dict.fromkeys(range(COUNT), 1)
        wait_for_jobs(slurm, 1)
    wait_for_jobs(slurm, 0)
    assert not any(map(is_running, pids))


def test_a_worker_whose_job_is_cancelled_leaves_and_is_replaced(slurm: Slurm) -> None:
    with dsnb.start(workers=2, on=SRUN, host="auto") as service:
        before = {worker.uid for worker in service.status().workers}
        elements = read(service)
        seen = Counter([next(elements)])
        cancelled = slurm.jobs()[0]
        slurm.run("scancel", cancelled)
        seen.update(elements)
        assert seen == dict.fromkeys(range(COUNT), 1)
        service.wait_until(
            lambda status: (
                len({worker.uid for worker in status.workers} - before) == 1
                and len({worker.uid for worker in status.workers}) == 2
            ),
            READY_S,
        )
        assert cancelled not in wait_for_jobs(slurm, 2)
    wait_for_jobs(slurm, 0)


def test_a_start_for_which_there_is_no_room_fails_and_leaves_no_job_in_the_queue(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = slurm.run("sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    wait_for_jobs(slurm, 1)
    monkeypatch.setattr("dsnb.launchers.pool._READY_TIMEOUT_S", 5.0)
    with pytest.raises(DeadlineExceededError) as caught:
        dsnb.start(workers=1, on=SRUN, host="auto")
    assert "queued and waiting for resources" in caught.value.hint
    assert wait_for_jobs(slurm, 1) == [holder]
    slurm.run("scancel", holder)
    wait_for_jobs(slurm, 0)


def page_block(language: str, start: str) -> str:
    """The block of code on the page that begins with `start`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if block.startswith(start)]
    return str(found)


def test_the_script_for_sbatch_starts_workers_that_leave_when_their_job_is_cancelled(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "workers.sh"
    script.write_text(page_block("bash", "#!/bin/bash"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    with dsnb.start(workers=1, host="auto") as service:
        join_file = service.join_command().split()[-1]
        job = slurm.run("sbatch", "--parsable", f"--output={tmp_path}/out", str(script), join_file)
        service.wait_until(lambda status: len(status.workers) == 5, READY_S)
        pids = [worker.pid for worker in service.status().workers[1:]]
        elements = read(service)
        seen = Counter(next(elements) for _ in range(100))
        slurm.run("scancel", job)
        seen.update(elements)
        assert seen == dict.fromkeys(range(COUNT), 1)
        wait_for_jobs(slurm, 0)
        assert not any(map(is_running, pids))
        events = [event.text for event in service.status().events]
        assert not [text for text in events if "lost" in text], events


def test_dask_jobqueue_starts_workers_as_the_page_has_it(slurm: Slurm, tmp_path: Path) -> None:
    code = page_block("python", "from dask_jobqueue")
    settings = {"DASK_JOBQUEUE__SLURM__LOG_DIRECTORY": str(tmp_path)}
    with PythonProcess(["-c", code + AFTER_START], env=settings, stdin=True) as process:
        process.wait_for_line("2 [0, 0, 1, 1, 2, 2]", timeout=240.0)
        assert len(slurm.jobs()) == 2
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait_for_exit(timeout=60.0) == 0, process.describe()
    wait_for_jobs(slurm, 0)
