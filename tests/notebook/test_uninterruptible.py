"""What the stop button finds half done is finished, or undone."""

from __future__ import annotations

import signal
import threading

import pytest

from dsnb.notebook.uninterruptible import run_uninterruptible


def test_results_and_errors_are_those_of_the_call() -> None:
    assert run_uninterruptible(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        run_uninterruptible(lambda: 1 // 0)


def test_what_is_interrupted_is_finished_and_undone_before_the_caller_hears_of_it() -> None:
    log: list[str] = []
    interrupted = threading.Event()

    def act() -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert not interrupted.wait(0.3), "the caller must not go on before"
        log.append("done")
        return "result"

    with pytest.raises(KeyboardInterrupt):
        run_uninterruptible(act, undo=lambda result: log.append(f"undone {result}"))
    interrupted.set()
    assert log[:2] == ["done", "undone result"]


def test_what_fails_after_an_interrupt_is_not_undone() -> None:
    def act() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        raise ValueError

    undone: list[None] = []
    with pytest.raises((KeyboardInterrupt, ValueError)):
        run_uninterruptible(act, undo=undone.append)
    assert undone == []
