"""A worker process, as its owner sees it: it gets ready or says why not, ends when asked, and its death is told."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

import dsnb
from dsnb.errors import AlreadyExistsError, PermissionDeniedError, UnavailableError
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import Tail, WorkerProcess
from tests.support.cluster import Cluster
from tests.support.processes import PythonProcess, is_running
from tests.support.waiting import wait_for

READY_S = 60.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=0) as cluster:
        yield cluster


def config(cluster: Cluster, **settings: object) -> WorkerConfig:
    return WorkerConfig(
        **{"dispatcher_address": cluster.address, "token": cluster.dispatcher.token, **settings}  # type: ignore[arg-type]
    )


@contextmanager
def process(
    settings: WorkerConfig, on_death: Callable[[WorkerProcess], None] = lambda _process: None
) -> Iterator[WorkerProcess]:
    worker = WorkerProcess()
    worker.start(settings, on_death)
    try:
        worker.wait_ready(READY_S)
        yield worker
    finally:
        worker.stop()


def read(cluster: Cluster, dataset: dsnb.Dataset, count: int | None = None) -> list[int]:
    shared = dataset.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="job"))
    return [int(x) for x in islice(shared, count)]


@pytest.mark.slow
def test_one_that_was_begun_waits_to_be_told_what_it_is_to_do(cluster: Cluster) -> None:
    worker = WorkerProcess()
    worker.prestart()
    try:
        wait_for(lambda: worker.pid, what="the process")
        assert cluster.status().workers == ()
        worker.start(config(cluster, name="mine"), lambda _process: None)
        worker.wait_ready(READY_S)
        assert [status.name for status in cluster.status().workers] == ["mine"]
    finally:
        worker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0.0, 30.0])
def test_one_that_was_begun_and_never_told_ends_when_asked(timeout: float) -> None:
    worker = WorkerProcess()
    worker.prestart()
    wait_for(lambda: worker.pid, what="the process")
    worker.stop(timeout)
    assert worker.idle
    assert not is_running(worker.pid)


@pytest.mark.slow
def test_it_serves_when_it_is_ready_and_is_gone_when_stopped(cluster: Cluster) -> None:
    with process(config(cluster, name="mine")) as worker:
        (status,) = cluster.status().workers
        assert (worker.name, worker.pid, worker.uid) == ("mine", status.pid, status.uid)
        assert (status.name, status.isolation) == ("mine", "process")
        assert worker.pid != os.getpid()
        assert read(cluster, dsnb.Dataset.range(5).map(lambda x: 2 * x)) == [0, 2, 4, 6, 8]
    assert worker.idle
    wait_for(lambda: not cluster.status().workers, what="the worker to have said goodbye")


@pytest.mark.slow
def test_it_leads_a_session_of_its_own_and_does_not_heed_the_stop_button(cluster: Cluster) -> None:
    with process(config(cluster)) as worker:
        assert os.getsid(worker.pid) == worker.pid
        os.kill(worker.pid, signal.SIGINT)
        assert read(cluster, dsnb.Dataset.range(3)) == [0, 1, 2]


@pytest.mark.slow
def test_it_imports_only_what_a_worker_needs(cluster: Cluster) -> None:
    def loaded(_x: int) -> str:
        import sys

        return " ".join(sorted({".".join(name.split(".")[:2]) for name in sys.modules}))

    with process(config(cluster)):
        shared = dsnb.Dataset.range(1).map(loaded).apply(dsnb.distribute("parallel_epochs", cluster.service))
        (names,) = (str(x).split() for x in shared)
    strangers = {"panel", "bokeh", "tornado", "ipykernel", "IPython", "PIL", "pytest", "sqlite3", "pandas"}
    rooms = {"dsnb.client", "dsnb.dispatcher", "dsnb.notebook", "dsnb.dashboard", "dsnb.cli", "dsnb.demo"}
    assert not (strangers | rooms) & set(names)


@pytest.mark.slow
def test_its_token_is_in_no_argument_and_no_variable(cluster: Cluster) -> None:
    with process(config(cluster)) as worker:
        for told in ("cmdline", "environ"):
            assert cluster.dispatcher.token.encode() not in Path(f"/proc/{worker.pid}/{told}").read_bytes()


@pytest.mark.slow
def test_what_user_code_prints_is_kept_and_what_it_reads_is_empty(cluster: Cluster) -> None:
    def chatter(x: int) -> int:
        import sys

        print("out", x)  # noqa: T201 - the matter of this test
        print("err", x, sys.stdin.read(), file=sys.stderr)  # noqa: T201
        return x

    with process(config(cluster)) as worker:
        assert read(cluster, dsnb.Dataset.range(2).map(chatter)) == [0, 1]
        wait_for(lambda: len(worker.stderr) == 4, what="what was printed to arrive")
        assert set(worker.stderr) == {"out 0", "err 0 ", "out 1", "err 1 "}


def test_a_drained_one_ends_by_itself_and_nobody_calls_that_a_death(cluster: Cluster) -> None:
    deaths: list[WorkerProcess] = []
    with process(config(cluster), deaths.append) as worker:
        worker.drain()
        wait_for(lambda: worker.idle, what="it to end")
    assert not deaths


def test_a_port_that_is_taken_is_the_owners_error(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AlreadyExistsError, match=str(port)), process(config(cluster, port=port)):
            pass


def test_a_wrong_token_is_the_owners_error(cluster: Cluster) -> None:
    with pytest.raises(PermissionDeniedError), process(config(cluster, token="wrong")):
        pass


def test_an_end_before_it_was_ready_is_told_with_its_last_words(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("import os; os.write(2, b'no numbers today\\n'); os._exit(3)")
    monkeypatch.setattr("dsnb.worker.process.python_path", lambda: {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
    with pytest.raises(UnavailableError, match=r"exit code 3.*no numbers today"), process(config(cluster)):
        pass


@pytest.mark.slow
def test_a_death_is_told_at_once_with_signal_and_last_words(cluster: Cluster) -> None:
    deaths: list[WorkerProcess] = []

    def crash(x: int) -> int:
        import ctypes

        if x == 3:
            print("about to crash")  # noqa: T201
            ctypes.string_at(0)
        return x

    with process(config(cluster), deaths.append) as worker:
        cache = dsnb.CrossTrainerCache("one")
        shared = dsnb.distribute("parallel_epochs", cluster.service, job_name="j", cross_trainer_cache=cache)
        iterator = iter(dsnb.Dataset.range(10).repeat().map(crash).apply(shared)).start()
        wait_for(lambda: deaths, what="the death", timeout=30.0)
        assert deaths == [worker]
        assert "was ended by SIGSEGV: native code that the pipeline calls crashed" in worker.exit_reason()
        assert re.search("it last said: about to crash . Fatal Python error: .* in crash", worker.exit_reason())
        iterator.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed with a child that holds its pipes"])
def test_it_ends_with_its_owner_however_that_ends(how: str, cluster: Cluster) -> None:
    """A forked child of the owner keeps standard input open; the worker sees that its parent is another one."""
    code = f"""
import os, subprocess, sys
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess
worker = WorkerProcess()
worker.start(WorkerConfig(dispatcher_address={cluster.address!r}, token={cluster.dispatcher.token!r}), print)
worker.wait_ready(60)
if "child" in {how!r} and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("READY", worker.pid)
sys.stdin.read()
"""
    with PythonProcess(["-c", code], stdin=True) as owner:
        pid = int(owner.wait_for_line("READY", timeout=60.0).split()[1])
        assert is_running(pid)
        os.kill(owner.pid, signal.SIGKILL)
        wait_for(lambda: not is_running(pid), what="the worker to end", timeout=30.0)


def test_it_ends_with_its_owner_while_user_code_holds_the_interpreter(cluster: Cluster, tmp_path: Path) -> None:
    held = tmp_path / "held"
    code = f"""
import sys, dsnb
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess
worker = WorkerProcess()
worker.start(WorkerConfig(dispatcher_address={cluster.address!r}, token={cluster.dispatcher.token!r}), print)
worker.wait_ready(60)
print("READY", worker.pid)
sys.stdin.read()
"""

    def hold(x: int) -> int:
        import ctypes

        held.touch()
        ctypes.PyDLL(None).sleep(60)  # unlike a CDLL, it does not let go of the interpreter
        return x

    with PythonProcess(["-c", code], stdin=True) as owner:
        pid = int(owner.wait_for_line("READY", timeout=60.0).split()[1])
        shared = dsnb.distribute("parallel_epochs", cluster.service, data_transfer_protocol="grpc")
        iterator = iter(dsnb.Dataset.range(1).map(hold).apply(shared)).start()
        wait_for(held.exists, what="the interpreter to be held", timeout=30.0)
        os.kill(owner.pid, signal.SIGKILL)
        wait_for(lambda: not is_running(pid), what="the worker to end", timeout=30.0)
        iterator.close()


def test_the_tail_of_a_stream_is_bounded_and_whole() -> None:
    tail = Tail()
    for number in range(150):
        tail.add(b"line %d\nhalf" % number)
        tail.add(b" and half\n")
    tail.add(b"x" * 5000)
    assert len(tail.lines) == 200
    assert tail.lines[-2:] == ("half and half", "x" * 1000)
    tail.add(b"\xff\n")
    assert tail.lines[-1].endswith("x")
