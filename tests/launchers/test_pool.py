"""`LaunchedPool`: deaths and slow launches neither hold up the dispatcher nor leave workers that do not exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import dsnb
from dsnb.dispatcher.server import DispatchServer
from dsnb.errors import FailedPreconditionError
from dsnb.launchers.dask import DaskPool
from dsnb.launchers.launcher import LaunchedWorker, Launcher, OnExit
from dsnb.launchers.pool import LaunchedPool
from dsnb.worker.config import WorkerConfig
from dsnb.worker.server import WorkerServer
from tests.support.waiting import wait_for


class EngineWorker:
    """A worker of `Engine`: it is ready at once, and ends when the test says so."""

    placed = idle = True
    stderr: tuple[str, ...] = ()

    def __init__(self, number: int, on_exit: OnExit) -> None:
        self.uid, self.name = f"uid{number}", f"w{number}"
        self.stopped = False
        self.when_waited_for: Callable[[], None] = lambda: None
        self.when_stopped: Callable[[], None] = lambda: None
        self._on_exit = on_exit

    def die(self) -> threading.Thread:
        """End without a request; as with all launchers, a thread of its own reports that."""
        thread = threading.Thread(target=self._on_exit, args=(self,), name="supervising", daemon=True)
        thread.start()
        return thread

    def wait_ready(self, timeout: float) -> None:
        self.when_waited_for()

    def drain(self) -> None:
        pass

    def ask_to_stop(self) -> None:
        self.stopped = True

    def stop(self, timeout: float) -> None:
        self.stopped = True
        self.when_stopped()

    def exit_reason(self) -> str:
        return "its machine was switched off"


class Engine(Launcher):
    """A launcher whose workers exist only in the test."""

    def __init__(self) -> None:
        self.workers: list[EngineWorker] = []
        self.before_launch: Callable[[], None] = lambda: None
        self.after_launch: Callable[[], None] = lambda: None

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        self.before_launch()
        self.workers.append(EngineWorker(len(self.workers), on_exit))
        self.after_launch()
        return self.workers[-1]


@pytest.fixture
def dispatcher() -> Iterator[DispatchServer]:
    with DispatchServer() as dispatcher:
        yield dispatcher


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def pool(engine: Engine, dispatcher: DispatchServer) -> Iterator[LaunchedPool]:
    pool = LaunchedPool(engine, dispatcher, WorkerConfig(dispatcher_address=dispatcher.target))
    dispatcher.set_worker_pool(pool)
    yield pool
    pool.stop()


class Gate:
    """Holds up a call until the test opens it; then the call fails if there is an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._error = error

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(60.0)
        if self._error is not None:
            raise self._error

    def open(self) -> None:
        self._open.set()


def texts(dispatcher: DispatchServer) -> list[str]:
    return [event.text for event in dispatcher.reported_status().events]


def ends_while_a_replacement_starts(
    engine: Engine, action: Callable[[], object], error: Exception | None = None
) -> bool:
    """Whether an action ends while the only worker's replacement is held up; at last that starts, or has the error."""
    engine.before_launch = slow = Gate(error)
    death = engine.workers[0].die()
    assert slow.reached.wait(30.0)
    engine.before_launch = lambda: None
    acting = threading.Thread(target=action, daemon=True)
    acting.start()
    acting.join(10.0)
    ended = not acting.is_alive()
    slow.open()
    for thread in (death, acting):
        thread.join(30.0)
        assert not thread.is_alive()
    return ended


def test_a_status_does_not_wait_for_a_slow_replacement_that_then_fails(
    pool: LaunchedPool, engine: Engine, dispatcher: DispatchServer
) -> None:
    pool.scale(1)
    gone = FailedPreconditionError("the engine is gone")
    with WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target)):  # a status asks the pool for its output
        assert ends_while_a_replacement_starts(engine, dispatcher.reported_status, gone)
    assert "worker w0 is not replaced: the engine is gone" in texts(dispatcher)
    assert pool.size == 0


def test_a_replacement_that_comes_after_the_stop_is_stopped(pool: LaunchedPool, engine: Engine) -> None:
    pool.scale(1)
    assert ends_while_a_replacement_starts(engine, pool.stop)
    assert pool.size == 0
    assert all(worker.stopped for worker in engine.workers)


def test_scaling_while_a_replacement_starts_counts_it(pool: LaunchedPool, engine: Engine) -> None:
    pool.scale(1)
    assert ends_while_a_replacement_starts(engine, lambda: pool.scale(2))
    assert len(engine.workers) == 3
    assert pool.size == 2
    assert not any(worker.stopped for worker in engine.workers[1:])


def test_a_pool_that_was_stopped_starts_no_workers(pool: LaunchedPool, engine: Engine) -> None:
    pool.stop()
    assert pool.scale(2) == ""
    assert engine.workers == []


def test_a_dask_pool_that_was_stopped_leaves_the_cluster_alone(dispatcher: DispatchServer) -> None:
    pool = DaskPool(None, None, dispatcher, WorkerConfig(dispatcher_address=dispatcher.target))
    pool.stop()
    assert pool.scale(2) == ""  # without a client: an attempt to use it would fail


def test_autoscaling_ends_before_the_workers_are_stopped(engine: Engine) -> None:
    service = dsnb.start(workers=1, on=engine)
    service.autoscale(1, 1)
    engine.workers[0].when_stopped = slow = Gate()
    stopping = threading.Thread(target=service.stop, daemon=True)
    stopping.start()
    assert slow.reached.wait(30.0)
    try:
        wait_for(lambda: "dsnb-autoscaling" not in {t.name for t in threading.enumerate()}, what="its end")
    finally:
        slow.open()
        stopping.join(30.0)
    assert not stopping.is_alive()


def test_a_worker_that_dies_while_others_still_start_is_replaced(
    pool: LaunchedPool, engine: Engine, dispatcher: DispatchServer
) -> None:
    def the_first_dies() -> None:
        engine.workers[0].die().join(30.0)

    def launched() -> None:
        if len(engine.workers) == 2:
            engine.workers[1].when_waited_for = the_first_dies

    engine.after_launch = launched
    pool.scale(2)
    assert len(engine.workers) == 3
    assert pool.size == 2
    pool.stop()
    assert [worker.stopped for worker in engine.workers] == [False, True, True]
    assert "worker w0 is being replaced (1 of 5)" in texts(dispatcher)


def test_a_replacement_that_dies_at_once_is_replaced(pool: LaunchedPool, engine: Engine) -> None:
    def the_second_dies() -> None:
        if len(engine.workers) == 2:
            engine.workers[1].die().join(30.0)

    pool.scale(1)
    engine.after_launch = the_second_dies
    engine.workers[0].die().join(30.0)
    pool.stop()
    assert [worker.stopped for worker in engine.workers] == [False, False, True]


def test_a_worker_whose_replacement_fails_with_another_error_leaves_the_pool(
    pool: LaunchedPool, engine: Engine, dispatcher: DispatchServer
) -> None:
    pool.scale(1)
    engine.before_launch = failing = Gate(OSError("the engine answers nonsense"))
    failing.open()
    engine.workers[0].die().join(30.0)
    assert "worker w0 is not replaced: OSError: the engine answers nonsense" in texts(dispatcher)
    assert pool.size == 0
    engine.before_launch = lambda: None
    pool.scale(1)
    assert pool.size == 1
