"""`Dataset.prefetch`: reads elements ahead on a thread."""

from __future__ import annotations

from dsnb.pipeline.engine.look_ahead import LookAhead
from dsnb.pipeline.engine.stage import AlignedStage, Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation, Unchanged
from dsnb.pipeline.validate import AUTOTUNE
from dsnb.wire.messages import StageReport


class Prefetch(Unchanged, frozen=True, kw_only=True):
    """Reads up to `size` elements ahead; `AUTOTUNE` finds the number by itself."""

    passes_through = True
    size: int

    @property
    def name(self) -> str:
        return "prefetch(AUTOTUNE)" if self.size == AUTOTUNE else f"prefetch({self.size})"

    def __dsnb_result__(self) -> Operation:
        return self.inputs[0]

    def build(self, context: BuildContext) -> Stage:
        """Build a stage with a thread, or one that passes elements through if the size is 0."""
        (source,) = self.build_inputs(context)
        return PrefetchStage(self, source) if self.size else AlignedStage(self.name, source)


class PrefetchStage(AlignedStage):
    """Returns elements that its thread pulled ahead; the thread starts at the first pull."""

    buffers = True

    def __init__(self, operation: Prefetch, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._look_ahead = LookAhead(source, operation.name, None if operation.size == AUTOTUNE else operation.size)

    def skip(self, count: int) -> int:
        """Skip in the input, as long as the thread has not started."""
        return Stage.skip(self, count) if self._look_ahead.started else super().skip(count)

    def produce(self, want: int) -> Run:
        return self._look_ahead.take(want)

    def cancel(self) -> None:
        self._cancelled = True
        self._look_ahead.cancel()

    def close_inputs(self, unread: int) -> None:
        """Stop the thread; the input is closed when the thread has left it."""
        self._look_ahead.close_stage(unread)

    def report(self, depth: int) -> StageReport:
        """Counters of this stage; the time of its thread counts for the input."""
        ahead = self._look_ahead
        waited = self.wait_ns + ahead.wait_ns
        return StageReport(
            name=self.name,
            depth=depth,
            elements=self.elements,
            busy_ns=max(0, self.stopwatch.completed_ns - waited),  # finished pulls only, like `waited`
            wait_ns=waited,
            buffered=ahead.buffered,
            capacity=ahead.capacity,
        )

    def continue_counters(self, previous: Stage) -> None:
        super().continue_counters(previous)
        self.wait_ns = previous.report(0).wait_ns
