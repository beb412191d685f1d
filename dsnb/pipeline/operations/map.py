"""`Dataset.map`: a user's function for each element, on the reading thread or on several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns, thread_time_ns
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.elements.allocation import Allocator
from dsnb.pipeline.engine.autotune import SerialTrial
from dsnb.pipeline.engine.calls import ResultsStage, UserFunction
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.parallel import ParallelCalls
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, Stage, StageReport
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.validate import AUTOTUNE
from dsnb.processes import usable_cpus


@dataclass(frozen=True, kw_only=True, eq=False)
class Map(Operation):
    """`function` for each element; `calls` threads at once, None for the reading thread itself.

    `deterministic` None is decided by the options of the whole pipeline.
    """

    function: Callable[..., Any]
    calls: int | None = None
    deterministic: bool | None = None

    @property
    def name(self) -> str:
        """With the function's name."""
        return f"map({function_name(self.function)})"

    @property
    def cardinality(self) -> int:
        """The input's."""
        return self.inputs[0].cardinality

    @property
    def elementwise(self) -> bool:
        """It is."""
        return True

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """Unless several threads hand on what is ready."""
        ordered = deterministic if self.deterministic is None else self.deterministic
        return ordered or self.calls in (None, 1)

    def __dsnb_result__(self) -> Operation:
        return self if self.calls is None else replace(self, calls=None)

    def build(self, context: BuildContext) -> Stage:
        """A serial or a parallel stage."""
        (source,) = self.build_inputs(context)
        if self.calls in (None, 1):
            function = UserFunction(self.function, self.name, keep_results=True, allocate=context.allocate)
            return MapStage(self.name, source, function, low_latency=context.low_latency)
        ordered = context.deterministic if self.deterministic is None else self.deterministic
        return ParallelMapStage(self, source, ordered=ordered, allocate=context.allocate)


class MapStage(ResultsStage):
    """Calls the function on the thread that pulls."""

    def skip(self, count: int) -> int:
        """Without calling the function."""
        return self.inputs[0].skip(count) if self.idle else super().skip(count)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """The same of the input."""
        return ((self.inputs[0], count),)

    def resume_point(self, count: int) -> ResumePoint:
        """The input's."""
        return self.resume_point_of_inputs(count)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """The input's elements are this one's."""
        return self.inputs[0].track_consumption(buffered=buffered)


class ParallelMapStage(Stage):
    """Calls the function on threads; with `AUTOTUNE` only where that was measured to pay.

    The trial is made on this thread. Where order is free, it is made on a thread beside, and others are added while the
    reader waits long: a slow element holds back none that could be ready.
    """

    def __init__(self, operation: Map, source: Stage, *, ordered: bool, allocate: Allocator | None) -> None:
        super().__init__(operation.name, source)
        self._function = UserFunction(operation.function, operation.name, keep_results=True, allocate=allocate)
        self._ordered = ordered
        self._serial = MapStage(operation.name, source, self._function)
        self._trial = SerialTrial()
        # None as long as the trial has not told.
        self._threads = None if operation.calls == AUTOTUNE else operation.calls
        self._decided = self._threads is not None
        self._pool: ParallelCalls | None = None
        self._stopping_pool = False
        self._busy_ns = 0

    def skip(self, count: int) -> int:
        """Without calling the function, as long as no thread does."""
        return self._serial.skip(count) if self._pool is None else super().skip(count)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """The same of the input."""
        return ((self.inputs[0], count),)

    def resume_point(self, count: int) -> ResumePoint:
        """The input's."""
        return self.resume_point_of_inputs(count)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """The input's elements are this one's; some of them wait here."""
        return self.inputs[0].track_consumption(buffered=True)

    def produce(self, want: int) -> Run:
        """The next results."""
        threads = self._initial_threads()
        if self._pool is None and threads and self._serial.idle:
            self._pool = ParallelCalls(self.inputs[0], self._function, threads, ordered=self._ordered)
        if self._pool is None:
            return self._call_serially(want)
        run = self._pool.take(want, usable_cpus() + 1 if self._threads is None else 0)
        if self._stopping_pool and not len(run):
            self._close_pool(self._pool)
            return self.produce(want)
        if self._threads is None:
            self._choose_threads(self._pool)
        elif not self._decided:
            self._decide(self._pool)
        return run

    def _initial_threads(self) -> int:
        """How many threads a pool has at first; 0 where this thread does it."""
        if self._threads is None:
            return 0 if self._ordered else 1
        return self._threads if self._threads > 1 else 0

    def _choose_threads(self, pool: ParallelCalls) -> None:
        """Decide by what the calls of the first thread took, or of those that were added."""
        self._trial = SerialTrial(calls=pool.elements, wall_ns=pool.work_ns, cpu_ns=pool.cpu_ns)
        if not self._trial.is_conclusive or self._stopping_pool:
            return
        self._threads = max(pool.threads, self._trial.threads())
        if pool.threads > 1:  # they have proved their worth, and what they do was not measured serially
            self._decided = True
            pool.grow(self._threads)
        else:  # begin anew, with counters that can be compared
            self._stopping_pool = True
            pool.stop_pulling()

    def _call_serially(self, want: int) -> Run:
        """Call on this thread and note what that costs."""
        waited = self.inputs[0].spent_ns
        wall, cpu = perf_counter_ns(), thread_time_ns()
        run = self._serial.pull(want)
        elapsed = perf_counter_ns() - wall - (self.inputs[0].spent_ns - waited)
        self._busy_ns += elapsed
        if self._threads is None:
            self._trial.calls += len(run)
            self._trial.wall_ns += elapsed
            self._trial.cpu_ns += thread_time_ns() - cpu
            self._threads = self._trial.threads() if self._trial.is_conclusive else None
        return run

    def _decide(self, pool: ParallelCalls) -> None:
        """Go back to serial calls if the threads gain nothing."""
        gained = self._trial.gained(self._threads or 1, pool.elements, pool.work_ns)
        if gained is None:
            return
        self._decided = True
        if not gained:
            self._threads = 1
            self._stopping_pool = True
            pool.stop_pulling()

    def _close_pool(self, pool: ParallelCalls) -> None:
        self._busy_ns += pool.work_ns
        self.wait_ns += pool.wait_ns
        self._pool = None
        self._stopping_pool = False

    def continue_counters(self, previous: Stage) -> None:
        """Count on, and keep what was found out about threads."""
        super().continue_counters(previous)
        assert isinstance(previous, ParallelMapStage)
        report = previous.report(0)
        self._busy_ns += report.busy_ns
        self.wait_ns = report.wait_ns
        if self._threads is None:
            self._threads, self._trial, self._decided = previous._threads, previous._trial, previous._decided

    def cancel(self) -> None:
        """Wake the reader and the threads."""
        if self._pool is not None:
            self._pool.cancel()
        super().cancel()

    def close_inputs(self, unread: int) -> None:
        """Close the input once no thread is in it."""
        if self._pool is not None:
            self._pool.close_stage()
        else:
            super().close_inputs(0)

    def report(self, depth: int) -> StageReport:
        """What this stage and its threads did."""
        pool = self._pool
        buffered, capacity = pool.buffered_and_capacity() if pool else (0, 0)
        return StageReport(
            name=self.name,
            depth=depth,
            elements=self.elements,
            busy_ns=self._busy_ns + (pool.work_ns if pool else 0),
            wait_ns=self.wait_ns + (pool.wait_ns if pool else 0),
            buffered=buffered,
            capacity=capacity,
            threads=pool.threads if pool else 1,
        )
