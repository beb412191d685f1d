from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dsnb.processes import host_cpus, idle_ns, start_time, usable_cpus
from tests.support.waiting import wait_for


def test_a_process_has_one_start_time_while_it_lives_and_none_when_it_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        began = start_time(child.pid)
        assert began == start_time(child.pid) != ""
        assert child.stdin is not None
        child.stdin.close()
        wait_for(lambda: start_time(child.pid) == "", what="a zombie to count as gone", timeout=30.0)
    assert start_time(child.pid) == ""
    assert start_time(os.getpid()) != ""


def test_a_process_may_have_any_bytes_for_a_name() -> None:
    """A name that is no text must not keep services from being found."""
    code = "open('/proc/self/comm', 'wb').write(b'\\xff) \\xfe('); print('READY', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"READY\n"
        assert start_time(child.pid).isdigit()
        assert child.stdin is not None
        child.stdin.close()


def test_a_process_has_the_processors_that_it_may_run_on_and_they_are_idle_at_times() -> None:
    may = os.sched_getaffinity(0)
    assert 1 <= usable_cpus() <= len(may)
    all_of_them = idle_ns()
    assert all_of_them > 0
    os.sched_setaffinity(0, {min(may)})
    try:
        assert usable_cpus() == 1
        assert len(may) == 1 or idle_ns() < all_of_them
    finally:
        os.sched_setaffinity(0, may)


def test_the_quota_of_a_container_limits_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cpus() <= host_cpus() <= (os.cpu_count() or 1)
    monkeypatch.setattr("dsnb.processes._quota", lambda: 0.5)
    assert (host_cpus(), usable_cpus()) == (1, 1)
