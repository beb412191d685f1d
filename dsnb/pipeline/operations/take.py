"""`Dataset.take`: keeps the first elements."""

from __future__ import annotations

from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import AlignedStage, Run, Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, BuildContext, SameSpec
from dsnb.pipeline.specs import map_cardinality


class Take(SameSpec, frozen=True, kw_only=True):
    """At most `count` elements; all of them if `count` is negative."""

    passes_through = True
    count: int

    @property
    def name(self) -> str:
        return f"take({self.count})"

    @property
    def cardinality(self) -> int:
        source = self.inputs[0].cardinality
        if self.count < 0:
            return source
        if self.count == 0 or source == INFINITE_CARDINALITY:
            return self.count
        return map_cardinality(source, lambda known: min(known, self.count))

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return TakeStage(self, source)


class TakeStage(AlignedStage):
    """Never pulls more elements than it will return."""

    def __init__(self, operation: Take, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._left = operation.count

    def skip(self, count: int) -> int:
        """Skip in the input, up to the count."""
        if self._left < 0:
            return self.inputs[0].skip(count)
        skipped = self.inputs[0].skip(min(count, self._left))
        self._left -= skipped
        return skipped

    def resume_point(self, count: int) -> ResumePoint:
        return self.resume_point_of_inputs(count, counter=self._start_point.counter + count)

    def begin_at(self, point: ResumePoint) -> None:
        super().begin_at(point)
        self._left -= min(point.counter, self._left) if self._left > 0 else 0

    def produce(self, want: int) -> Run:
        if self._left < 0:
            return self.inputs[0].pull(want)
        if not self._left:
            return []
        run = self.inputs[0].pull(min(want, self._left))
        self._left -= len(run)
        return run
