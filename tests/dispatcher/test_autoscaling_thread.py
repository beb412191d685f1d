"""The thread of autoscaling: it ends when it is switched off, whatever the pool does, and says a failure once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dsnb.dispatcher import autoscaling
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.service import Dispatcher
from dsnb.errors import DsnbError, UnavailableError
from tests.support.waiting import wait_for


class Machines:
    """A pool that has no workers; the test decides whether its calls return, and what they raise."""

    size = 0
    launcher_name = "a test"

    def __init__(self) -> None:
        self.scaling = threading.Event()
        self.may_return = threading.Event()
        self.failure: DsnbError | None = None
        self.scale_failure: DsnbError | None = None
        self.calls = 0

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        return ()

    def capacity(self) -> int | None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        return None

    def scale(self, count: int) -> str:
        self.scaling.set()
        self.may_return.wait(30.0)
        if self.scale_failure is not None:
            raise self.scale_failure
        return ""

    def release_worker(self, uid: str, *, at_once: bool) -> None:
        pass


@pytest.fixture
def machines() -> Iterator[Machines]:
    machines = Machines()
    yield machines
    machines.may_return.set()


@pytest.fixture
def dispatcher(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    monkeypatch.setattr(autoscaling, "INTERVAL_S", 0.02)
    dispatcher = Dispatcher(DispatcherConfig())
    dispatcher.worker_pool = machines
    yield dispatcher
    machines.may_return.set()
    dispatcher.close()


def autoscalers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dsnb-autoscaling"]


def test_two_calls_at_once_leave_no_autoscaler_that_cannot_be_stopped(
    dispatcher: Dispatcher, machines: Machines
) -> None:
    dispatcher.autoscale(1, 1)
    assert machines.scaling.wait(10.0)
    calls = [threading.Thread(target=dispatcher.autoscale, args=(1, most), daemon=True) for most in (2, 3)]
    for call in calls:
        call.start()
    for call in calls:
        call.join(20.0)
    machines.may_return.set()
    dispatcher.autoscale(0, 0)
    wait_for(lambda: not autoscalers(), what="the autoscalers to end")


def test_switching_it_off_does_not_wait_for_a_slow_start_of_workers(dispatcher: Dispatcher, machines: Machines) -> None:
    dispatcher.autoscale(1, 1)
    assert machines.scaling.wait(10.0)
    began = time.monotonic()
    dispatcher.autoscale(0, 0)
    assert time.monotonic() - began < 3.0  # a client waits for 5 seconds


def failures(dispatcher: Dispatcher) -> list[str]:
    return [event.text for event in dispatcher.events if event.level == "warning"]


def look_again(machines: Machines) -> None:
    """Wait until autoscaling has looked several times more."""
    before = machines.calls
    wait_for(lambda: machines.calls > before + 5, what="more decisions")


def test_a_failure_that_lasts_is_announced_once_and_again_after_a_success(
    dispatcher: Dispatcher, machines: Machines
) -> None:
    machines.may_return.set()
    machines.failure = UnavailableError("the engine is gone")
    dispatcher.autoscale(1, 1)
    look_again(machines)
    assert failures(dispatcher) == ["autoscaling failed: the engine is gone"]
    machines.failure = UnavailableError("the engine starts")
    look_again(machines)
    assert failures(dispatcher)[1:] == ["autoscaling failed: the engine starts"]
    machines.failure = None
    look_again(machines)
    machines.failure = UnavailableError("the engine starts")
    look_again(machines)
    assert failures(dispatcher)[2:] == ["autoscaling failed: the engine starts"]


def test_a_decision_that_fails_again_and_again_is_announced_once(dispatcher: Dispatcher, machines: Machines) -> None:
    machines.may_return.set()
    machines.scale_failure = UnavailableError("the queue is closed")
    dispatcher.autoscale(1, 1)
    look_again(machines)
    decided, failed = [event.text for event in dispatcher.events]
    assert "from 0 to 1 worker" in decided
    assert failed == "autoscaling failed: the queue is closed"
