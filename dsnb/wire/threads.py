"""Threads for calls: made on demand, used again, never in the way of an interpreter that wants to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from dsnb.limits import start

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_S = 2.0
_SHUTDOWN_S = 2.0


class OnDemandExecutor(Executor):
    """As many daemon threads as there is work at once.

    The standard thread pool has a size, so streams that live long keep short calls waiting; and it is joined when the
    interpreter ends, so one stream that waits keeps the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
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
                self._idle -= 1  # taken by this work, though its thread has yet to wake up
            else:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{self._made + 1}", daemon=True)
                start(thread)
                self._made += 1
                self._threads.add(thread)
            # Under the lock, so that it stands in front of the word to end that a shutdown puts behind it.
            self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end; with `wait`, for at most two seconds (what blocks longer is a daemon)."""
        del cancel_futures
        with self._lock:
            self._stopped = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        deadline = time.monotonic() + _SHUTDOWN_S
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

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
                return self._work.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle or self._stopped:  # nobody counts on this thread
                        self._idle -= 1
                        return None


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - handed to whoever holds the future
        future.set_exception(error)
    else:
        future.set_result(result)
