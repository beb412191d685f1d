from __future__ import annotations

import os
import signal
import threading

import pytest

from dsnb.cli.signals import stop_event, wait_until_stopped
from dsnb.errors import UnavailableError
from tests.support.processes import PythonProcess


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_word_to_stop(number: int) -> None:
    ended, handler = threading.Event(), signal.getsignal(number)
    with stop_event() as stop:
        threading.Timer(0.05, os.kill, [os.getpid(), number]).start()
        wait_until_stopped(stop, ended.wait)
        ended.set()
    assert signal.getsignal(number) is handler


def test_a_server_that_ends_by_itself_ends_the_command() -> None:
    with stop_event() as stop:
        wait_until_stopped(stop, lambda: None)
    assert stop.is_set()


def test_why_a_server_had_to_end_is_raised() -> None:
    def refused() -> None:
        raise UnavailableError("the dispatcher is gone")

    with stop_event() as stop, pytest.raises(UnavailableError, match="the dispatcher is gone"):
        wait_until_stopped(stop, refused)


def test_a_second_signal_ends_a_process_that_is_slow_to_stop() -> None:
    code = """
import threading
from dsnb.cli.signals import stop_event, wait_until_stopped
forever = threading.Event()
with stop_event() as stop:
    print("READY")
    wait_until_stopped(stop, forever.wait)
    print("STOPPING")
    forever.wait()
"""
    with PythonProcess(["-c", code]) as process:
        process.wait_for_line("READY")
        process.terminate()
        process.wait_for_line("STOPPING")
        process.terminate()
        assert process.wait_for_exit() == -signal.SIGTERM
