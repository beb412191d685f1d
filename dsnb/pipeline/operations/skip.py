"""`Dataset.skip`: drops the first elements."""

from __future__ import annotations

from collections.abc import Iterable

from dsnb.errors import is_element_error
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, SameSpec
from dsnb.pipeline.specs import map_cardinality


class Skip(SameSpec, frozen=True, kw_only=True):
    """The elements after the first `count`; none if `count` is negative."""

    passes_through = True
    count: int

    @property
    def name(self) -> str:
        return f"skip({self.count})"

    @property
    def cardinality(self) -> int:
        if self.count < 0:
            return 0
        return map_cardinality(self.inputs[0].cardinality, lambda known: max(0, known - self.count))

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return SkipStage(self, source)


class SkipStage(Stage):
    """Drops the first elements. A failed element among them counts as one of them, but its error is raised."""

    one_to_one = True
    drops_prefix = True

    def __init__(self, operation: Skip, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._skips_all = operation.count < 0
        self._left = self._dropped = max(0, operation.count)

    def skip(self, count: int) -> int:
        """Skip the dropped elements and the next `count` in one call."""
        if self._skips_all:
            return 0
        left, self._left = self._left, 0
        return max(0, self.inputs[0].skip(left + count) - left)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """Elements of the input after the dropped ones; none before the first element is consumed."""
        return ((self.inputs[0], self._dropped + count if count else 0),)

    def produce(self, want: int) -> Run:
        if self._skips_all:
            return []
        if self._left and self.inputs[0].skips_cheaply:
            self.inputs[0].skip(self._left)
            self._left = 0
        while self._left:
            try:
                dropped = len(self.inputs[0].pull(min(self._left, MAX_RUN_LENGTH)))
            except Exception as error:
                self._left -= is_element_error(error)
                raise
            self._left -= dropped
            if not dropped:
                return []
        return self.inputs[0].pull(want)
