"""Calls a user's function on several threads.

Theory of operation. Each thread pulls the next run from the input (one thread at a time: a stage has one puller),
assigns it the next number, calls the function for its elements, and stores the results, with errors in their places,
under that number. The reader takes finished runs in the order of their numbers or in the order in which they finish.
Runs are long enough to pay for passing them between threads (`TARGET_RUN_WORK_NS` of work), and at most two runs for
each thread are in flight, so that a slow function is called for few elements that may never be read.

All waits use one condition and end with `cancel`.
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final

from dsnb.errors import CancelledError
from dsnb.pipeline.engine.calls import UserFunction, call_in_segments
from dsnb.pipeline.engine.look_ahead import JOIN_SECONDS, stage_thread_name
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.system_limits import start_thread

TARGET_RUN_WORK_NS: Final = 300_000
"""The work in a run that pays for passing it to another thread, which costs some 20 microseconds."""
ADD_THREAD_AFTER_S: Final = 0.02
"""How long a reader waits for a running call before another thread starts to call, where that is allowed."""
_RUNS_PER_THREAD: Final = 2

Segments = list[list[Any] | Exception]


class ParallelCalls:
    """The results of a function that several threads call for a stage's elements.

    Args:
        stage: The input; `close_stage` closes it.
        function: The function to call.
        threads: The number of threads at first.
        ordered: Whether results come in the order of the inputs.
    """

    def __init__(self, stage: Stage, function: UserFunction, threads: int, *, ordered: bool) -> None:
        self._stage = stage
        self._function = function
        self._count = threads
        self._ordered = ordered
        self._changed = threading.Condition()
        self._run_length = AdaptiveRunLength(target_ns=TARGET_RUN_WORK_NS)
        self._finished: dict[int, Segments] = {}
        self._ready: deque[list[Any] | Exception] = deque()
        self._next_in = 0
        self._next_out = 0
        self._in_flight = 0
        self._pulling = False
        self._exhausted = False
        self._cancelled = False
        self._abandoned = False
        self._threads: list[threading.Thread] = []
        self._running = 0
        self.elements = 0
        self.work_ns = 0
        self.cpu_ns = 0
        self.wait_ns = 0

    def buffered_and_capacity(self) -> tuple[int, int]:
        """Return how many results are ready, and about how many elements may be in flight; the second is never less."""
        with self._changed:
            waiting = [segment for run in self._finished.values() for segment in run]
            ready = sum(len(s) if isinstance(s, list) else 1 for s in (*waiting, *self._ready))
            # Runs in flight may be longer than the next ones: they were pulled before the function became slow.
            return ready, max(ready, self._count * _RUNS_PER_THREAD * self._run_length.want)

    @property
    def threads(self) -> int:
        """The current number of threads."""
        return self._count

    def grow(self, threads: int) -> None:
        """Start threads until there are `threads`; only after the first `take`."""
        with self._changed:
            while self._count < threads and not self._cancelled:
                self._add_thread(self._count)
                self._count += 1
            self._changed.notify_all()

    def take(self, want: int, max_threads: int = 0) -> Run:
        """Return at least one and at most `want` results, or an empty run at the end; waits for them.

        Args:
            want: The maximum number of results.
            max_threads: While the reader waits long, one thread after another is added up to this number.

        Raises:
            Exception: the error of one element, in its place.
            CancelledError: `cancel` was called.
        """
        self._start()
        with self._changed:
            if not self._ready:
                self._collect(max_threads)
            if self._cancelled:
                raise CancelledError("reading was stopped")
            return self._next(want) if self._ready else []

    def stop_pulling(self) -> None:
        """Pull nothing more from the input; results in flight can still be taken, then the end comes."""
        with self._changed:
            self._exhausted = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """End all waits permanently; from any thread."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        self._stage.cancel()

    def close_stage(self) -> None:
        """Stop the threads and close the input, now or when user code returns."""
        self.cancel()
        deadline = perf_counter_ns() + int(JOIN_SECONDS * 1e9)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, (deadline - perf_counter_ns()) / 1e9))
        with self._changed:
            # A thread may still be in user code: then the last thread to end closes the input, which must not be closed
            # during a pull.
            self._abandoned = self._running > 0
        if not self._abandoned:
            self._stage.close()

    def _start(self) -> None:
        if self._threads or self._cancelled:
            return
        with self._changed:
            for number in range(self._count):
                self._add_thread(number)

    def _add_thread(self, number: int) -> None:
        name = stage_thread_name(f"{self._function.operation}-{number}")
        thread = threading.Thread(target=self._thread_main, name=name, daemon=True)
        start_thread(thread)  # inside the lock: `close_stage` cannot join a thread that has not started
        self._threads.append(thread)
        self._running += 1

    def _collect(self, max_threads: int) -> None:
        """Wait for the next finished run, or the end, and make its segments ready."""
        if not self._has_output():
            began = perf_counter_ns()
            while not self._changed.wait_for(
                self._has_output, ADD_THREAD_AFTER_S if self._count < max_threads else None
            ):
                self.grow(self._count + 1)
            self.wait_ns += perf_counter_ns() - began
        while self._finished and not self._ready and not self._cancelled:
            number = self._next_out if self._ordered else next(iter(self._finished))
            if number not in self._finished:
                return
            self._ready.extend(self._finished.pop(number))
            self._next_out += 1
            self._in_flight -= 1
            self._changed.notify_all()

    def _has_output(self) -> bool:
        there = self._next_out in self._finished if self._ordered else bool(self._finished)
        return there or self._cancelled or (self._exhausted and self._in_flight == 0 and not self._pulling)

    def _next(self, want: int) -> Run:
        item = self._ready.popleft()
        if isinstance(item, Exception):
            raise item
        if len(item) > want:
            self._ready.appendleft(item[want:])
            item = item[:want]
        return item

    def _thread_main(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                self._run_job(*job)
        finally:
            with self._changed:
                self._running -= 1
                last = self._abandoned and self._running == 0
                self._changed.notify_all()
            if last:
                self._stage.close()

    def _next_job(self) -> tuple[int, list[Any] | Exception] | None:
        """Return the next run, or the input's error, with its number; None when nothing is left to do."""
        with self._changed:
            self._changed.wait_for(self._may_pull)
            if self._cancelled or self._exhausted:
                return None
            self._pulling = True
        pulled = self._pull()
        with self._changed:
            self._pulling = False
            self._changed.notify_all()
            if pulled == []:
                self._exhausted = True
                return None
            # Numbers are assigned in the order of pulls, because the next pull only begins after this block.
            self._next_in += 1
            self._in_flight += 1
            return self._next_in - 1, pulled

    def _may_pull(self) -> bool:
        has_capacity = self._in_flight < self._count * _RUNS_PER_THREAD
        return self._cancelled or self._exhausted or (has_capacity and not self._pulling)

    def _pull(self) -> list[Any] | Exception:
        try:
            return as_list(self._stage.pull(self._run_length.want))
        except Exception as failure:  # noqa: BLE001 - raised again where the element is read
            return failure
        except BaseException as failure:  # noqa: BLE001 - if the thread ended here, the reader would wait forever
            return self._function.annotate_error(failure)  # type: ignore[return-value]

    def _run_job(self, number: int, pulled: list[Any] | Exception) -> None:
        began, cpu_before = perf_counter_ns(), thread_time_ns()
        results: Segments = [pulled] if isinstance(pulled, Exception) else call_in_segments(self._function, pulled)
        elapsed, cpu = perf_counter_ns() - began, thread_time_ns() - cpu_before
        with self._changed:
            self._finished[number] = results
            if isinstance(pulled, list):
                self._run_length.note(elapsed)
                self.work_ns += elapsed
                self.cpu_ns += cpu
                self.elements += len(pulled)
            self._changed.notify_all()
