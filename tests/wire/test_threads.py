"""Threads for calls come on demand, are used again, and go away; nothing waits behind a stream."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from dsnb.wire import threads
from dsnb.wire.threads import OnDemandExecutor, shielded
from tests.support.waiting import wait_for


@pytest.fixture(params=[{}])
def executor(request: pytest.FixtureRequest) -> Iterator[OnDemandExecutor]:
    made = OnDemandExecutor("on-demand-test", **request.param)
    yield made
    made.shutdown()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("on-demand-test")]


def is_idle(executor: OnDemandExecutor, count: int) -> None:
    wait_for(lambda: executor.debug_state()["idle"] == count, what=f"{count} idle threads")


def test_results_and_errors_come_through_the_future(executor: OnDemandExecutor) -> None:
    assert executor.submit(divmod, 7, 2).result(10) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 7, 0).result(10)
    with pytest.raises(SystemExit):
        executor.submit(exit, 3).result(10)
    assert executor.submit(lambda: "goes on").result(10) == "goes on"


def test_a_short_call_never_waits_behind_blocked_streams(executor: OnDemandExecutor, gate: threading.Event) -> None:
    streams = [executor.submit(gate.wait, 60) for _ in range(100)]
    for _ in range(20):
        assert executor.submit(lambda: 1).result(10) == 1
    assert not any(stream.done() for stream in streams)


def test_work_given_at_once_from_many_threads_all_runs_at_once(
    executor: OnDemandExecutor, gate: threading.Event
) -> None:
    """Each meets all others: one that waited for a thread would hold all up."""
    meeting = threading.Barrier(32)
    futures: list[Future[int]] = []
    givers = [
        threading.Thread(target=lambda: [futures.append(executor.submit(meeting.wait, 30)) for _ in range(8)])
        for _ in range(4)
    ]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join()
    assert sorted(future.result(30) for future in futures) == list(range(32))


def test_threads_are_used_again(executor: OnDemandExecutor) -> None:
    used = set()
    for _ in range(50):
        used.add(executor.submit(threading.get_ident).result(10))
        is_idle(executor, len(alive()))
    assert len(used) == 1


@pytest.mark.parametrize("executor", [{"idle_s": 0.05}], indirect=True)
def test_idle_threads_go_away_and_new_ones_come(executor: OnDemandExecutor) -> None:
    meeting = threading.Barrier(5)
    for future in [executor.submit(meeting.wait, 30) for _ in range(5)]:
        future.result(30)
    wait_for(lambda: not alive(), what="idle threads to go away")
    assert executor.debug_state() == {"threads": 0, "idle": 0}
    assert executor.submit(lambda: "new").result(10) == "new"


@pytest.mark.parametrize("executor", [{"idle_s": 0.05}], indirect=True)
def test_work_that_is_cancelled_before_it_runs_takes_no_thread_along(
    executor: OnDemandExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread counts as idle again, and goes away as such."""
    is_cancelled = threading.Event()
    take = Future.set_running_or_notify_cancel

    def wait_and_take(future: Future[object]) -> bool:
        is_cancelled.wait(30)
        return take(future)

    monkeypatch.setattr(Future, "set_running_or_notify_cancel", wait_and_take)
    assert executor.submit(pytest.fail, "cancelled work ran").cancel()
    is_cancelled.set()
    wait_for(lambda: not alive(), what="the thread of the cancelled work to go away")
    assert executor.debug_state() == {"threads": 0, "idle": 0}


def test_after_a_shutdown_nothing_is_taken_and_all_that_was_is_done(
    executor: OnDemandExecutor, gate: threading.Event
) -> None:
    futures = [executor.submit(time.monotonic_ns) for _ in range(200)]
    executor.shutdown()
    for future in futures:
        assert future.result(10) > 0
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(gate.wait)
    wait_for(lambda: not alive(), what="all threads to end")


class _SlowToTakeWork:
    """A queue that is slow to take work, unless somebody gets in between."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._ending = threading.Event()
        self.get = self._queue.get

    def put(self, item: Any) -> None:
        if item is None:
            self._ending.set()
        else:
            self._ending.wait(0.2)
        self._queue.put(item)


def test_what_was_taken_while_a_shutdown_came_is_done_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that came to stand behind the last word to end would never be done, and its future never tell."""
    monkeypatch.setattr(threads, "SimpleQueue", _SlowToTakeWork)
    executor = OnDemandExecutor("on-demand-test")
    futures: list[Future[int]] = []
    giver = threading.Thread(target=lambda: futures.append(executor.submit(lambda: 1)))
    giver.start()
    wait_for(alive, what="a thread for the work")
    executor.shutdown()
    giver.join(10)
    assert futures[0].result(10) == 1


@pytest.mark.parametrize("executor", [{"shutdown_s": 0.2}], indirect=True)
def test_a_shutdown_waits_for_all_that_block_together_not_for_one_after_the_other(
    executor: OnDemandExecutor, gate: threading.Event
) -> None:
    for _ in range(50):
        executor.submit(gate.wait, 60)
    began = time.monotonic()
    executor.shutdown()
    assert 0.2 <= time.monotonic() - began < 5.0
    assert all(thread.daemon for thread in alive()), "so they do not keep the interpreter"


def test_a_thread_may_shut_down_its_own_executor(executor: OnDemandExecutor) -> None:
    executor.submit(executor.shutdown).result(10)
    wait_for(lambda: not alive(), what="the thread to end")


# ---- shielded


def test_what_is_shielded_gives_its_result_or_its_error() -> None:
    undone: list[int] = []
    assert shielded(lambda: 3, undone.append) == 3
    with pytest.raises(ZeroDivisionError):
        shielded(lambda: 1 // 0, undone.append)
    assert undone == []


def test_only_the_main_thread_needs_another_one() -> None:
    names: list[str] = []

    def note() -> None:
        names.append(threading.current_thread().name)

    shielded(note, lambda _: None)
    other = threading.Thread(target=lambda: shielded(note, lambda _: None), name="another")
    other.start()
    other.join()
    assert names == ["dsnb-shielded", "another"]


def test_an_interrupt_comes_at_once_and_the_late_result_is_undone(gate: threading.Event) -> None:
    undone: list[str] = []

    def slow() -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        gate.wait(10.0)
        return "late"

    with pytest.raises(KeyboardInterrupt):
        shielded(slow, undone.append)
    assert undone == []
    gate.set()
    wait_for(lambda: undone == ["late"], what="the late result to be undone")
