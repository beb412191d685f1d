"""`start(outlive_kernel=True)`: a service that survives its kernel, and is found again by its name."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from dsnb.cli import main
from dsnb.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
    UnimplementedError,
)
from dsnb.notebook.detached import log_path, stop_detached
from dsnb.notebook.settings import ClusterSettings, WorkerCount
from dsnb.wire import discovery
from tests.support.processes import PythonProcess, is_running
from tests.support.reading import numbers
from tests.support.waiting import wait_for

KERNEL = """
import dsnb
svc = dsnb.start(workers=1, outlive_kernel=True, name="lasting")
elements = iter(dsnb.Dataset.range(10**9).apply(dsnb.distribute("distributed_epoch", svc, job_name="first kernel")))
print("READY", next(elements), flush=True)
input()
"""
READER = """
import dsnb
data = dsnb.Dataset.range(10**9).apply(dsnb.distribute("distributed_epoch", dsnb.connect("lasting"), job_name="other"))
print("READY", flush=True)
for element in data:
    print("ELEMENT", element, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def stop_all() -> Iterator[None]:
    yield
    for connection in discovery.running():
        if connection.settings:
            stop_detached(connection)
    assert [dsnb.start(name=connection.name).stop() for connection in discovery.running()] == []


def start(name: str | None = "lasting", **settings: object) -> dsnb.DataService:
    return dsnb.start(name=name, outlive_kernel=True, **settings)  # type: ignore[arg-type]


def connection_of(service: dsnb.DataService) -> discovery.Connection:
    found = discovery.read(service.name)
    assert found is not None
    return found


def read(service: dsnb.DataService) -> list[int]:
    return sorted(numbers(dsnb.Dataset.range(100).apply(dsnb.distribute("distributed_epoch", service))))


@pytest.mark.slow
def test_it_goes_on_when_its_kernel_is_killed_and_the_next_kernel_finds_it_by_name() -> None:
    with PythonProcess(["-c", KERNEL], stdin=True) as kernel:
        kernel.wait_for_line("READY")
        with PythonProcess(["-c", READER], stdin=True) as reader:
            reader.wait_for_line("ELEMENT")
            kernel.kill()
            assert reader.popen.stdin is not None
            for _ in range(5):
                reader.popen.stdin.write(b"\n")
            reader.popen.stdin.flush()
            wait_for(lambda: reader.stdout.count("ELEMENT") == 6, what="elements after the kernel's end")
            service = start()
            assert {job.name for job in service.status().jobs} == {"first kernel", "other"}
    assert read(service) == list(range(100))
    pids = [connection_of(service).pid, *(worker.pid for worker in service.status().workers)]
    service.stop()
    assert not any(map(is_running, pids))
    assert list(discovery.runtime_dir().iterdir()) == []


def test_a_kernel_that_asks_for_nothing_gets_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    first = start(workers=2, autoscale=(1, 3))
    found = start(None)
    assert (found.name, found.target) == ("lasting", first.target)
    limits = found.status().autoscale
    assert limits is not None
    assert (limits.minimum, limits.maximum) == (1, 3)
    assert capsys.readouterr().out == "dsnb: the service 'lasting' is already running\n"
    with found:
        pass
    assert not first.stopped, "a `with` block over what runs already must not stop it"


@pytest.mark.slow
def test_it_is_scaled_from_any_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    service = start(workers=1)
    service.scale(3)
    assert (service.workers, repr(service)) == (3, "DataService('lasting', 3 workers)")
    assert start(workers=2).workers == 2
    assert "now 2 worker(s) instead of 3" in capsys.readouterr().out


@pytest.mark.slow
def test_with_other_settings_it_is_replaced_only_on_request() -> None:
    service = start(workers=1)
    before = connection_of(service)
    with pytest.raises(FailedPreconditionError, match="another `max_readers`, and may be in use by others"):
        start(workers=1, max_readers=3)
    assert not service.stopped
    other = start(workers=1, max_readers=3, replace=True)
    assert not discovery.is_alive(before)
    assert read(other) == list(range(100))


@pytest.mark.slow
def test_a_call_that_does_not_name_it_leaves_one_with_other_settings_alone() -> None:
    code = KERNEL.replace("workers=1", "workers=1, max_readers=3")
    with PythonProcess(["-c", code], stdin=True) as kernel:
        kernel.wait_for_line("READY")
    other = start(None, workers=1)
    assert other.name == "default"
    other.stop()
    lasting = start(workers=1, max_readers=3)
    with pytest.raises(FailedPreconditionError, match="'lasting' outlives this kernel"):
        dsnb.start(name="lasting")
    assert not lasting.stopped


@pytest.mark.slow
def test_workers_started_by_a_command_outlive_the_kernel_too() -> None:
    command = dsnb.launchers.Command([sys.executable, "-m", "dsnb.worker", "{arguments}"])
    service = start(workers=1, on=command)
    assert read(service) == list(range(100))
    assert start(workers=1, on=command).target == service.target
    service.stop()


@pytest.mark.slow
def test_what_cannot_be_started_leaves_the_one_that_runs() -> None:
    service = start(workers=1)
    with pytest.raises(UnimplementedError, match="cannot use"):
        start(workers=1, on=dsnb.launchers.Ray(), replace=True)
    assert not service.stopped


@pytest.mark.slow
def test_kernels_that_start_one_at_the_same_time_get_the_same() -> None:
    with PythonProcess(["-c", KERNEL], stdin=True) as other:
        wait_for(lambda: discovery.read("lasting"), what="the claim of the other kernel", timeout=60)
        service = start(workers=1)
        other.wait_for_line("READY")
        assert {job.name for job in service.status().jobs} == {"first kernel"}


@pytest.mark.slow
def test_a_connection_file_that_vanishes_is_written_again() -> None:
    service = start(workers=0)
    before = connection_of(service)
    (discovery.runtime_dir() / "lasting.json").unlink()
    wait_for(lambda: discovery.read("lasting") == before, what="the file")
    (discovery.runtime_dir() / "lasting.json").unlink()
    other = discovery.publish("lasting", "grpc://127.0.0.1:1", "t" * 32)
    wait_for(lambda: service.stopped, what="the end of a service that nobody could find")
    discovery.retract(other)


@pytest.mark.slow
def test_modules_in_the_folder_of_the_notebook_do_not_shadow_those_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("print('shadow'); raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert read(start(workers=1)) == list(range(100))


@pytest.mark.slow
def test_a_service_that_ends_with_its_kernel_becomes_one_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    with dsnb.start(workers=1, name="lasting"):
        service = start(workers=1)
        assert connection_of(service).pid != os.getpid()
    assert "was restarted with another `isolation` and `outlive_kernel`" in capsys.readouterr().out


def test_the_reason_why_it_cannot_start_is_raised_in_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AlreadyExistsError, match="port"):
        start(workers=1, port=taken.getsockname()[1])
    assert discovery.running() == []
    with dsnb.start(workers=0, name="other"), pytest.raises(UnimplementedError, match="cannot use"):
        start(workers=1, on=dsnb.launchers.Ray())


@pytest.mark.slow
def test_a_service_whose_process_is_killed_is_known_to_have_ended() -> None:
    service = start(workers=1)
    workers = [worker.pid for worker in service.status().workers]
    os.kill(connection_of(service).pid, signal.SIGKILL)
    wait_for(lambda: service.stopped, what="the end to be noticed")
    assert repr(service) == "DataService('lasting', stopped)"
    with pytest.raises(FailedPreconditionError, match="was stopped"):
        service.status()
    wait_for(lambda: not any(map(is_running, workers)), what="the end of its workers")
    again = start(workers=1)
    assert read(again) == list(range(100))


def test_a_kernel_that_ends_while_it_starts_one_leaves_nothing() -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "dsnb.notebook.detached_process", str(writing)],
        stdin=subprocess.PIPE,
        pass_fds=(writing,),
    )
    assert process.stdin is not None
    os.close(writing)
    os.close(reading)
    settings = ClusterSettings(isolation="process", outlive_kernel=True)
    process.stdin.write(pickle.dumps(("lasting", WorkerCount(1, None), settings)))
    process.stdin.close()
    process.wait(60)
    wait_for(lambda: list(discovery.runtime_dir().iterdir()) != [], what="the start", timeout=60)
    wait_for(lambda: list(discovery.runtime_dir().iterdir()) == [], what="the end", timeout=60)


def test_a_process_that_ends_before_it_serves_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(UnavailableError, match="ended before it served"):
        start(workers=1)


def test_a_process_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsnb.notebook.detached._STOP_S", 0.2)
    service = start(workers=0)
    pid = connection_of(service).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match=f"process {pid} .* has not ended within 0.2 seconds"):
                service.stop()
        assert not service.stopped
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not is_running(pid), what="the end of the service")


def test_its_standard_error_goes_to_a_file_that_only_its_user_reads() -> None:
    service = start(workers=0)
    assert log_path("lasting").stat().st_mode & 0o777 == 0o600
    assert time.time() - log_path("lasting").stat().st_mtime < 300
    service.stop()
    assert not log_path("lasting").exists()


@pytest.mark.slow
def test_dsnb_stop_stops_it_and_no_other_service(capsys: pytest.CaptureFixture[str]) -> None:
    service = start(workers=1)
    with dsnb.start(workers=0, name="other") as other:
        assert main(["stop", "other"]) == 1
        assert f"runs in the process {os.getpid()}, which may do other things too" in capsys.readouterr().err
        assert main(["stop", "lasting"]) == 0
        assert capsys.readouterr().out == "the service 'lasting' was stopped\n"
        assert service.stopped
        assert not other.stopped
