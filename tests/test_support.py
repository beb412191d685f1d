"""The helpers of the tests, tried on things that really leak, hang and die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, strategies

from dsnb.wire.threads import OnDemandExecutor
from tests.support import leaks
from tests.support.leaks import assert_no_leaks
from tests.support.processes import PythonProcess, python_process
from tests.support.requires import require, require_module
from tests.support.waiting import wait_for


@contextmanager
def leaky_thread() -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="leaky", daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join()


@contextmanager
def leaky_executor() -> Iterator[None]:
    stop = threading.Event()
    executor = OnDemandExecutor("leaky-pool")
    executor.submit(stop.wait)
    yield
    stop.set()
    executor.shutdown()


@contextmanager
def leaky_socket() -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)):
        yield


@contextmanager
def leaky_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield
        process.kill()


@contextmanager
def leaky_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="dsnb-leaky-"):
        yield


@contextmanager
def leaky_memory() -> Iterator[None]:
    path = Path(f"/dev/shm/dsnb-leaky-{os.getpid()}")
    path.touch()
    yield
    path.unlink()


@contextmanager
def leaky_connection_file() -> Iterator[None]:
    path = Path(os.environ["DSNB_RUNTIME_DIR"]) / "leaky.json"
    path.touch()
    yield
    path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "leak,told",
    [
        (leaky_thread, "threads: .*leaky.* which stands at(.|\n)*wait"),
        (leaky_executor, "threads: .*leaky-pool-1.* which stands at(.|\n)*wait"),
        (leaky_socket, r"descriptors: \d+ -> socket:\[\d+\] tcp 127.0.0.1:\d+ <-> 0.0.0.0:0"),
        (leaky_process, r"child processes: \(\d+, .*input"),
        (leaky_folder, "temporary folders: .*dsnb-leaky-"),
        (leaky_memory, "shared memory: /dev/shm/dsnb-leaky-"),
        (leaky_connection_file, "connection files: .*leaky.json"),
    ],
)
def test_a_leak_is_found_and_described(
    leak: Callable[[], AbstractContextManager[None]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "GRACE", 0.1)
    with (
        ExitStack() as later,
        pytest.raises(AssertionError, match=f"^this test left behind:\n(.|\n)*{told}"),
        assert_no_leaks("this test"),
    ):
        later.enter_context(leak())


def test_a_new_thread_of_an_executor_that_was_there_before_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may do the work of one that ended, so it lives as long as there is work."""
    monkeypatch.setattr(leaks, "GRACE", 0.1)
    first, second = threading.Event(), threading.Event()
    executor = OnDemandExecutor("pool")
    executor.submit(first.wait)
    with assert_no_leaks("this test"):
        executor.submit(second.wait)
        first.set()
    second.set()
    executor.shutdown()


def test_what_ends_by_itself_soon_is_no_leak() -> None:
    with assert_no_leaks("this test"):
        threading.Timer(0.1, lambda: None).start()


@contextmanager
def leaky_slabs() -> Iterator[None]:
    memory = os.memfd_create("dsnb-slabs")
    yield
    os.close(memory)


@contextmanager
def leaky_engine() -> Iterator[None]:
    """What one event engine of gRPC's has open, which is spared while it is not more."""
    notices = [os.eventfd(0) for _ in range(2)]
    yield
    for notice in notices:
        os.close(notice)


@pytest.mark.parametrize("leak", [leaky_thread, leaky_slabs, leaky_engine])
def test_what_a_failed_test_still_holds_is_told_neither_now_nor_later(
    leak: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "GRACE", 0.1)
    with ExitStack() as later, assert_no_leaks("a fixture"):
        with assert_no_leaks("this test", ignored_if=lambda: True, later=["slabs"]):
            later.enter_context(leak())
        later.enter_context(leaky_engine())  # of the tests that follow: it may take its time


@given(strategies.integers())
def test_hypothesis_goes_with_the_leak_check(number: int) -> None:
    assert isinstance(number, int)


def test_wait_for_returns_what_was_waited_for() -> None:
    looks = iter([0, None, "here"])
    assert wait_for(lambda: next(looks), what="the third look") == "here"


def test_wait_for_says_what_did_not_come() -> None:
    with pytest.raises(AssertionError, match=r"waited 0.05 s in vain for two workers; the last look gave 0"):
        wait_for(lambda: 0, what="two workers", timeout=0.05)


def test_a_process_is_waited_for_and_killed() -> None:
    with python_process("print('READY', 42); print('more'); input()") as process:
        assert process.wait_for_line("READY") == "READY 42"
        assert process.wait_for_line("more") == "more"
    assert process.popen.returncode == -signal.SIGKILL


def test_a_process_that_dies_before_it_is_ready_tells_why() -> None:
    with pytest.raises(AssertionError, match="no line 'READY' before the end") as caught, python_process("1 / 0"):
        pass
    assert "ZeroDivisionError" in caught.value.__notes__[0]


def test_a_process_gets_signals() -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('READY'); signal.pause()"
    with PythonProcess(["-c", code]) as process:
        process.wait_for_line("READY")
        process.terminate()
        assert process.wait_for_exit() == 7


def test_what_is_missing_skips_the_test_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSNB_REQUIRE_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="the program no-such-program is not installed"):
        require("no-such-program")
    with pytest.raises(pytest.skip.Exception, match="the Python module no_such_module is not installed"):
        require_module("no_such_module")


def test_what_is_missing_fails_the_test_where_nothing_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSNB_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed, and DSNB_REQUIRE_ALL=1"):
        require("no-such-program")
