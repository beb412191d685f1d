"""Calling user code on a thread beside the one that pulls, so that what is there does not wait for what is not.

Theory of operation. A run of calls (of a function, or of a generator's `next`) appends to a list. While it goes on, the
puller looks at that list after a few milliseconds and takes what it finds; it also cuts the calls short that have not
begun, so that the run ends with the call that is being made, and the next wait needs no polling. How many calls were
made is told by the results; the elements behind them are simply called for in the next run.

The same thread makes all calls of a stage: generators hold things (a database's cursor) that want to stay on one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from dsnb.errors import CancelledError
from dsnb.pipeline.engine.look_ahead import JOIN_SECONDS
from dsnb.system_limits import start_thread

MAX_HOLD_S: Final = 0.003
"""How long results may wait for others of their run."""

Extend = Callable[[list[Any], list[Any]], BaseException | None]


class ThreadedCalls:
    """Runs of calls, one at a time, on a thread that is started with the first.

    Args:
        name: For the thread, behind the puller's.
        call_all: Appends to the first list one result for each element of the second, up to the first error, which it
            returns. The second may get shorter while it goes on.
    """

    def __init__(self, name: str, call_all: Extend) -> None:
        self._name = name
        self._extend = call_all
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._finished: SimpleQueue[bool] = SimpleQueue()
        self._run: list[Any] | None = None
        self._remaining: list[Any] = []
        self._out: list[Any] = []
        self._failure: BaseException | None = None
        self._taken = 0
        self.running = False
        """Whether calls are still being made: what was taken last came before its run was over."""
        self.cut_short = False
        """Whether the newest run was cut short."""
        self._cancelled = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether there is no run that results are still to come from."""
        return self._run is None

    def start_run(self, run: list[Any]) -> None:
        """Make a run of calls; only when idle."""
        if self._thread is None:
            name = f"{threading.current_thread().name}-{self._name}"  # of the task, where there is one
            thread = threading.Thread(target=self._thread_main, name=name, daemon=True)
            start_thread(thread)
            self._thread = thread
        self._run, self._remaining, self._out, self._taken = run, list(run), [], 0
        self.running, self.cut_short, self._failure = True, False, None
        self._jobs.put(self._run_calls)

    def take_results(self, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        """At most `want` results, when there are some, or the run's end.

        Returns:
            Elements, the results for as many of them as were called for without an error, and the error of the element
            behind those, if there was one. Elements beyond are to be called for again.

        Raises:
            CancelledError: when `cancel` was called.
        """
        run = self._run
        if run is None:
            raise RuntimeError("no run was begun")
        if self.running:
            self._wait()
        first, last = self._taken, min(self._taken + want, len(self._out))
        self._taken = last
        results = self._out[first:last]
        if self.running or last < len(self._out):
            return run[first:last], results, None
        self._run = None
        return run[first:], results, self._failure

    def cancel(self) -> None:
        """Wake whoever waits, for good; from any thread."""
        self._cancelled = True
        self._finished.put(False)

    def close(self, then: Callable[[], None] | None = None) -> None:
        """End the thread, after `then` on it; waits shortly, unless user code holds it."""
        self.cancel()
        if self._thread is None:
            if then is not None:
                then()
            return
        self._remaining.clear()
        if then is not None:
            self._jobs.put(then)
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _wait(self) -> None:
        """Until the run is over, or has something and goes on too long."""
        try:
            self._finished.get(timeout=None if self.cut_short else MAX_HOLD_S)
        except Empty:
            # Up to the call that is being made: a few more where it is over at this moment, which does no harm.
            del self._remaining[len(self._out) + 1 :]
            self.cut_short = True
            if len(self._out) > self._taken:
                return
            self._finished.get()
        if self._cancelled:
            raise CancelledError("reading was stopped")
        self.running = False

    def _run_calls(self) -> None:
        try:
            self._failure = self._extend(self._out, self._remaining)
        except BaseException as error:  # noqa: BLE001 - whoever waits must learn of it
            self._failure = error
        self._finished.put(True)

    def _thread_main(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()
