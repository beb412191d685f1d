"""`Dataset.map`: calls a user's function for each element, on the reading thread or on several threads."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import perf_counter_ns, thread_time_ns
from typing import Any

from msgspec.structs import replace

from dsnb.pipeline.engine.autotune import SerialTrial, TrialPauses
from dsnb.pipeline.engine.calls import ResultsStage, UserFunction
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.parallel import ParallelCalls
from dsnb.pipeline.engine.stage import AlignedStage, Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.validate import AUTOTUNE
from dsnb.wire.messages import StageReport


class Map(Operation, frozen=True, kw_only=True):
    """Calls `function` for each element, on `calls` threads; None for the reading thread.

    If `deterministic` is None, the options of the whole pipeline decide.
    """

    function: Callable[..., Any]
    calls: int | None = None
    deterministic: bool | None = None

    @property
    def name(self) -> str:
        return f"map({function_name(self.function)})"

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def elementwise(self) -> bool:
        return True

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """False if threads may deliver results in the order in which they are ready."""
        ordered = deterministic if self.deterministic is None else self.deterministic
        return ordered or self.calls in (None, 1)

    def __dsnb_result__(self) -> Operation:
        return self if self.calls is None else replace(self, calls=None)

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        if self.calls in (None, 1):
            function = UserFunction(self.function, self.name, keep_results=True, allocate=context.allocate)
            return MapStage(self.name, source, function, low_latency=context.low_latency)
        ordered = context.deterministic if self.deterministic is None else self.deterministic
        return ParallelMapStage(self, source, context, ordered=ordered)


class MapStage(ResultsStage, AlignedStage):
    """Calls the function on the pulling thread."""

    def skip(self, count: int) -> int:
        """Skip in the input, without calling the function, if nothing is left over from earlier runs."""
        return self.inputs[0].skip(count) if self.idle else Stage.skip(self, count)


class ParallelMapStage(AlignedStage):
    """Calls the function on threads; with `AUTOTUNE` only if measurements show that it pays.

    If order matters, the serial trial runs on the pulling thread. If order is free, it runs on one extra thread, and
    more threads are added while the reader waits long, so that a slow element delays no others.
    """

    one_to_one = False  # threads may change the order
    buffers = True

    def __init__(self, operation: Map, source: Stage, context: BuildContext, *, ordered: bool) -> None:
        super().__init__(operation.name, source)
        self._function = UserFunction(operation.function, operation.name, keep_results=True, allocate=context.allocate)
        self._ordered = ordered
        self._cpus = context.cpus
        self._serial = MapStage(operation.name, source, self._function)
        self._trial = SerialTrial(self._cpus())
        # None until the trial is conclusive.
        self._threads = None if operation.calls == AUTOTUNE else operation.calls
        self._decided = self._threads is not None
        self._pauses = TrialPauses()
        self._pool: ParallelCalls | None = None
        self._stopping_pool = False
        self._busy_ns = 0

    def skip(self, count: int) -> int:
        """Skip without calling the function, as long as no thread runs."""
        return self._serial.skip(count) if self._pool is None else Stage.skip(self, count)

    def produce(self, want: int) -> Run:
        threads = self._initial_threads()
        # The serial stage may still hold inputs or results, so the pool starts only when that stage is idle.
        if self._pool is None and threads and self._serial.idle:
            self._pool = ParallelCalls(self.inputs[0], self._function, threads, ordered=self._ordered)
        if self._pool is None:
            return self._call_serially(want)
        run = self._pool.take(want, ceil(self._cpus()) + 1 if self._threads is None else 0)
        # All results of the stopped pool are delivered; continue with serial calls or a new pool.
        if self._stopping_pool and not len(run):
            self._close_pool(self._pool)
            return self.produce(want)
        if self._threads is None:
            self._choose_threads(self._pool)
        elif not self._decided:
            self._decide(self._pool)
        return run

    def _initial_threads(self) -> int:
        """How many threads a pool starts with; 0 means that the pulling thread makes the calls."""
        if self._threads is None:
            return 0 if self._ordered else 1
        return self._threads if self._threads > 1 else 0

    def _choose_threads(self, pool: ParallelCalls) -> None:
        """Choose the number of threads from the measurements of the first thread, or of the threads added since."""
        measured = pool.elements, pool.work_ns, pool.cpu_ns
        self._trial = SerialTrial(self._cpus(), *measured)
        if not self._trial.is_conclusive or self._stopping_pool:
            return
        self._threads = max(pool.threads, self._trial.threads)
        if pool.threads > 1:  # the added threads were needed, and their times are not comparable with a serial trial
            self._decided = True
            pool.grow(self._threads)
        else:  # start a new pool, whose counters can be compared with the trial
            self._stopping_pool = True
            pool.stop_pulling()

    def _call_serially(self, want: int) -> Run:
        """Call the function on the pulling thread and measure it."""
        waited = self.inputs[0].spent_ns
        wall, cpu = perf_counter_ns(), thread_time_ns()
        run = self._serial.pull(want)
        elapsed = perf_counter_ns() - wall - (self.inputs[0].spent_ns - waited)
        self._busy_ns += elapsed
        if self._threads is None:
            self._trial.calls += len(run)
            self._trial.wall_ns += elapsed
            self._trial.cpu_ns += thread_time_ns() - cpu
            self._threads = self._trial.threads if self._trial.is_conclusive else None
        elif self._pauses.over(wall):
            self._threads, self._decided, self._pauses.next_ns = None, False, None
            self._trial = SerialTrial(self._cpus())
        return run

    def _decide(self, pool: ParallelCalls) -> None:
        """Return to serial calls if the threads gain nothing, and try them again later."""
        gained = self._trial.gained(self._threads or 1, pool.elements, pool.work_ns)
        if gained is None:
            return
        self._decided = True
        if not gained:
            self._threads = 1
            self._pauses.begin(perf_counter_ns())
            self._stopping_pool = True
            pool.stop_pulling()

    def _close_pool(self, pool: ParallelCalls) -> None:
        self._busy_ns += pool.work_ns
        self.wait_ns += pool.wait_ns
        self._pool = None
        self._stopping_pool = False

    def continue_counters(self, previous: Stage) -> None:
        """Continue the counters of the previous iteration, and keep its choice of threads for the same processors."""
        super().continue_counters(previous)
        assert isinstance(previous, ParallelMapStage)
        report = previous.report(0)
        self._busy_ns += report.busy_ns
        self.wait_ns = report.wait_ns
        if self._threads is None and previous._trial.cpus == self._trial.cpus:  # noqa: SLF001 - of the same class
            self._threads, self._trial = previous._threads, previous._trial  # noqa: SLF001 - of the same class
            self._decided, self._pauses = previous._decided, previous._pauses  # noqa: SLF001

    def cancel(self) -> None:
        if self._pool is not None:
            self._pool.cancel()
        super().cancel()

    def close_inputs(self, unread: int) -> None:
        """Close the input once no thread pulls from it."""
        if self._pool is not None:
            self._pool.close_stage()
        else:
            super().close_inputs(0)

    def report(self, depth: int) -> StageReport:
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
