"""Identical calls at once are computed once, among threads and processes; a dead or failing one makes nobody wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dsnb.cache.results import call_lock as module
from dsnb.cache.results.call_lock import call_lock
from dsnb.cache.results.remembered_function import remembered
from dsnb.cache.results.training import LocalTrainingCache
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

Open = Callable[..., LocalTrainingCache]
KEY = "0123456789abcdef" * 2


class Calls:
    """A function's doing: counts its calls, and holds each until it is let go. No part of a key."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.count = 0
        self.error: Exception | None = None

    def __dsnb_fingerprint__(self) -> str:
        return "calls"

    def __call__(self) -> int:
        self.count += 1
        self.begun.release()
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        return self.count


def at_once(function: Callable[..., Any], arguments: list[Any]) -> tuple[list[threading.Thread], list[Any]]:
    """Call a function in a thread for each argument."""
    found: list[Any] = [None] * len(arguments)

    def call(place: int, argument: Any) -> None:
        try:
            found[place] = function(argument)
        except KeyError as error:
            found[place] = error

    threads = [threading.Thread(target=call, args=(n, argument)) for n, argument in enumerate(arguments)]
    for thread in threads:
        thread.start()
    return threads, found


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def waiting(calls: int) -> Callable[[], bool]:
    """Whether so many calls stand in the wait for another one."""

    def look() -> bool:
        names = [frame.f_code.co_name for frame in _frames() if frame.f_code.co_filename == module.__file__]
        return names.count("_wait") == calls

    return look


def _frames() -> list[Any]:
    import sys

    found = []
    for frame in sys._current_frames().values():
        part: Any = frame
        while part is not None:
            found.append(part)
            part = part.f_back
    return found


def test_identical_calls_of_threads_are_computed_once(open_cache: Open) -> None:
    calls = Calls()

    @remembered(cache=open_cache())
    def train(lr: float) -> tuple[int, float]:
        return calls(), lr

    threads, found = at_once(train, [0.1] * 8)
    wait_for(waiting(7), what="seven calls to wait")
    calls.go_on.set()
    joined(threads)
    assert found == [(1, 0.1)] * 8
    assert calls.count == 1
    assert train.explain(0.1).hit


def test_other_calls_do_not_wait(open_cache: Open) -> None:
    calls = Calls()

    @remembered(cache=open_cache())
    def train(lr: float) -> float:
        calls()
        return lr

    threads, found = at_once(train, [0.1, 0.2, 0.3, 0.4])
    for _ in range(4):
        assert calls.begun.acquire(timeout=60)  # all of them are in the function
    calls.go_on.set()
    joined(threads)
    assert found == [0.1, 0.2, 0.3, 0.4]


def test_a_call_that_fails_lets_the_next_one_compute(open_cache: Open) -> None:
    calls = Calls()
    calls.error = KeyError("no")

    @remembered(cache=open_cache())
    def train(lr: float) -> int:
        return calls()

    threads, found = at_once(train, [0.1] * 3)
    wait_for(waiting(2), what="two calls to wait")
    calls.go_on.set()
    joined(threads)
    assert [type(error) for error in found] == [KeyError] * 3
    assert calls.count == 3


def test_a_function_that_calls_itself_with_the_same_arguments_waits_for_nobody(open_cache: Open) -> None:
    class Depth:
        left = 3

        def __dsnb_fingerprint__(self) -> str:
            return "depth"

    @remembered(cache=open_cache(), ignore=["depth"])
    def down(x: int, depth: Any) -> int:
        depth.left -= 1
        return down(x, depth) + 1 if depth.left else 0

    assert down(1, Depth()) == 2


COMPUTING = """
import os, sys, time
import dsnb
from dsnb.cache import remembered
cache = dsnb.cache.LocalTrainingCache(sys.argv[1])
@remembered(cache=cache)
def train(lr):
    print("COMPUTED", os.getpid(), flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    return lr * 2
print("READY", flush=True)
sys.stdin.readline()
print("RESULT", train(0.5), flush=True)
"""


def start(stack: ExitStack, folder: Path) -> PythonProcess:
    process = PythonProcess(["-c", COMPUTING, str(folder / "cache"), str(folder / "go")], stdin=True)
    stack.enter_context(process)
    process.wait_for_line("READY", timeout=60)
    return process


def call(process: PythonProcess) -> None:
    assert process.popen.stdin is not None
    process.popen.stdin.write(b"\n")
    process.popen.stdin.flush()


@pytest.mark.slow
def test_identical_calls_of_processes_are_computed_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, *others = [start(stack, tmp_path) for _ in range(4)]
        call(first)
        first.wait_for_line("COMPUTED", timeout=60)
        for process in others:
            call(process)
        for process in others:
            wait_for(lambda process=process: sleeps_in_a_loop(process), what="it to wait")
        (tmp_path / "go").touch()
        for process in (first, *others):
            assert process.wait_for_line("RESULT", timeout=60) == "RESULT 1.0"
            assert process.wait_for_exit() == 0, process.describe()
        told = "".join(process.stdout for process in others)
        assert f"COMPUTED {first.pid}" in told, "what it printed is shown again"
        assert told.count("COMPUTED") == told.count("from the cache") == 3


def sleeps_in_a_loop(process: PythonProcess) -> bool:
    """Whether a process has the file of locks open: it waits for the lock then."""
    folder = Path(f"/proc/{process.pid}/fd")
    try:
        return any(os.readlink(link).endswith("-calls") for link in folder.iterdir())
    except FileNotFoundError:
        return False


def test_when_the_process_that_computes_is_killed_the_next_one_computes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = start(stack, tmp_path), start(stack, tmp_path)
        call(first)
        first.wait_for_line("COMPUTED", timeout=60)
        call(second)
        wait_for(lambda: sleeps_in_a_loop(second), what="the second to wait")
        first.kill()
        assert second.wait_for_line("COMPUTED", timeout=60) == f"COMPUTED {second.pid}"
        (tmp_path / "go").touch()
        assert second.wait_for_line("RESULT", timeout=60) == "RESULT 1.0"


FORKING = """
import os, sys
from pathlib import Path
from dsnb.cache.results.call_lock import call_lock
key = "0123456789abcdef" * 2
with call_lock(Path(sys.argv[1]), key, "f()"):
    child = os.fork()
    if not child:
        sys.stdin.readline()  # it lives on after the call
        os._exit(0)
with call_lock(Path(sys.argv[1]), key, "f()") as waited:
    print("AGAIN", waited, flush=True)
sys.stdin.readline()
"""


def test_a_process_that_a_call_forked_keeps_nobody_waiting(tmp_path: Path) -> None:
    with PythonProcess(["-c", FORKING, str(tmp_path / "locks")], stdin=True) as process:
        assert process.wait_for_line("AGAIN", timeout=60) == "AGAIN False"
        with call_lock(tmp_path / "locks", KEY, "f()") as waited:
            assert not waited


def test_a_waiting_call_can_be_interrupted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = start(stack, tmp_path), start(stack, tmp_path)
        call(first)
        first.wait_for_line("COMPUTED", timeout=60)
        call(second)
        wait_for(lambda: sleeps_in_a_loop(second), what="the second to wait")
        second.popen.send_signal(signal.SIGINT)
        assert second.wait_for_exit(timeout=60) != 0
        assert "KeyboardInterrupt" in second.stderr
        (tmp_path / "go").touch()
        assert first.wait_for_line("RESULT", timeout=60) == "RESULT 1.0"


def test_a_long_wait_is_told_once_with_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_WARN_AFTER_S", 0.0)
    with call_lock(tmp_path / "locks", KEY, "train(lr=0.1)") as waited:
        assert not waited
        found: list[bool] = []

        def second() -> None:
            with call_lock(tmp_path / "locks", KEY, "train(lr=0.1)") as waited:
                found.append(waited)

        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: bool(caplog.records), what="a word of it")
    thread.join(60)
    assert found == [True]
    assert [record.getMessage() for record in caplog.records] == [
        "train(lr=0.1) is being computed by another thread or process: waiting for its result"
    ]


def test_where_the_folder_may_only_be_read_each_call_is_computed_for_itself(tmp_path: Path) -> None:
    with call_lock(tmp_path / "no such folder" / "locks", KEY, "f()") as waited:
        assert not waited
