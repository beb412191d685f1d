"""Calls user code on a separate thread, so that finished results need not wait for calls that take long.

Theory of operation. A run of calls (of a function, or of a generator's `next`) appends its results to a list. If the
run takes longer than a few milliseconds, the puller takes the results that are in the list. It also removes the inputs
of calls that have not begun, so that the run ends with the call in progress and the next wait needs no polling. The
number of results shows how many calls were made; the puller passes the remaining elements to the next run.

The same thread makes all calls of a stage: generators may own objects (a database cursor) that must stay on one thread.
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
"""The longest time for which results wait for others of their run."""

Extend = Callable[[list[Any], list[Any]], BaseException | None]


class ThreadedCalls:
    """Runs of calls, one at a time, on a thread that starts with the first run.

    Args:
        name: Suffix of the thread's name, after the puller's name.
        call_all: Appends to the first list one result for each element of the second, up to the first error, which it
            returns. The second list may shrink while it runs.
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
        """Whether calls are still being made: the results taken last came before the end of their run."""
        self._cut_short = False
        """Whether inputs of the newest run were removed."""
        self._cancelled = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether no run has results that are still to be taken."""
        return self._run is None

    def start_run(self, run: list[Any]) -> None:
        """Start a run of calls; only when idle."""
        if self._thread is None:
            name = f"{threading.current_thread().name}-{self._name}"  # includes the task's name on a worker
            thread = threading.Thread(target=self._thread_main, name=name, daemon=True)
            start_thread(thread)
            self._thread = thread
        # A copy of the run: `_wait` shortens it, while `take_results` still needs all elements.
        self._run, self._remaining, self._out, self._taken = run, list(run), [], 0
        self.running, self._cut_short, self._failure = True, False, None
        self._jobs.put(self._run_calls)

    def take_results(self, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        """Wait for results and return at most `want` of them, or the end of the run.

        Returns:
            Elements, the results of those that were called for without an error, and the error of the element after
            those, or None. The elements without a result must be passed to another run.

        Raises:
            CancelledError: `cancel` was called.
        """
        run = self._run
        if run is None:
            raise RuntimeError("no run was begun")
        if self.running:
            self._wait()
        first, last = self._taken, min(self._taken + want, len(self._out))
        self._taken = last
        results = self._out[first:last]
        # Results are only appended, so the slice taken above stays valid while calls are still being made.
        if self.running or last < len(self._out):
            return run[first:last], results, None
        self._run = None
        return run[first:], results, self._failure

    def cancel(self) -> None:
        """Wake all waiting threads, permanently; from any thread."""
        self._cancelled = True
        self._finished.put(False)

    def close(self, then: Callable[[], None] | None = None) -> None:
        """End the thread after it has called `then`; waits at most `JOIN_SECONDS`, because user code may be running."""
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
        """Wait until the run is over, or has results and takes longer than `MAX_HOLD_S`."""
        try:
            self._finished.get(timeout=None if self._cut_short else MAX_HOLD_S)
        except Empty:
            # Keep the input of the call in progress. If that call ends right now, one or a few more calls are made,
            # which is harmless.
            del self._remaining[len(self._out) + 1 :]
            self._cut_short = True
            if len(self._out) > self._taken:
                return
            self._finished.get()  # nothing to take yet: wait for the call in progress, which is now the last one
        if self._cancelled:
            raise CancelledError("reading was stopped")
        self.running = False

    def _run_calls(self) -> None:
        try:
            self._failure = self._extend(self._out, self._remaining)
        except BaseException as error:  # noqa: BLE001 - the waiting thread must receive it
            self._failure = error
        self._finished.put(True)

    def _thread_main(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()
