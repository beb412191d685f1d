"""`Dataset.prefetch`: elements made ready on another thread while the reader works."""

from __future__ import annotations

from collections.abc import Iterable

from dsnb.dataclass import dataclass
from dsnb.pipeline.engine.look_ahead import LookAhead
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, Stage, StageReport
from dsnb.pipeline.operation import BuildContext, Operation, Unchanged
from dsnb.pipeline.validate import AUTOTUNE


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefetch(Unchanged):
    """Up to `size` elements ready; `AUTOTUNE` to find out how many it takes."""

    passes_through = True
    size: int

    @property
    def name(self) -> str:
        """With the size."""
        return "prefetch(AUTOTUNE)" if self.size == AUTOTUNE else f"prefetch({self.size})"

    def __dsnb_result__(self) -> Operation:
        return self.inputs[0]

    def build(self, context: BuildContext) -> Stage:
        """A stage with a thread; without one for a size of 0."""
        (source,) = self.build_inputs(context)
        return PrefetchStage(self, source) if self.size else PassThroughStage(self.name, source)


class PassThroughStage(Stage):
    """Hands on what comes."""

    one_to_one = True

    def skip(self, count: int) -> int:
        """The input's."""
        return self.inputs[0].skip(count)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """The same of the input."""
        return ((self.inputs[0], count),)

    def resume_point(self, count: int) -> ResumePoint:
        """The input's."""
        return self.resume_point_of_inputs(count)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """The input's elements are this one's."""
        return self.inputs[0].track_consumption(buffered=buffered)

    def produce(self, want: int) -> Run:
        """The next elements."""
        return self.inputs[0].pull(want)


class PrefetchStage(Stage):
    """Hands on what its thread got ready; the thread starts at the first pull."""

    one_to_one = True

    def __init__(self, operation: Prefetch, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._look_ahead = LookAhead(source, operation.name, None if operation.size == AUTOTUNE else operation.size)

    def skip(self, count: int) -> int:
        """The input's, as long as the thread has not started."""
        return super().skip(count) if self._look_ahead.started else self.inputs[0].skip(count)

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
        """The next elements, at once if they are ready."""
        return self._look_ahead.take(want)

    def cancel(self) -> None:
        """Wake the reader and the thread."""
        self._cancelled = True
        self._look_ahead.cancel()

    def close_inputs(self, unread: int) -> None:
        """Stop the thread; the input is closed when it is out of it."""
        self._look_ahead.close_stage(unread)

    def report(self, depth: int) -> StageReport:
        """With what lies ready; the thread's time is its input's."""
        ahead = self._look_ahead
        waited = self.wait_ns + ahead.wait_ns
        return StageReport(
            name=self.name,
            depth=depth,
            elements=self.elements,
            busy_ns=max(0, self._spent[0] - waited),  # of pulls that are over, as the waits are
            wait_ns=waited,
            buffered=ahead.buffered,
            capacity=ahead.capacity,
        )

    def continue_counters(self, previous: Stage) -> None:
        """Count on."""
        super().continue_counters(previous)
        self.wait_ns = previous.report(0).wait_ns
