"""An executor for calls whose threads start on demand, are reused, and never keep the interpreter from exiting.

Also `shielded`, which protects an operation against KeyboardInterrupt (a notebook's stop button).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

from dsnb.system_limits import start_thread

P = ParamSpec("P")
T = TypeVar("T")


class OnDemandExecutor(Executor):
    """Runs each piece of work at once, on an idle daemon thread or a new one.

    The standard thread pool has a fixed size, so long-lived streams would keep short calls waiting. It is also joined
    when the interpreter exits, so one blocked stream would keep the process alive.

    Args:
        name: The prefix of the threads' names.
        idle_s: Seconds for which a thread without work is kept.
        shutdown_s: Seconds that `shutdown` waits for all threads together.
    """

    def __init__(self, name: str, *, idle_s: float = 2.0, shutdown_s: float = 2.0) -> None:
        self._name = name
        self._idle_s = idle_s
        self._shutdown_s = shutdown_s
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._made = 0
        self._stopped = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._stopped:
                raise RuntimeError("cannot schedule new work after shutdown")
            if self._idle:
                self._idle -= 1  # reserved for this work, although its thread has yet to wake up
            else:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{self._made + 1}", daemon=True)
                start_thread(thread)
                self._made += 1
                self._threads.add(thread)
            # Under the lock, so that the work is queued before the sentinels of a concurrent shutdown.
            self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end; with `wait`, join them for at most `shutdown_s` seconds in all (they are daemons)."""
        del cancel_futures
        with self._lock:
            self._stopped = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        deadline = time.monotonic() + self._shutdown_s
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def debug_state(self) -> dict[str, int]:
        """The numbers of threads: all of them, and those without work."""
        with self._lock:
            return {"threads": len(self._threads), "idle": self._idle}

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                _do(*item)
                del item
                with self._lock:
                    self._idle += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        while True:
            try:
                return self._work.get(timeout=self._idle_s)
            except Empty:
                with self._lock:
                    # With `_idle` at 0 each waiting thread is reserved for work that is being queued, so it must stay.
                    if self._idle or self._stopped:
                        self._idle -= 1
                        return None


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - raised by future.result()
        future.set_exception(error)
    else:
        future.set_result(result)


def shielded(act: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Run `act` on another thread if this is the main one, so that no KeyboardInterrupt occurs in the middle of it.

    Python raises KeyboardInterrupt between any two instructions of the main thread. Inside a gRPC call, that may leave
    a lock taken which all calls of the process need.

    Args:
        act: The operation. Its errors are raised to the caller.
        undo: Reverts the result of `act`. Called on the other thread if the caller was interrupted meanwhile; the
            caller does not wait for it.

    Raises:
        KeyboardInterrupt: the caller was interrupted; raised at once, even while `act` still runs.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    work = _Shielded(act, undo)
    try:
        threading.Thread(target=work.run, name="dsnb-shielded", daemon=True).start()
    except RuntimeError:  # the interpreter is exiting and starts no more threads
        return act()
    except BaseException:
        work.abandon()
        raise
    return work.wait()


class _Shielded(Generic[T]):
    """Work whose caller may be interrupted.

    Uses plain locks, because an interrupt inside `threading.Condition` can leave it locked for good.
    """

    def __init__(self, act: Callable[[], T], undo: Callable[[T], object]) -> None:
        self._act = act
        self._undo = undo
        self._done: list[T] = []
        self._error: BaseException | None = None
        self._finished = threading.Lock()
        """Held until the work is done and its result belongs to the caller."""
        self._claimed = threading.Lock()
        """Acquired once: by `run` if the caller is to get the result, or by `abandon` if the caller does not want it.
        The other one then undoes the work."""
        self._finished.acquire()

    def run(self) -> None:
        try:
            self._done.append(self._act())
        except BaseException as error:  # noqa: BLE001 - raised in `result`
            self._error = error
        if self._claimed.acquire(blocking=False):
            self._finished.release()
        else:
            self._undo_result()

    def wait(self) -> T:
        try:
            self._finished.acquire()
        except BaseException:
            self.abandon()
            raise
        if self._error is not None:
            raise self._error
        return self._done[0]

    def abandon(self) -> None:
        """Discard the result: now if the work is done, else when it is."""
        if not self._claimed.acquire(blocking=False):
            self._undo_result()

    def _undo_result(self) -> None:
        for result in self._done:
            self._undo(result)
